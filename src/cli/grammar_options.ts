/** The options that say what an answer may be, on the commands that take them. */
import { readFile } from 'node:fs/promises'
import type { Command } from 'commander'
import { InvalidRequestError } from '../errors.js'
import { choice, type Grammar, grammar, jsonSchema, regex } from '../grammar.js'
import { collect, integer } from './options.js'

export interface GrammarOptions {
  readonly regex?: string
  readonly choice?: string[]
  readonly schema?: string
  readonly jsonObject?: number
  readonly general?: boolean
}

export function addGrammarOptions(command: Command): Command {
  return command
    .option('--regex <pattern>', 'the whole answer matches this regular expression')
    .option('--choice <text>', 'the answer is one of these; give it once for each', collect)
    .option('--schema <file>', 'the answer is JSON by this JSON Schema (a file, or the JSON itself)')
    .option('--json-object <depth>', 'the answer is a JSON object nested at most so deep', integer(0, 64))
    .option('--general', 'read the schema by the general front end instead of the strict subset')
}

/** The grammar the options name, if any. */
export async function readGrammar(options: GrammarOptions): Promise<Grammar | undefined> {
  const given = (['regex', 'choice', 'schema', 'jsonObject'] as const).filter((key) => options[key] !== undefined)
  if (given.length > 1)
    throw new InvalidRequestError('only one of --regex, --choice, --schema and --json-object can be given')
  const { general = false } = options
  if (general && options.schema === undefined && options.jsonObject === undefined)
    throw new InvalidRequestError('--general goes with --schema or --json-object')
  if (options.regex !== undefined) return regex(options.regex)
  if (options.choice !== undefined) return choice(options.choice)
  // Strict numbers may have any exponent; the general form keeps to those that a double holds.
  if (options.jsonObject !== undefined)
    return grammar(
      { type: 'json_object', depth: options.jsonObject, finite: general },
      (text) => JSON.parse(text) as unknown,
    )
  if (options.schema === undefined) return undefined
  const text = /^\s*\{/.test(options.schema) ? options.schema : await readSchema(options.schema)
  return jsonSchema(text, { subset: general ? 'general' : 'strict' })
}

async function readSchema(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw new InvalidRequestError(`the schema ${file} cannot be read: ${(error as Error).message}`, { cause: error })
  }
}
