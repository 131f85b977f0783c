/**
 * The only importer of the binding. Natives return a tagged union (`ok` or `failure`), because napi cannot carry a
 * code through a promise; {@link unwrap} turns a failure into the error of its code. Nothing here is exported from
 * the package.
 */
import * as binding from '../binding.js'
import { errorFromCode, type ErrorDetails } from './errors.js'
import type { GrammarDescription } from './grammar.js'

export type {
  NativeBatch,
  NativeEngine,
  NativeEngineInfo,
  NativeFinish,
  NativeGeneration,
  NativeLoadOptions,
  NativeRendered,
  NativeRequest,
  NativeTokenLogprob,
} from '../binding.js'

interface Outcome<T> {
  ok?: T
  failure?: { code: string; message: string; details?: ErrorDetails; causes: string[] }
}

/** The value of an outcome, or its failure thrown as an error of this package. */
export function unwrap<T>(outcome: Outcome<T>): T {
  const { failure } = outcome
  if (failure === undefined) return outcome.ok as T
  // A chain of causes crosses as sentences, innermost last.
  const cause = failure.causes.reduceRight<Error | undefined>(
    (inner, message) => (inner === undefined ? new Error(message) : new Error(message, { cause: inner })),
    undefined,
  )
  throw errorFromCode(failure.code, failure.message, {
    ...(cause === undefined ? {} : { cause }),
    ...(failure.details === undefined ? {} : { details: failure.details }),
  })
}

/** A JSON value as it was written: digits, key order and repeated keys kept, each with its slice of the source. */
export type JsonValue = (
  | { readonly kind: 'null' }
  | { readonly kind: 'bool'; readonly value: boolean }
  | { readonly kind: 'int'; readonly digits: string }
  | { readonly kind: 'float'; readonly value: number }
  | { readonly kind: 'string'; readonly value: string }
  | { readonly kind: 'array'; readonly items: readonly JsonValue[] }
  | {
      readonly kind: 'object'
      /** A repeated key keeps the first position and the last value. */
      readonly members: readonly (readonly [string, JsonValue])[]
      /** Keys that were written more than once, in the order of their first repetition. */
      readonly repeated: readonly string[]
    }
) & {
  /** UTF-16 offsets of the value's slice in the source text. */
  readonly start: number
  readonly end: number
}

/** Reads a JSON text with the one reader of this project (depth 128). Throws `ERR_TINYLLM_JSON` with `position`. */
export function parseJson(text: string): JsonValue {
  return jsonFromNodes(unwrap(binding.parseJson(text)))
}

/** Prints a JSON text compactly, as Python's `json.dumps(…, separators=(',', ':'), ensure_ascii=False)` would. */
export function dumpJson(text: string): string {
  return unwrap(binding.dumpJson(text))
}

/** Numbers of the flat form: four per value, in depth-first order; see crates/node/src/json.rs. */
const NODE_WIDTH = 4

function jsonFromNodes({ nodes, strings, floats }: binding.NativeJson): JsonValue {
  let at = 0
  const string = (index: number): string => strings[index] as string
  const read = (): JsonValue => {
    const [kind, start, end, extra] = nodes.subarray(at, (at += NODE_WIDTH)) as unknown as [
      number,
      number,
      number,
      number,
    ]
    switch (kind) {
      case 0:
        return { kind: 'null', start, end }
      case 1:
        return { kind: 'bool', value: extra === 1, start, end }
      case 2:
        return { kind: 'int', digits: string(extra), start, end }
      case 3:
        return { kind: 'float', value: floats[extra] as number, start, end }
      case 4:
        return { kind: 'string', value: string(extra), start, end }
      case 5:
        return { kind: 'array', items: Array.from({ length: extra }, read), start, end }
      default: {
        const [, , repeatedCount, keys] = nodes.subarray(at, (at += NODE_WIDTH)) as unknown as [
          number,
          number,
          number,
          number,
        ]
        const members = Array.from({ length: extra }, (_, i) => [string(keys + i), read()] as const)
        const repeated = strings.slice(keys + extra, keys + extra + repeatedCount)
        return { kind: 'object', members, repeated, start, end }
      }
    }
  }
  return read()
}

export async function loadEngine(path: string, options: binding.NativeLoadOptions): Promise<binding.NativeEngine> {
  return unwrap(await binding.loadEngine(path, options))
}

/**
 * The canonical automaton of a grammar of a regular kind, as JSON text: `{regex, n_states, accept, runs, sha256}` in the
 * form of the golden file; `regex` is null where the grammar has no text of its own.
 */
export async function grammarTable(description: GrammarDescription): Promise<string> {
  return unwrap(await binding.grammarTable(JSON.stringify(description)))
}

/** The header of a GGUF file (metadata and tensors) as JSON text: `tinyllm inspect`. */
export async function inspectGguf(path: string): Promise<string> {
  return unwrap(await binding.inspectGguf(path))
}

/** The version of the native part. */
export function nativeVersion(): string {
  return binding.version()
}

/** Every error code the Rust side can raise. */
export function nativeErrorCodes(): string[] {
  return binding.errorCodes()
}

/** Checks a grammar's description and what it is made of (patterns, schemas), without compiling it for a vocabulary. */
export function checkGrammar(description: GrammarDescription): void {
  unwrap(binding.checkGrammar(JSON.stringify(description)))
}

/** The regex text of a schema of the strict subset. */
export function schemaToRegex(schema: string): string {
  return unwrap(binding.schemaToRegex(schema))
}

/** The regex text of any JSON object nested at most `depth` levels. */
export function jsonObjectRegex(depth: number): string {
  return unwrap(binding.jsonObjectRegex(depth))
}

/** The CPU tier in use and why, as JSON text; `TINYLLM_CPU` forces one. Throws when this CPU lacks it. */
export function cpuReport(): string {
  return unwrap(binding.cpuReport(process.env['TINYLLM_CPU'] ?? null))
}
