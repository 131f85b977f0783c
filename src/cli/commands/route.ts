/**
 * `tinyllm route --tools FILE PROMPT`: one decision, which is one of the tools on offer or that none is needed. The
 * action is printed as its JSON text.
 */
import { readFile } from 'node:fs/promises'
import type { Command } from 'commander'
import type { ChatMessage } from '../../engine.js'
import { InvalidRequestError } from '../../errors.js'
import type { RouteTool } from '../../routing/index.js'
import { EXIT } from '../failure.js'
import { openEngine } from '../model.js'
import { addModelOptions, integer, type ModelOptions } from '../options.js'
import { readAll, type Terminal, write } from '../terminal.js'
import { addSamplingOptions, type SamplingOptions, samplingOf } from './generate.js'

interface RouteOptions extends ModelOptions, SamplingOptions {
  readonly tools: string
  readonly system?: string
  readonly maxStringLength?: number
}

export function addRoute(program: Command, terminal: Terminal, setExitCode: (code: number) => void): void {
  const command = program
    .command('route')
    .description('decide which of the tools a prompt needs, if any')
    .argument('[prompt]', 'the prompt; "-" or nothing reads standard input')
  addSamplingOptions(addModelOptions(command))
    .requiredOption('--tools <file>', 'the tools: a JSON array as chat APIs take it (a file, or the JSON itself)')
    .option('--max-string-length <count>', 'bound on the characters of each text argument', integer(1, 100_000))
    .option('--system <text>', 'a system message before the prompt')
    .action(async (argument: string | undefined, options: RouteOptions) => {
      const { maxStringLength, system } = options
      if (argument === undefined && terminal.stdin.isTTY) throw new InvalidRequestError('there is no prompt')
      const content = argument === undefined || argument === '-' ? await readAll(terminal.stdin) : argument
      const tools = await readTools(options.tools)
      // Only now: showing the help needs no addon.
      const { route } = await import('../../routing/grammar.js')
      const grammar = route(tools, maxStringLength === undefined ? {} : { maxStringLength })
      const messages: ChatMessage[] = [{ role: 'user', content }]
      if (system !== undefined) messages.unshift({ role: 'system', content: system })
      const { engine } = await openEngine(options, terminal)
      try {
        const { signal } = terminal
        const { text, finishReason } = await engine.generate({ ...samplingOf(options), messages, grammar, signal })
        await write(terminal.stdout, `${text}\n`)
        if (finishReason === 'length') {
          await write(terminal.stderr, `tinyllm: stopped at ${options.maxTokens} tokens, this is no action\n`)
          setExitCode(EXIT.failure)
        }
      } finally {
        await engine.close()
      }
    })
}

async function readTools(option: string): Promise<RouteTool[]> {
  try {
    const text = /^\s*\[/.test(option) ? option : await readFile(option, 'utf8')
    return JSON.parse(text) as RouteTool[]
  } catch (error) {
    throw new InvalidRequestError(`the tools ${option} cannot be read: ${(error as Error).message}`, { cause: error })
  }
}
