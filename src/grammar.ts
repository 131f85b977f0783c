/**
 * Grammars: what a generation may say. A {@link Grammar} holds a *description* (a plain value, never pattern text
 * put together from parts), which crosses the border as JSON text and is compiled off the JS thread; the compiled
 * form is cached in Rust, so making the same grammar again costs nothing.
 */
import { GrammarError, InvalidRequestError } from './errors.js'

/** The description that crosses the border; see `Grammar::from_json` in crates/constrain. */
export type GrammarDescription =
  | { readonly type: 'regex'; readonly pattern: string }
  | { readonly type: 'choice'; readonly choices: readonly string[] }
  | {
      readonly type: 'schema'
      /** The schema's own JSON text, so that key order and digits are kept. */
      readonly schema: string
      readonly subset: 'strict' | 'general'
      readonly whitespace: 'compact' | 'flexible'
      readonly maxStringLength?: number
    }
  | { readonly type: 'json_object'; readonly depth: number; readonly finite: boolean }
  | { readonly type: 'literal'; readonly text: string }
  | { readonly type: 'sequence'; readonly items: readonly GrammarDescription[] }
  | {
      readonly type: 'repeat'
      readonly item: GrammarDescription
      readonly separator: string
      readonly min: number
      readonly max?: number
    }
  | { readonly type: 'alternative'; readonly options: readonly GrammarDescription[] }
  /** Free text until `trigger`, then `body`. */
  | { readonly type: 'trigger'; readonly trigger: string; readonly body: GrammarDescription }

declare const result: unique symbol

/** What a generation may say. `T` is the type of the result's `value`. */
export interface Grammar<T = unknown> {
  readonly description: GrammarDescription
  /** Turns the finished text into the result's `value`; absent: the text itself is the result. */
  readonly parse?: (text: string) => T | Promise<T>
  /** Only for the type checker. */
  readonly [result]?: T
}

/** A grammar from a description; the constructors below and the tools' grammars are made of this. */
export function grammar<T = unknown>(
  description: GrammarDescription,
  parse?: (text: string) => T | Promise<T>,
): Grammar<T> {
  return Object.freeze(parse === undefined ? { description } : { description, parse })
}

/** The whole text matches a regular expression of the strict subset (over bytes, anchored at both ends). */
export function regex(pattern: string): Grammar<string> {
  if (typeof pattern !== 'string') throw new InvalidRequestError('regex() takes the pattern as a string')
  return grammar({ type: 'regex', pattern })
}

/** The whole text is one of the choices. */
export function choice<const C extends string>(choices: readonly C[]): Grammar<C> {
  if (!Array.isArray(choices) || choices.length === 0 || !choices.every((c) => typeof c === 'string')) {
    throw new InvalidRequestError('choice() takes a non-empty array of strings')
  }
  return grammar<C>({ type: 'choice', choices: [...choices] }, (text) => text as C)
}

/** Any JSON object, nested at most `depth` levels (default 3), without white space. */
export function jsonObject(options: { depth?: number } = {}): Grammar<Record<string, unknown>> {
  const depth = options.depth ?? 3
  if (!Number.isInteger(depth) || depth < 0 || depth > 64) {
    throw new InvalidRequestError('jsonObject: depth must be an integer from 0 to 64')
  }
  return grammar({ type: 'json_object', depth, finite: true }, (text) => JSON.parse(text) as Record<string, unknown>)
}

/** Anything that follows the Standard Schema interface (zod 4, valibot, arktype, …). */
export interface StandardSchema<Output = unknown> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined
    /** The JSON Schema extension of the interface. */
    readonly jsonSchema?: {
      readonly input?: (options: { target: string }) => Record<string, unknown>
      readonly output?: (options: { target: string }) => Record<string, unknown>
    }
  }
}

type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] }

export interface JsonSchemaOptions {
  /** `general` (default): the friendlier front end, in finite form. `strict`: the small exact subset. */
  readonly subset?: 'strict' | 'general'
  /** `compact` (default): none. `flexible`: at most one space after `:` and `,`. */
  readonly whitespace?: 'compact' | 'flexible'
  /** Bound on the characters of strings that state no bound themselves. Default: none. */
  readonly maxStringLength?: number
}

/**
 * JSON that follows a schema: a JSON Schema as text (key order is kept as written) or as a plain object, or a
 * Standard Schema value that can state its JSON Schema (zod 4). The result's `value` is the parsed value; for a
 * Standard Schema it has gone through the schema's own `validate`.
 */
export function jsonSchema<Output>(schema: StandardSchema<Output>, options?: JsonSchemaOptions): Grammar<Output>
export function jsonSchema<T = unknown>(
  schema: string | Record<string, unknown>,
  options?: JsonSchemaOptions,
): Grammar<T>
export function jsonSchema(
  schema: string | Record<string, unknown> | StandardSchema,
  options: JsonSchemaOptions = {},
): Grammar {
  const { subset = 'general', whitespace = 'compact', maxStringLength } = options
  const standard = isStandardSchema(schema) ? schema : undefined
  const description: GrammarDescription = {
    type: 'schema',
    schema: typeof schema === 'string' ? schema : JSON.stringify(standard ? jsonSchemaOf(standard) : schema),
    subset,
    whitespace,
    ...(maxStringLength === undefined ? {} : { maxStringLength }),
  }
  return grammar(description, (text) => {
    const value: unknown = JSON.parse(text)
    return standard ? validate(standard, value) : value
  })
}

function isStandardSchema(schema: unknown): schema is StandardSchema {
  // Some libraries' schemas are callable, hence functions.
  return (typeof schema === 'object' || typeof schema === 'function') && schema !== null && '~standard' in schema
}

/** The JSON Schema of a Standard Schema value: what it accepts, since that is what is generated. */
function jsonSchemaOf(schema: StandardSchema): Record<string, unknown> {
  const convert = schema['~standard'].jsonSchema?.input ?? schema['~standard'].jsonSchema?.output
  if (convert !== undefined) return convert({ target: 'draft-2020-12' })
  throw new GrammarError(
    'ERR_TINYLLM_GRAMMAR',
    `jsonSchema(): this ${schema['~standard'].vendor} schema cannot state its JSON Schema; pass the JSON Schema itself`,
  )
}

async function validate(schema: StandardSchema, value: unknown): Promise<unknown> {
  const outcome = await schema['~standard'].validate(value)
  if (outcome.issues === undefined) return outcome.value
  const issue = outcome.issues[0]
  throw new GrammarError(
    'ERR_TINYLLM_GRAMMAR',
    `the generated value follows the JSON Schema but not the ${schema['~standard'].vendor} schema: ${issue?.message ?? 'refused'}`,
    { details: { pointer: (issue?.path ?? []).map((part) => `/${pathPart(part)}`).join('') } },
  )
}

function pathPart(part: unknown): string {
  const key = typeof part === 'object' && part !== null && 'key' in part ? part.key : part
  return String(key).replaceAll('~', '~0').replaceAll('/', '~1')
}
