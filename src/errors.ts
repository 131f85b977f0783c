/**
 * The error tree. Every error this package raises on purpose is a {@link TinyLlmError} with a stable `code`;
 * {@link ERROR_TABLE} is the one place that says which class, HTTP status and OpenAI error type a code has.
 *
 * The package ships as ESM and as CommonJS, and a process can hold both, so errors are recognised by a brand
 * (`TinyLlmError.is(value)`) rather than by identity of the class; `instanceof` works across the two as well.
 */

const brand = Symbol.for('tinyllm.error')

/** Where an error happened. Only the members that make sense for the error are present. */
export interface ErrorDetails {
  /** The request member that is wrong, as the caller spells it (`maxTokens`, `messages[2].content`). */
  readonly param?: string
  /** JSON pointer into a schema or a JSON text. */
  readonly pointer?: string
  /** Byte offset into a pattern or a file. In errors of the JSON reader: UTF-16 offset into the text. */
  readonly position?: number
  /** The file that could not be read. */
  readonly path?: string
  /** The limit that was passed, and what was asked for. */
  readonly limit?: number
  readonly actual?: number
  /** Position of the tool declaration that is wrong. */
  readonly index?: number
}

export interface TinyLlmErrorOptions {
  readonly cause?: unknown
  readonly details?: ErrorDetails
}

/** Base of every error of this package. */
export class TinyLlmError extends Error {
  readonly code: ErrorCode
  readonly details: ErrorDetails

  constructor(code: ErrorCode, message: string, options: TinyLlmErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = new.target.name
    this.code = code
    this.details = options.details ?? {}
    Object.defineProperty(this, brand, { value: true })
  }

  /** Whether `value` is an error of this package, whichever copy of the package made it. */
  static is(value: unknown): value is TinyLlmError {
    return typeof value === 'object' && value !== null && (value as Record<symbol, unknown>)[brand] === true
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    if (!TinyLlmError.is(value)) return false
    if (this === TinyLlmError) return true
    for (let proto: unknown = Object.getPrototypeOf(value); proto; proto = Object.getPrototypeOf(proto)) {
      const constructor = (proto as { constructor?: { name?: string } }).constructor
      if (constructor === this || constructor?.name === this.name) return true
    }
    return false
  }
}

/** The request is malformed: a member is missing, unknown, of the wrong type or out of range. */
export class InvalidRequestError extends TinyLlmError {
  constructor(message: string, options?: TinyLlmErrorOptions)
  constructor(code: ErrorCode, message: string, options?: TinyLlmErrorOptions)
  constructor(first: string, second?: string | TinyLlmErrorOptions, third?: TinyLlmErrorOptions) {
    if (typeof second === 'string') super(first as ErrorCode, second, third)
    else super('ERR_TINYLLM_INVALID_REQUEST', first, second)
  }
}

/** A model could not be found, read or understood. */
export class ModelLoadError extends TinyLlmError {}

/** A model's vocabulary is not usable, or a token id is not in it. */
export class TokenizerError extends TinyLlmError {}

/** A grammar could not be compiled; `details.position` or `details.pointer` say where it went wrong. */
export class GrammarError extends TinyLlmError {}

/** A chat template could not be compiled or refused its messages. */
export class TemplateError extends TinyLlmError {}

/** The prompt and the tokens asked for do not fit the context (`details.limit`, `details.actual`). */
export class ContextLengthError extends TinyLlmError {}

/** The engine's queue is full; try again later. */
export class OverloadedError extends TinyLlmError {}

/** The caller aborted. Its `name` is `AbortError`, as the platform's own. */
export class AbortError extends TinyLlmError {
  constructor(message = 'The operation was aborted', options?: TinyLlmErrorOptions) {
    super('ERR_TINYLLM_ABORTED', message, options)
  }
}

/** The engine was closed. */
export class EngineClosedError extends TinyLlmError {
  constructor(message = 'The engine is closed', options?: TinyLlmErrorOptions) {
    super('ERR_TINYLLM_ENGINE_CLOSED', message, options)
  }
}

