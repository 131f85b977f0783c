/** Options that several commands take, and how their values are read. */
import { type Command, InvalidArgumentError, Option } from 'commander'
import { DEFAULT_MODEL } from '../models/index.js'

function readNumber(text: string, min: number, max: number, what: string): number {
  const value = Number(text)
  if (text.trim() === '' || !(value >= min && value <= max) || (what !== 'number' && !Number.isInteger(value)))
    throw new InvalidArgumentError(`Give a ${what} from ${min} to ${max}.`)
  return value
}

/** A reader of numbers for commander, inclusive bounds. */
export const number =
  (min: number, max: number) =>
  (text: string): number =>
    readNumber(text, min, max, 'number')

/** A reader of whole numbers for commander, inclusive bounds. */
export const integer =
  (min: number, max: number) =>
  (text: string): number =>
    readNumber(text, min, max, 'whole number')

/** Seeds are 64 bits wide, more than a number holds exactly. */
export function seed(text: string): bigint {
  if (!/^\d{1,20}$/.test(text) || BigInt(text) >= 1n << 64n)
    throw new InvalidArgumentError('Give a whole number from 0 to 18446744073709551615.')
  return BigInt(text)
}

/** Collects the values of an option that may be given several times. */
export function collect(value: string, before: string[] = []): string[] {
  return [...before, value]
}

export interface ModelOptions {
  readonly model: string
  readonly ctxSize?: number
  readonly threads?: number
  readonly prefill?: 'exact' | 'fast'
  readonly offline?: boolean
  readonly manifest?: string
}

/** `--offline` and `--manifest`, for the commands that only look models up. */
export function addSourceOptions(command: Command): Command {
  return command
    .option('--offline', 'use the cache only, no network')
    .option('--manifest <file>', 'more models with names, a JSON file')
}

/** The options of every command that runs a model. */
export function addModelOptions(command: Command): Command {
  const model = new Option('-m, --model <model>', 'a name, a GGUF file, or hf:owner/repo[:quant]').default(
    DEFAULT_MODEL,
  )
  return addSourceOptions(command.addOption(model))
    .option('-c, --ctx-size <tokens>', 'positions for prompt and answer together', integer(1, 1 << 24))
    .option('-t, --threads <count>', 'threads of the forward pass (default: the cores)', integer(1, 1024))
    .addOption(
      new Option('--prefill <how>', 'how prompts are computed; fast needs AMX-BF16 (default: exact)').choices([
        'exact',
        'fast',
      ]),
    )
}
