/** A hub on the loopback interface that misbehaves on request. */
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export const sha256Of = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')

export interface Behaviour {
  /** Sends this many bytes of each answer, then cuts the connection; used up one by one. */
  cuts: number[]
  /** Answers a file request with this status. */
  status?: number
  /** Said in X-Error-Message with `status`. */
  message?: string
  /** Serves files from another origin, as the real hub does. */
  storage?: string
  /** Ignores ranges. */
  noRanges?: boolean
  /** Announces this hash instead of the true one. */
  announced?: string
  /** Says nothing of the hash. */
  silent?: boolean
  /** Waits for this before sending a file's bytes. */
  gate?: Promise<void>
}

export interface SeenRequest {
  readonly method: string
  readonly url: string
  readonly range: string | undefined
  readonly authorization: string | undefined
}

export interface FakeHub {
  readonly url: string
  readonly seen: SeenRequest[]
  readonly behaviour: Behaviour
  close(): Promise<void>
}

/** `files` maps `owner/repo/file` to its bytes. */
export async function startFakeHub(files: Record<string, Buffer>): Promise<FakeHub> {
  const seen: SeenRequest[] = []
  const behaviour: Behaviour = { cuts: [] }

  function answer(request: IncomingMessage, response: ServerResponse): void {
    const { method = '', url = '', headers } = request
    seen.push({ method, url, range: headers.range, authorization: headers.authorization })
    const path = decodeURIComponent(url)
    const listing = /^\/api\/models\/([^/]+\/[^/]+)$/.exec(path)
    if (listing) {
      const prefix = `${listing[1]}/`
      const siblings = Object.keys(files)
        .filter((name) => name.startsWith(prefix))
        .map((name) => ({ rfilename: name.slice(prefix.length) }))
      response.writeHead(siblings.length > 0 ? 200 : 404, { 'content-type': 'application/json' })
      response.end(JSON.stringify({ siblings }))
      return
    }
    const stored = /^\/storage\/(.+)$/.exec(path)?.[1]
    const named = /^\/([^/]+\/[^/]+)\/resolve\/main\/(.+)$/.exec(path)
    const name = stored ?? `${named?.[1]}/${named?.[2]}`
    const bytes = files[name]
    if (behaviour.status) {
      response.writeHead(behaviour.status, behaviour.message ? { 'x-error-message': behaviour.message } : {}).end()
      return
    }
    if (!bytes) {
      response.writeHead(404).end()
      return
    }
    const described = behaviour.silent
      ? {}
      : { 'x-linked-etag': `"${behaviour.announced ?? sha256Of(bytes)}"`, 'x-linked-size': String(bytes.length) }
    if (behaviour.storage && stored === undefined) {
      response.writeHead(302, { ...described, location: `${behaviour.storage}/storage/${name}` }).end()
      return
    }
    const from = behaviour.noRanges ? 0 : Number(/^bytes=(\d+)-$/.exec(headers.range ?? '')?.[1] ?? 0)
    const body = bytes.subarray(from)
    response.writeHead(from > 0 ? 206 : 200, {
      ...(stored === undefined && described),
      'content-length': String(body.length),
      ...(from > 0 && { 'content-range': `bytes ${from}-${bytes.length - 1}/${bytes.length}` }),
    })
    if (method === 'HEAD') {
      response.end()
      return
    }
    const cut = behaviour.cuts.shift()
    void (behaviour.gate ?? Promise.resolve()).then(() => {
      if (cut === undefined) response.end(body)
      else response.write(body.subarray(0, cut), () => response.destroy())
    })
  }

  const server: Server = createServer(answer)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seen,
    behaviour,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
