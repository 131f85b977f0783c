/**
 * Every error becomes the one error body here. What the client can act on keeps its words; a defect says nothing
 * about its inside (it is in the log).
 */
import { types } from 'node:util'
import { httpStatusOf, TinyLlmError } from '../errors.js'
import { ToolError } from '../openai/tool_error.js'

/** Where in the request an engine's error belongs. */
export interface FailureContext {
  /** The field a grammar came from. */
  readonly grammarParam: string
  /** The field the prompt came from. */
  readonly promptParam: string
}

const RETRY_SECONDS = 1

export function toToolError(error: unknown, context: FailureContext): ToolError {
  if (error instanceof ToolError) return error
  if (TinyLlmError.is(error)) return fromTinyLlm(error, context)
  return fromBodyReader(error) ?? new ToolError(500, null, 'internal_error', 'the server failed', { cause: error })
}

function fromTinyLlm(error: TinyLlmError, context: FailureContext): ToolError {
  const { message } = error
  const options = { cause: error }
  switch (error.name) {
    case 'ContextLengthError':
      return new ToolError(400, context.promptParam, 'context_length_exceeded', message, options)
    case 'GrammarError':
      return new ToolError(422, context.grammarParam, 'unsupported_parameter', message, options)
    case 'TemplateError':
    case 'TokenizerError':
      return new ToolError(400, context.promptParam, null, message, options)
    case 'InvalidRequestError':
      return new ToolError(400, snakeCase(error.details.param ?? null), null, message, options)
    case 'OverloadedError':
      return overloaded(message, error)
    case 'EngineClosedError':
    case 'AbortError':
      return shuttingDown(error)
    default: {
      const { status } = httpStatusOf(error)
      return new ToolError(status, null, 'internal_error', 'the server failed', options)
    }
  }
}

export function overloaded(message: string, cause?: unknown): ToolError {
  return new ToolError(429, null, 'rate_limit_exceeded', message, { cause, retryAfter: RETRY_SECONDS })
}

export function shuttingDown(cause?: unknown): ToolError {
  return new ToolError(503, null, 'shutting_down', 'the server is shutting down', { cause, retryAfter: RETRY_SECONDS })
}

/** Errors of Express's body reader carry a status and a type of their own, those of its path reader a status. */
function fromBodyReader(error: unknown): ToolError | null {
  if (!types.isNativeError(error) || !('status' in error)) return null
  const isPath = error.name === 'URIError'
  if (!isPath && !('type' in error)) return null
  const { status } = error
  if (typeof status !== 'number' || status < 400 || status > 499) return null
  if (status === 413)
    return new ToolError(413, null, 'body_too_large', 'the body is larger than 8 MiB', { cause: error })
  const what = isPath ? 'the path' : 'the body'
  return new ToolError(status, null, null, `${what} could not be read: ${error.message}`, { cause: error })
}

/** Engine requests are spelled in camel case, the wire is not. */
function snakeCase(name: string | null): string | null {
  return name === null ? null : name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}
