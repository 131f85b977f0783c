/**
 * `tinyllm generate PROMPT`: one answer. With a model that has a chat template the prompt is a user's message;
 * `--raw` goes on from the text itself.
 */
import type { Command } from 'commander'
import type { ChatMessage, Engine, GenerateRequest, GenerateResult } from '../../engine.js'
import { InvalidRequestError } from '../../errors.js'
import { EXIT } from '../failure.js'
import { addGrammarOptions, type GrammarOptions, readGrammar } from '../grammar_options.js'
import { openEngine } from '../model.js'
import { addModelOptions, collect, integer, type ModelOptions, number, seed } from '../options.js'
import { readAll, type Terminal, write } from '../terminal.js'

/** The options of {@link addSamplingOptions}, as commander gives them. */
export interface SamplingOptions {
  readonly maxTokens: number
  readonly temperature: number
  readonly topK?: number
  readonly topP?: number
  readonly minP?: number
  readonly repetitionPenalty?: number
  readonly seed?: bigint
}

interface GenerateOptions extends ModelOptions, GrammarOptions, SamplingOptions {
  readonly raw?: boolean
  readonly system?: string
  readonly json?: boolean
  readonly stop?: string[]
  readonly logprobs?: number
  readonly closeWithinBudget?: boolean
}

/** Tokens of an answer when `--max-tokens` says nothing: small models can ramble on for ever. */
const DEFAULT_MAX_TOKENS = 512

const sampling = ['topK', 'topP', 'minP', 'repetitionPenalty', 'seed', 'stop', 'logprobs', 'closeWithinBudget'] as const

/** The options of the sampler, for the commands that generate. */
export function addSamplingOptions(command: Command): Command {
  return command
    .option('-n, --max-tokens <count>', 'tokens of the answer at most', integer(1, 1 << 24), DEFAULT_MAX_TOKENS)
    .option('--temperature <value>', '0 takes the likeliest token each time', number(0, 100), 0)
    .option('--top-k <count>', 'keep the likeliest tokens only', integer(0, 1 << 24))
    .option('--top-p <share>', 'keep the likeliest tokens that hold this share', number(0, 1))
    .option('--min-p <share>', 'drop tokens below this share of the likeliest', number(0, 1))
    .option('--repetition-penalty <value>', 'above 1 repeats less', number(0.001, 100))
    .option('--seed <number>', 'the same seed gives the same answer', seed)
}

/** What the sampling options mean to the engine. */
export function samplingOf(options: Partial<GenerateOptions>): GenerateRequest {
  const given = sampling.filter((key) => options[key] !== undefined).map((key) => [key, options[key]])
  return {
    ...Object.fromEntries(given),
    maxTokens: options.maxTokens,
    temperature: options.temperature,
  } as GenerateRequest
}

function inputOf(prompt: string, { raw, system }: GenerateOptions, engine: Engine): GenerateRequest {
  if (raw && system !== undefined) throw new InvalidRequestError('--system has no place in a --raw prompt')
  if (raw || !engine.info.hasChatTemplate) return { prompt }
  const messages: ChatMessage[] = [{ role: 'user', content: prompt }]
  if (system !== undefined) messages.unshift({ role: 'system', content: system })
  return { messages }
}

/** A result as JSON can hold it. */
function printable(result: GenerateResult): unknown {
  const { tokens, ...rest } = result
  const bytes = (key: string, value: unknown): unknown => (key === 'bytes' ? [...(value as Uint8Array)] : value)
  return JSON.parse(JSON.stringify({ ...rest, tokens: [...tokens] }, bytes))
}

export function addGenerate(program: Command, terminal: Terminal, setExitCode: (code: number) => void): void {
  const command = program
    .command('generate')
    .description('answer one prompt')
    .argument('[prompt]', 'the prompt; "-" or nothing reads standard input')
  addGrammarOptions(addSamplingOptions(addModelOptions(command)))
    .option('--stop <text>', 'the answer ends before this text; may be given several times', collect)
    .option('--logprobs <count>', 'with --json: log-probabilities, with so many alternatives each', integer(0, 20))
    .option('--close-within-budget', 'steer so that the answer is complete when --max-tokens is reached')
    .option('--system <text>', 'a system message before the prompt')
    .option('--raw', 'go on from the prompt itself, without the model’s chat template')
    .option('--json', 'print the whole result as JSON when it is there, instead of the text as it comes')
    .action(async (argument: string | undefined, options: GenerateOptions) => {
      const fromInput = argument === undefined || argument === '-'
      if (argument === undefined && terminal.stdin.isTTY) throw new InvalidRequestError('there is no prompt')
      const prompt = fromInput ? await readAll(terminal.stdin) : argument
      const grammar = await readGrammar(options)
      const { engine } = await openEngine(options, terminal)
      try {
        const { signal, stdout } = terminal
        const request: GenerateRequest = {
          ...samplingOf(options),
          ...inputOf(prompt, options, engine),
          ...(grammar && { grammar }),
          signal,
        }
        const generation = engine.stream(request)
        if (!options.json) for await (const { text } of generation) await write(stdout, text)
        const result = await generation.final()
        await write(stdout, options.json ? `${JSON.stringify(printable(result))}\n` : '\n')
        if (result.finishReason === 'length' && grammar) {
          await write(terminal.stderr, `tinyllm: stopped at ${options.maxTokens} tokens, the answer is not complete\n`)
          setExitCode(EXIT.failure)
        }
      } finally {
        await engine.close()
      }
    })
}
