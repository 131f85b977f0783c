/**
 * The HTTP server: an Express app over an engine. It validates, renders, parses and writes; inference is on the
 * engine's thread. Loopback by default, no CORS by default, one error body for everything.
 */
import { createServer as createHttpServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import express, {
  type ErrorRequestHandler,
  type Express,
  type Request,
  type RequestHandler,
  type Response,
} from 'express'
import { pino, type Logger } from 'pino'
import { pinoHttp } from 'pino-http'
import type { TextEngine } from '../chat/answer.js'
import { InvalidRequestError } from '../errors.js'
import { readBody, type Body } from '../openai/body.js'
import { profiles, type Profile } from '../openai/profile.js'
import {
  readChatRequest,
  readCompletionRequest,
  readDetokenizeRequest,
  readTokenizeRequest,
  type ChatRequest,
  type CompletionRequest,
} from '../openai/request.js'
import { badRequest, ToolError } from '../openai/tool_error.js'
import { newId } from '../openai/wire.js'
import { allowOrigins, requireKey } from './access.js'
import { Admission } from './admission.js'
import { serveChat, type Exchange } from './chat_route.js'
import { serveCompletion } from './completions_route.js'
import { docsPage, openApiDocument } from './document.js'
import { shuttingDown, toToolError, type FailureContext } from './failure.js'
import { SseWriter, systemClock, type Clock } from './sse.js'

export interface ServerOptions {
  readonly engine: TextEngine
  /** What of the OpenAI surface is served. Default: `full`. */
  readonly profile?: Profile['name']
  /** Requests must carry it as a bearer token. Default: none is needed. */
  readonly apiKey?: string
  /** The model's id on the wire. Default: the name the engine was loaded by, which works beside an alias too. */
  readonly alias?: string
  /** Requests that run at the same time. Default: 32. */
  readonly parallel?: number
  /** Requests that may wait beyond those; one more is answered 429. Default: 256. */
  readonly maxQueue?: number
  /** Origins whose pages may read answers; `true` is all. Default: none. */
  readonly cors?: boolean | readonly string[]
  /** Default: nothing is logged. Authorization headers never are. */
  readonly logger?: Logger
  /** Folder with `swagger-ui.css` and `swagger-ui-bundle.js`, for the page at `/docs`. Default: no page. */
  readonly docsFolder?: string
  /** The version `/openapi.json` tells. Default: `0.0.0`. */
  readonly version?: string
  /** Timers; for tests. */
  readonly clock?: Clock
}

export interface ListenOptions {
  /** Default: 8080; 0 picks a free one. */
  readonly port?: number
  /** Default: 127.0.0.1, this machine only. */
  readonly host?: string
}

export interface CloseOptions {
  /** How long running requests may go on before they are cut, in milliseconds. Default: 10000. */
  readonly deadlineMs?: number
}

export interface Server {
  readonly app: Express
  listen(options?: ListenOptions): Promise<{ readonly host: string; readonly port: number; readonly url: string }>
  /** Takes no new requests, waits for the running ones up to the deadline, then cuts them. The engine stays open. */
  close(options?: CloseOptions): Promise<void>
}

const BODY_LIMIT = 8 * 1024 * 1024
const CLOSE_DEADLINE_MS = 10_000
/** The fields an error of the engine belongs to. */
const chatFailures = ({ tools }: ChatRequest): FailureContext => ({
  grammarParam: tools.choice === 'none' ? 'response_format' : 'tools',
  promptParam: 'messages',
})
const completionFailures = (): FailureContext => ({ grammarParam: 'grammar', promptParam: 'prompt' })
const OTHER: FailureContext = { grammarParam: 'grammar', promptParam: 'content' }

export function createServer(options: ServerOptions): Server {
  if (options.apiKey === '') {
    // Every request without a key would have the right one.
    throw new InvalidRequestError('apiKey must not be empty', { details: { param: 'apiKey' } })
  }
  const { engine, clock = systemClock } = options
  const profile = profiles[options.profile ?? 'full']
  const model = options.alias ?? engine.info.name
  const names = new Set([model, engine.info.name])
  const started = Math.floor(clock.now() / 1000)
  const admission = new Admission({ running: options.parallel ?? 32, waiting: options.maxQueue ?? 256 })
  // Neither keys nor bodies belong into a log.
  const redact = ['req.headers.authorization', 'req.headers.cookie', 'req.headers["x-api-key"]']
  const logger = (options.logger ?? pino({ enabled: false })).child({}, { redact })

  const app = express()
  const http = createHttpServer(app)
  app.disable('x-powered-by')
  app.set('etag', false)
  app.use(pinoHttp({ logger }))
  app.use((_req, response, next) => {
    // A closing server ends connections that clients would keep for later, as soon as they have their answer.
    response.on('close', () => {
      if (admission.closing) setImmediate(() => http.closeIdleConnections())
    })
    next()
  })
  const origins = options.cors ?? false
  if (origins !== false) app.use(allowOrigins(origins))

  const modelObject = { id: model, object: 'model' as const, created: started, owned_by: 'tinyllm-engine' }
  const checkModel = (name: string | null) => {
    if (name !== null && !names.has(name)) {
      throw new ToolError(404, 'model', 'model_not_found', `the model "${name}" is not served here; "${model}" is`)
    }
  }
  const body = express.raw({ type: () => true, limit: BODY_LIMIT })
  const key: RequestHandler = options.apiKey === undefined ? (_req, _res, next) => next() : requireKey(options.apiKey)

  /** A route that generates: it waits for its turn and stops when the client goes away. */
  function generating<R extends ChatRequest | CompletionRequest>(
    prefix: 'chatcmpl' | 'cmpl',
    contextOf: (request: R) => FailureContext,
    read: (body: Body, profile: Profile) => R,
    serve: (exchange: Exchange, request: R) => Promise<void>,
  ): RequestHandler {
    const run = async (req: Request, response: Response) => {
      const request = read(bodyOf(req), profile)
      response.locals['failure'] = contextOf(request)
      checkModel(request.model)
      const head = { id: newId(prefix), created: Math.floor(clock.now() / 1000), model }
      response.setHeader('x-request-id', head.id)
      if (profile.reportIgnored && request.ignored.length > 0) {
        response.setHeader('x-tinyllm-ignored', ignoredHeader(request.ignored))
        req.log.info({ ignored: request.ignored.slice(0, MOST_NAMED) }, 'unknown request fields were passed over')
      }
      const work = new AbortController()
      const leave = () => {
        work.abort(new ToolError(499, null, null, 'the client went away'))
      }
      response.on('close', leave)
      const lease = await admission.enter(work)
      let sse: SseWriter | null = null
      try {
        const stream = () => (sse = new SseWriter(response, clock))
        await serve({ engine, response, head, work, stream }, request)
      } catch (error) {
        const writer = sse as SseWriter | null
        writer?.stop()
        // What stopped the work says more than what the engine makes of being stopped.
        throw work.signal.aborted && work.signal.reason instanceof Error ? work.signal.reason : error
      } finally {
        response.off('close', leave)
        lease[Symbol.dispose]()
      }
    }
    return (req, response, next) => {
      run(req, response).catch((error: unknown) => {
        failed(error, req, response, next)
      })
    }
  }

  app.get('/healthz', (_req, response) => {
    response.json({ status: 'ok' })
  })
  app.get('/readyz', (_req, response) => {
    if (admission.closing) throw shuttingDown()
    response.json({ status: 'ready' })
  })
  let document: object | null = null
  app.get('/openapi.json', (_req, response) => {
    response.json((document ??= openApiDocument({ version: options.version ?? '0.0.0', model })))
  })
  if (options.docsFolder !== undefined) app.use('/docs', docsPage(options.docsFolder))

  app.get('/v1/models', key, (_req, response) => {
    response.json({ object: 'list', data: [modelObject] })
  })
  // Ids of models may hold slashes.
  app.get('/v1/models/*id', key, (req, response) => {
    const parts = (req.params as { id?: string | string[] }).id ?? []
    checkModel(typeof parts === 'string' ? parts : parts.join('/'))
    response.json(modelObject)
  })
  app.post('/v1/chat/completions', key, body, generating('chatcmpl', chatFailures, readChatRequest, serveChat))
  app.post('/v1/completions', key, body, generating('cmpl', completionFailures, readCompletionRequest, serveCompletion))
  app.post('/tokenize', key, body, (req, response) => {
    const { content, special } = readTokenizeRequest(bodyOf(req), profile)
    response.json({ tokens: Array.from(engine.tokenize(content, { special })) })
  })
  app.post('/detokenize', key, body, (req, response) => {
    const { tokens } = readDetokenizeRequest(bodyOf(req), profile)
    response.locals['failure'] = { ...OTHER, promptParam: 'tokens' } satisfies FailureContext
    response.json({ content: engine.detokenize(tokens) })
  })
  app.use((req, _response, next) => {
    next(new ToolError(404, null, 'not_found', `there is nothing at ${req.method} ${req.path}`))
  })
  app.use(failed)

  let closing: Promise<void> | null = null

  return {
    app,
    async listen({ port = 8080, host = '127.0.0.1' } = {}) {
      await new Promise<void>((resolve, reject) => {
        http.once('error', reject)
        http.listen(port, host, () => {
          http.off('error', reject)
          resolve()
        })
      })
      const address = http.address() as AddressInfo
      const shown = address.family === 'IPv6' ? `[${address.address}]` : address.address
      return { host: address.address, port: address.port, url: `http://${shown}:${address.port}` }
    },
    close({ deadlineMs = CLOSE_DEADLINE_MS } = {}) {
      closing ??= (async () => {
        const closed = http.listening ? new Promise((resolve) => http.close(resolve)) : null
        let timer = clock.setTimeout(() => {
          admission.cut()
          // A reader that does not take the last bytes must not keep the server.
          timer = clock.setTimeout(() => {
            http.closeAllConnections()
          }, LAST_BYTES_MS)
        }, deadlineMs)
        await Promise.all([admission.close(), closed])
        clock.clearTimeout(timer)
      })()
      return closing
    },
  }
}

/** How long the last bytes of answers may take to leave. */
const LAST_BYTES_MS = 1000
/** Unknown fields that the header and the log name at most. */
const MOST_NAMED = 32

function ignoredHeader(names: readonly string[]): string {
  return names
    .slice(0, MOST_NAMED)
    .map((name) => encodeURIComponent(name.slice(0, 64).replace(/\p{Surrogate}/gu, '\ufffd')))
    .join(', ')
}

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

function bodyOf(req: Request): Body {
  const bytes: unknown = req.body
  let text: string
  try {
    text = Buffer.isBuffer(bytes) ? decoder.decode(bytes) : ''
  } catch (error) {
    throw badRequest(null, 'the body is not UTF-8', error)
  }
  return readBody(text)
}

/** Writes any error as the one error body, or as the last event of a stream that has begun. */
const failed: ErrorRequestHandler = (error: unknown, req: Request, response: Response, _next) => {
  const context = (response.locals['failure'] as FailureContext | undefined) ?? OTHER
  const failure = toToolError(error, context)
  if (failure.status >= 500) req.log.error({ err: failure.cause ?? failure }, failure.message)
  if (response.destroyed || response.writableEnded) return
  if (response.headersSent) {
    response.end(`data: ${JSON.stringify(failure.toApiError())}\n\n`)
    return
  }
  if (failure.retryAfter !== null) response.setHeader('retry-after', failure.retryAfter)
  if (failure.status === 401) response.setHeader('www-authenticate', 'Bearer')
  response.status(failure.status).json(failure.toApiError())
}