/** A defect of this package. */
export class InternalError extends TinyLlmError {}

interface ErrorRow {
  readonly create: (message: string, options: TinyLlmErrorOptions) => TinyLlmError
  readonly status: number
  /** `error.type` in the OpenAI wire format. */
  readonly type: 'invalid_request_error' | 'rate_limit_error' | 'server_error'
}

/** Stable names; what a program should look at. */
export type ErrorCode =
  | 'ERR_TINYLLM_ABORTED'
  | 'ERR_TINYLLM_BACKEND'
  | 'ERR_TINYLLM_COMPUTE'
  | 'ERR_TINYLLM_CONSTRAINT'
  | 'ERR_TINYLLM_CONTEXT_LENGTH'
  | 'ERR_TINYLLM_CPU'
  | 'ERR_TINYLLM_DEVICE'
  | 'ERR_TINYLLM_ENGINE_CLOSED'
  | 'ERR_TINYLLM_GGUF'
  | 'ERR_TINYLLM_GRAMMAR'
  | 'ERR_TINYLLM_GRAMMAR_LIMIT'
  | 'ERR_TINYLLM_GRAMMAR_STUCK'
  | 'ERR_TINYLLM_INTERNAL'
  | 'ERR_TINYLLM_INVALID_REQUEST'
  | 'ERR_TINYLLM_JSON'
  | 'ERR_TINYLLM_KERNEL_SHAPE'
  | 'ERR_TINYLLM_LOGITS'
  | 'ERR_TINYLLM_MODEL_INCONSISTENT'
  | 'ERR_TINYLLM_MODEL_INPUT'
  | 'ERR_TINYLLM_MODEL_LOAD'
  | 'ERR_TINYLLM_MODEL_NOT_FOUND'
  | 'ERR_TINYLLM_MODEL_OPEN'
  | 'ERR_TINYLLM_MODEL_UNSUPPORTED'
  | 'ERR_TINYLLM_OUT_OF_MEMORY'
  | 'ERR_TINYLLM_OUT_OF_PAGES'
  | 'ERR_TINYLLM_OVERLOADED'
  | 'ERR_TINYLLM_REGEX'
  | 'ERR_TINYLLM_ROUTE_CATALOGUE'
  | 'ERR_TINYLLM_SAMPLING_PARAMETER'
  | 'ERR_TINYLLM_SCHEMA'
  | 'ERR_TINYLLM_SCHEMA_UNSUPPORTED'
  | 'ERR_TINYLLM_TEMPLATE'
  | 'ERR_TINYLLM_THREADS'
  | 'ERR_TINYLLM_TOKENIZER'
  | 'ERR_TINYLLM_VOCABULARY'

function rows<const C extends ErrorCode>(
  Class: new (code: ErrorCode, message: string, options?: TinyLlmErrorOptions) => TinyLlmError,
  codes: Record<C, readonly [status: number, type: ErrorRow['type']]>,
): Record<C, ErrorRow> {
  const entries = Object.entries(codes) as [C, readonly [number, ErrorRow['type']]][]
  return Object.fromEntries(
    entries.map(([code, [status, type]]) => [
      code,
      { create: (message, options) => new Class(code, message, options), status, type } satisfies ErrorRow,
    ]),
  ) as Record<C, ErrorRow>
}

