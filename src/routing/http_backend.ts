/**
 * A backend that speaks to an OpenAI-compatible server: this project's own, llama-server, vLLM, KoboldCpp, …
 *
 * Servers differ in how much of a schema they enforce, and some drop it without a word. Nothing here trusts them: the
 * loop parses and validates every reply. What a server refuses (a schema answered with 400, say) is an error of the run;
 * a guarantee is never given up to get an answer.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createParser } from 'eventsource-parser'
import { TinyLlmError } from '../errors.js'
import { throwIfAborted } from './abort.js'
import {
  BackendSettings,
  ROUTE_SCHEMA_NAME,
  type AgentToolCall,
  type Backend,
  type Completion,
  type CompletionRequest,
  type SettingsValues,
} from './backend.js'
import { isRecord, type JsonSchema } from './catalogue.js'
import { compilable } from './grammar.js'

/** Options of `httpBackend`. */
export interface HttpBackendOptions {
  /** Where the API is, its version segment included: `http://127.0.0.1:8080/v1`. */
  baseUrl: string
  /** The model's name as the server knows it. */
  model: string
  /** Sent as a bearer token. Default: none. */
  apiKey?: string
  /** Sent with every request. Default: none. */
  headers?: Record<string, string>
  /** Type: milliseconds. Default: 600,000. The longest a request may take, its retries and its whole reply included. */
  timeoutMs?: number
  /** Default: 4. How often a request answered 429 or 503 is made again. */
  maxRetries?: number
  /** Type: milliseconds. Default: 30,000. A server that asks for a longer wait than this is not waited for. */
  maxRetryDelayMs?: number
  /** Default: `true`. Ask for the reply as a stream, so that an abort reaches the server while it writes. */
  stream?: boolean
  settings?: SettingsValues
}

/** A server that could not be reached, refused a request, or answered with something that is no chat completion. */
export class BackendError extends TinyLlmError {
  /** The HTTP status, where there was one. */
  readonly status: number | undefined

  constructor(message: string, options: { status?: number; cause?: unknown } = {}) {
    super('ERR_TINYLLM_BACKEND', message, options.cause === undefined ? {} : { cause: options.cause })
    this.name = 'BackendError'
    this.status = options.status
  }
}

/** Makes a backend out of an OpenAI-compatible server. */
export function httpBackend(options: HttpBackendOptions): Backend {
  return new HttpBackend(options, new BackendSettings(options.settings))
}

class HttpBackend implements Backend {
  readonly settings: BackendSettings
  readonly #options: HttpBackendOptions

  constructor(options: HttpBackendOptions, settings: BackendSettings) {
    this.#options = options
    this.settings = settings
  }

  clone(changes: { settings?: BackendSettings } = {}): Backend {
    return new HttpBackend(this.#options, changes.settings ?? this.settings)
  }

  async complete(request: CompletionRequest): Promise<Completion> {
    const { signal } = request
    throwIfAborted(signal)
    const deadline = AbortSignal.timeout(this.#options.timeoutMs ?? 600_000)
    const either = signal === undefined ? deadline : AbortSignal.any([signal, deadline])
    try {
      const response = await this.#send(JSON.stringify(this.#body(request)), either, deadline)
      const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true
      const reply = isStream ? await readStream(response, request.onText) : await readWhole(response, request.onText)
      return { ...reply, cut: reply.cut || this.#spent(reply) }
    } catch (error) {
      throwIfAborted(signal)
      if (deadline.aborted) {
        throw new BackendError(`no whole reply within ${this.#options.timeoutMs ?? 600_000} ms`, { cause: error })
      }
      if (error instanceof TinyLlmError) throw error
      throw new BackendError(`the server could not be reached: ${messageOf(error)}`, { cause: error })
    }
  }

  /** A reply as long as its budget was cut, also where the JSON happened to close and the server says `stop`. */
  #spent(reply: Completion): boolean {
    const { maxTokens } = this.settings
    return maxTokens !== undefined && reply.usage !== undefined && reply.usage.completionTokens >= maxTokens
  }

  #body({ messages, tools, seed, temperature }: CompletionRequest): Record<string, unknown> {
    const { jsonSchema, jsonSchemaName, maxTokens } = this.settings
    const stream = this.#options.stream ?? true
    // Members without a value are left out by JSON.stringify.
    return {
      model: this.#options.model,
      messages,
      tools: tools === undefined || tools.length === 0 ? undefined : tools,
      max_tokens: maxTokens,
      temperature: temperature ?? this.settings.temperature,
      seed,
      response_format:
        jsonSchema === undefined
          ? undefined
          : {
              type: 'json_schema',
              json_schema: {
                name: jsonSchemaName ?? ROUTE_SCHEMA_NAME,
                strict: true,
                schema: compilable(jsonSchema as JsonSchema),
              },
            },
      stream,
      stream_options: stream ? { include_usage: true } : undefined,
    }
  }

  async #send(body: string, signal: AbortSignal, deadline: AbortSignal): Promise<Response> {
    const { baseUrl, apiKey, headers, maxRetries = 4, maxRetryDelayMs = 30_000 } = this.#options
    const url = `${baseUrl.replace(/\/+$/, '')}/chat/completions`
    for (let attempt = 0; ; attempt += 1) {
      const response = await fetch(url, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }),
          ...headers,
        },
        body,
        signal,
      })
      if (response.ok) return response
      const text = await response.text()
      const busy = response.status === 429 || response.status === 503
      const delay = retryDelay(response.headers.get('retry-after'), attempt)
      if (!busy || attempt >= maxRetries || delay > maxRetryDelayMs || deadline.aborted) {
        throw new BackendError(`the server answered ${response.status}: ${errorMessage(text)}`, {
          status: response.status,
        })
      }
      await sleep(delay, undefined, { signal })
    }
  }
}

