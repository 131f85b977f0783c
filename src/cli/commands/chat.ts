/** `tinyllm chat`: a conversation. Ctrl-C stops an answer; at the prompt it ends the conversation. */
import { createInterface } from 'node:readline'
import type { Command } from 'commander'
import type { ChatMessage, Engine } from '../../engine.js'
import { InvalidRequestError, TinyLlmError } from '../../errors.js'
import { describeFailure } from '../failure.js'
import { openEngine } from '../model.js'
import { addModelOptions, type ModelOptions } from '../options.js'
import { type Terminal, write } from '../terminal.js'
import { addSamplingOptions, samplingOf } from './generate.js'

interface ChatOptions extends ModelOptions {
  readonly system?: string
  readonly maxTokens: number
  readonly temperature: number
}

const HELP = '/clear forgets the conversation, /exit ends it, Ctrl-C stops an answer.\n'

export function addChat(program: Command, terminal: Terminal): void {
  const command = program.command('chat').description('talk with a model')
  addSamplingOptions(addModelOptions(command))
    .option('--system <text>', 'a system message before the conversation')
    .action(async (options: ChatOptions) => {
      const { engine, name } = await openEngine(options, terminal)
      try {
        if (!engine.info.hasChatTemplate)
          throw new InvalidRequestError(`${name} has no chat template; use "tinyllm generate --raw"`)
        await write(terminal.stderr, `${name}. ${HELP}`)
        await converse(engine, options, terminal)
      } finally {
        await engine.close()
      }
    })
}

async function converse(engine: Engine, options: ChatOptions, terminal: Terminal): Promise<void> {
  const { stdin, stdout, stderr } = terminal
  const opening: ChatMessage[] = options.system === undefined ? [] : [{ role: 'system', content: options.system }]
  let messages = [...opening]
  let answering: AbortController | undefined
  const isLive = stdin.isTTY === true
  const lines = createInterface({ input: stdin, output: stdout, terminal: isLive, prompt: isLive ? '> ' : '' })
  const interrupt = (): void => {
    if (answering) answering.abort()
    else lines.close()
  }
  lines.on('SIGINT', interrupt)
  // Not a terminal, or raw mode off while an answer is written: then the interruption comes as a signal.
  terminal.signal.addEventListener('abort', () => {
    answering?.abort()
    lines.close()
  })

  /** Writes one answer and returns it; what was written before an interruption counts. */
  const answer = async (): Promise<string> => {
    answering = new AbortController()
    let text = ''
    try {
      const signal = answering.signal
      for await (const chunk of engine.stream({ ...samplingOf(options), messages, signal })) {
        text += chunk.text
        await write(stdout, chunk.text)
      }
    } catch (error) {
      if (!answering.signal.aborted) throw error
    } finally {
      answering = undefined
    }
    await write(stdout, '\n')
    return text
  }

  lines.prompt()
  for await (const line of lines) {
    const said = line.trim()
    if (said === '/exit' || said === '/quit') break
    if (said === '/clear') messages = [...opening]
    else if (said === '/help') await write(stderr, HELP)
    else if (said !== '') {
      messages.push({ role: 'user', content: line })
      try {
        messages.push({ role: 'assistant', content: await answer() })
      } catch (error) {
        // A conversation that outgrew the context, say: the question is taken back, the conversation goes on.
        if (!TinyLlmError.is(error)) throw error
        messages.pop()
        await write(stderr, describeFailure(error))
      }
    }
    if (terminal.signal.aborted) break
    lines.prompt()
  }
  lines.close()
}