/** Every code, with its class, HTTP status and OpenAI error type. */
export const ERROR_TABLE: Readonly<Record<ErrorCode, ErrorRow>> = {
  ...rows(InvalidRequestError, {
    ERR_TINYLLM_INVALID_REQUEST: [400, 'invalid_request_error'],
    ERR_TINYLLM_JSON: [400, 'invalid_request_error'],
    ERR_TINYLLM_ROUTE_CATALOGUE: [400, 'invalid_request_error'],
    ERR_TINYLLM_SAMPLING_PARAMETER: [400, 'invalid_request_error'],
  }),
  ...rows(GrammarError, {
    ERR_TINYLLM_GRAMMAR: [422, 'invalid_request_error'],
    ERR_TINYLLM_GRAMMAR_LIMIT: [422, 'invalid_request_error'],
    ERR_TINYLLM_GRAMMAR_STUCK: [422, 'invalid_request_error'],
    ERR_TINYLLM_REGEX: [422, 'invalid_request_error'],
    ERR_TINYLLM_SCHEMA: [422, 'invalid_request_error'],
    ERR_TINYLLM_SCHEMA_UNSUPPORTED: [422, 'invalid_request_error'],
  }),
  ...rows(TemplateError, { ERR_TINYLLM_TEMPLATE: [400, 'invalid_request_error'] }),
  ...rows(ContextLengthError, { ERR_TINYLLM_CONTEXT_LENGTH: [400, 'invalid_request_error'] }),
  ...rows(TokenizerError, {
    ERR_TINYLLM_TOKENIZER: [400, 'invalid_request_error'],
    ERR_TINYLLM_VOCABULARY: [500, 'server_error'],
  }),
  ...rows(ModelLoadError, {
    ERR_TINYLLM_MODEL_NOT_FOUND: [404, 'invalid_request_error'],
    ERR_TINYLLM_CPU: [500, 'server_error'],
    ERR_TINYLLM_DEVICE: [500, 'server_error'],
    ERR_TINYLLM_GGUF: [500, 'server_error'],
    ERR_TINYLLM_MODEL_INCONSISTENT: [500, 'server_error'],
    ERR_TINYLLM_MODEL_LOAD: [500, 'server_error'],
    ERR_TINYLLM_MODEL_OPEN: [500, 'server_error'],
    ERR_TINYLLM_MODEL_UNSUPPORTED: [500, 'server_error'],
    ERR_TINYLLM_OUT_OF_MEMORY: [500, 'server_error'],
    ERR_TINYLLM_THREADS: [500, 'server_error'],
  }),
  ...rows(OverloadedError, { ERR_TINYLLM_OVERLOADED: [429, 'rate_limit_error'] }),
  ...rows(InternalError, {
    ERR_TINYLLM_COMPUTE: [500, 'server_error'],
    ERR_TINYLLM_CONSTRAINT: [500, 'server_error'],
    ERR_TINYLLM_INTERNAL: [500, 'server_error'],
    ERR_TINYLLM_KERNEL_SHAPE: [500, 'server_error'],
    ERR_TINYLLM_LOGITS: [500, 'server_error'],
    ERR_TINYLLM_MODEL_INPUT: [500, 'server_error'],
    ERR_TINYLLM_OUT_OF_PAGES: [500, 'server_error'],
  }),
  ...rows(TinyLlmError, { ERR_TINYLLM_BACKEND: [502, 'server_error'] }),
  ERR_TINYLLM_ABORTED: {
    create: (message, options) => new AbortError(message, options),
    status: 499,
    type: 'invalid_request_error',
  },
  ERR_TINYLLM_ENGINE_CLOSED: {
    create: (message, options) => new EngineClosedError(message, options),
    status: 503,
    type: 'server_error',
  },
}

/** Makes the error that belongs to a code. An unknown code is a defect and comes out as an {@link InternalError}. */
export function errorFromCode(code: string, message: string, options: TinyLlmErrorOptions = {}): TinyLlmError {
  if (!Object.hasOwn(ERROR_TABLE, code))
    return new InternalError('ERR_TINYLLM_INTERNAL', `${message} (${code})`, options)
  return ERROR_TABLE[code as ErrorCode].create(message, options)
}

/** The HTTP status and OpenAI error type of anything that was thrown. */
export function httpStatusOf(error: unknown): { status: number; type: string } {
  const { status, type } = ERROR_TABLE[TinyLlmError.is(error) ? error.code : 'ERR_TINYLLM_INTERNAL']
  return { status, type }
}
