/**
 * The one error of the HTTP surface: what is wrong with a request, in the words of the OpenAI error object. Every
 * other error becomes one of these at the server's edge (see server/failure.ts).
 */

export type ApiErrorType = 'invalid_request_error' | 'permission_error' | 'rate_limit_error' | 'server_error'

/** The error body on the wire; all four members are always there. */
export interface ApiError {
  readonly error: {
    readonly message: string
    readonly type: ApiErrorType
    readonly param: string | null
    readonly code: string | null
  }
}

export class ToolError extends Error {
  override readonly name = 'ToolError'

  constructor(
    /** The HTTP status. */
    readonly status: number,
    /** The request member that is wrong (`tools[0].function.name`); null when it is the body as a whole. */
    readonly param: string | null,
    /** What a program may look at: `unsupported_parameter` with 422, mostly null with 400. */
    readonly code: string | null,
    message: string,
    options?: ErrorOptions & {
      /** Seconds after which another try makes sense. */
      readonly retryAfter?: number
    },
  ) {
    super(message, options)
    this.retryAfter = options?.retryAfter ?? null
  }

  readonly retryAfter: number | null

  get type(): ApiErrorType {
    if (this.status >= 500) return 'server_error'
    if (this.status === 403) return 'permission_error'
    return this.status === 429 ? 'rate_limit_error' : 'invalid_request_error'
  }

  toApiError(): ApiError {
    return { error: { message: this.message, type: this.type, param: this.param, code: this.code } }
  }
}

/** The request is malformed (400). */
export function badRequest(param: string | null, message: string, cause?: unknown): ToolError {
  return new ToolError(400, param, null, message, cause === undefined ? {} : { cause })
}

/** The request is well formed and asks for what is not served (422). */
export function unsupported(param: string, message: string, cause?: unknown): ToolError {
  return new ToolError(422, param, 'unsupported_parameter', message, cause === undefined ? {} : { cause })
}
