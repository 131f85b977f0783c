/**
 * HTTP GET and HEAD as a download needs them: a deadline for connecting that is apart from the one for silence, and
 * redirects followed by hand, so that a token goes to the host it belongs to and to no other.
 */
import { type IncomingMessage, request as requestPlain } from 'node:http'
import { request as requestSecure } from 'node:https'

/** Milliseconds to reach a host (name, TCP and TLS together). */
export const CONNECT_MS = 3_000
/** Milliseconds without a byte after which a connection counts as cut. */
const SILENCE_MS = 30_000
const MAX_REDIRECTS = 8

export interface HttpRequest {
  readonly method?: 'GET' | 'HEAD'
  readonly headers?: Record<string, string>
  /** Sent as a bearer token to `url`'s own origin only. */
  readonly token?: string | undefined
  readonly signal?: AbortSignal | undefined
  /** Redirects for which this returns false are returned instead of followed. */
  readonly follow?: (response: IncomingMessage, target: URL) => boolean
}

function once(url: URL, { method = 'GET', headers, signal }: HttpRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const send = url.protocol === 'https:' ? requestSecure : requestPlain
    // `agent: false` gives each request a connection of its own: a reused one has no connecting to time.
    const request = send(url, { method, headers: headers ?? {}, agent: false, ...(signal && { signal }) })
    const timer = setTimeout(() => {
      request.destroy(new Error(`no connection to ${url.host} within ${CONNECT_MS / 1000} s`))
    }, CONNECT_MS)
    request.on('socket', (socket) => {
      socket.once(url.protocol === 'https:' ? 'secureConnect' : 'connect', () => clearTimeout(timer))
    })
    request.setTimeout(SILENCE_MS, () =>
      request.destroy(new Error(`${url.host} sent nothing for ${SILENCE_MS / 1000} s`)),
    )
    request.once('error', (error) => {
      clearTimeout(timer)
      reject(error)
    })
    request.once('response', resolve)
    request.end()
  })
}

/** Sends a request and follows redirects; resolves when the headers are there, whatever the status. */
export async function fetchHttp(start: URL, request: HttpRequest = {}): Promise<IncomingMessage> {
  let url = start
  for (let hop = 0; hop <= MAX_REDIRECTS; hop += 1) {
    const authorization: Record<string, string> =
      request.token && url.origin === start.origin ? { authorization: `Bearer ${request.token}` } : {}
    const headers = { 'user-agent': 'tinyllm-engine', ...request.headers, ...authorization }
    const response = await once(url, { ...request, headers })
    const { statusCode = 0 } = response
    const location = response.headers.location
    if (statusCode < 300 || statusCode > 399 || !location) return response
    const target = new URL(location, url)
    if (request.follow && !request.follow(response, target)) return response
    response.resume()
    if (!/^https?:$/.test(target.protocol) || (url.protocol === 'https:' && target.protocol === 'http:'))
      throw new Error(`${url.host} redirects to ${target.protocol}//${target.host}, which is not followed`)
    url = target
  }
  throw new Error(`more than ${MAX_REDIRECTS} redirects from ${start.host}`)
}

/** The body as text, cut off with an error at `limit` bytes. */
export async function readText(response: IncomingMessage, limit: number): Promise<string> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of response as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > limit) throw new Error(`an answer of more than ${limit} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}