/** Milliseconds to wait: what the server asks for (seconds or a date), else 0.5 s doubled with every attempt. */
function retryDelay(header: string | null, attempt: number): number {
  const fallback = 500 * 2 ** attempt
  if (header === null) return fallback
  if (/^\d+$/.test(header.trim())) return Number(header) * 1000
  const date = Date.parse(header)
  return Number.isNaN(date) ? fallback : Math.max(0, date - Date.now())
}

async function readWhole(response: Response, onText?: (piece: string) => void): Promise<Completion> {
  const body = parseObject(await response.text())
  const choice = Array.isArray(body.choices) ? (body.choices[0] as unknown) : undefined
  if (!isRecord(choice) || !isRecord(choice.message)) throw new BackendError('the reply has no choices[0].message')
  const { content } = choice.message
  const text = typeof content === 'string' ? content : ''
  if (text !== '') onText?.(text)
  const toolCalls = Array.isArray(choice.message.tool_calls) ? choice.message.tool_calls.map(readCall) : []
  return { text, toolCalls, cut: choice.finish_reason === 'length', ...readUsage(body.usage) }
}

async function readStream(response: Response, onText?: (piece: string) => void): Promise<Completion> {
  if (response.body === null) throw new BackendError('the stream has no body')
  let text = ''
  let finish: unknown
  let usage: Pick<Completion, 'usage'> = {}
  const calls: AgentToolCall[] = []
  const parser = createParser({
    maxBufferSize: 16 * 1024 * 1024,
    onEvent({ data }) {
      if (data === '[DONE]') return
      const chunk = parseObject(data)
      if (chunk.error !== undefined) throw new BackendError(`the stream broke off: ${errorMessage(data)}`)
      if (isRecord(chunk.usage)) usage = readUsage(chunk.usage)
      const choice = Array.isArray(chunk.choices) ? (chunk.choices[0] as unknown) : undefined
      if (!isRecord(choice)) return
      if (typeof choice.finish_reason === 'string') finish = choice.finish_reason
      if (!isRecord(choice.delta)) return
      if (typeof choice.delta.content === 'string' && choice.delta.content !== '') {
        text += choice.delta.content
        onText?.(choice.delta.content)
      }
      if (Array.isArray(choice.delta.tool_calls)) choice.delta.tool_calls.forEach((delta) => addDelta(calls, delta))
    },
  })
  const decoder = new TextDecoder()
  for await (const bytes of response.body as unknown as AsyncIterable<Uint8Array>) {
    parser.feed(decoder.decode(bytes, { stream: true }))
  }
  // A connection can close politely in mid-reply; without the last chunk there is no telling what is missing.
  if (finish === undefined) throw new BackendError('the stream ended before its last chunk')
  return { text, toolCalls: calls.filter((call) => call !== undefined), cut: finish === 'length', ...usage }
}

function addDelta(calls: AgentToolCall[], delta: unknown): void {
  if (!isRecord(delta)) return
  const index = typeof delta.index === 'number' && delta.index >= 0 ? delta.index : 0
  const part = isRecord(delta.function) ? delta.function : {}
  const call = (calls[index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } })
  if (typeof delta.id === 'string' && call.id === '') call.id = delta.id
  if (typeof part.name === 'string' && call.function.name === '') call.function.name = part.name
  if (typeof part.arguments === 'string') call.function.arguments += part.arguments
}

function readCall(value: unknown): AgentToolCall {
  const call = isRecord(value) ? value : {}
  const part = isRecord(call.function) ? call.function : {}
  return {
    id: typeof call.id === 'string' ? call.id : '',
    type: 'function',
    function: {
      name: typeof part.name === 'string' ? part.name : '',
      // Some servers send the arguments as an object.
      arguments: typeof part.arguments === 'string' ? part.arguments : JSON.stringify(part.arguments ?? {}),
    },
  }
}

function readUsage(value: unknown): Pick<Completion, 'usage'> {
  if (!isRecord(value) || typeof value.completion_tokens !== 'number') return {}
  const promptTokens = typeof value.prompt_tokens === 'number' ? value.prompt_tokens : 0
  return { usage: { promptTokens, completionTokens: value.completion_tokens } }
}

function parseObject(text: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (cause) {
    throw new BackendError('the reply is not JSON', { cause })
  }
  if (!isRecord(value)) throw new BackendError('the reply is not a JSON object')
  return value
}

/** The message of an error body in OpenAI's form, or the start of whatever came instead. */
function errorMessage(text: string): string {
  try {
    const body: unknown = JSON.parse(text)
    if (isRecord(body)) {
      if (isRecord(body.error) && typeof body.error.message === 'string') return body.error.message
      if (typeof body.error === 'string') return body.error
      if (typeof body.message === 'string') return body.message
    }
  } catch {
    // Not JSON: a proxy's page, say.
  }
  return text.slice(0, 200)
}

function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause instanceof Error ? error.cause.message : error.message
}
