/**
 * The Hugging Face hub as a source of files.
 *
 * A file is known by what the hub says of it on `HEAD …/resolve/main/FILE`: `X-Linked-Etag`, the SHA-256 its storage
 * files it under, and `X-Linked-Size`. It is pulled with ranged requests into a partial file that a later attempt or a
 * later process goes on with; the hash runs along, and only a match is kept.
 * `HF_ENDPOINT` names another hub, `HF_TOKEN` is sent to the hub's own host only, `HF_HUB_OFFLINE=1` turns it off.
 */
import { createHash } from 'node:crypto'
import { closeSync, createReadStream, openSync, writeSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'
import { dropPartial, type Expected, partialPath } from './cache.js'
import { fetchHttp, readText } from './http.js'
import type { ProgressReport } from './progress.js'

/** Attempts in a row that bring no byte before a download is given up. */
const MAX_FRUITLESS = 4

export interface Hub {
  readonly endpoint: URL
  readonly token?: string | undefined
  readonly offline: boolean
}

/** The hub the environment describes. */
export function hubFromEnvironment(env: NodeJS.ProcessEnv = process.env): Hub {
  const endpoint = env.HF_ENDPOINT || 'https://huggingface.co'
  if (!URL.canParse(endpoint)) throw new Error(`HF_ENDPOINT is not a URL: ${endpoint}`)
  return {
    endpoint: new URL(endpoint),
    token: env.HF_TOKEN || undefined,
    offline: /^(1|true|yes|on)$/i.test(env.HF_HUB_OFFLINE ?? ''),
  }
}

const encodePath = (text: string): string => text.split('/').map(encodeURIComponent).join('/')

function urlOf(hub: Hub, where: string): URL {
  return new URL(where, hub.endpoint.href.endsWith('/') ? hub.endpoint : `${hub.endpoint.href}/`)
}

const fileUrl = (hub: Hub, repo: string, file: string): URL =>
  urlOf(hub, `${encodePath(repo)}/resolve/main/${encodePath(file)}`)

/** Why an answer is not what was asked for, in words that say what to do. */
function refusal(response: IncomingMessage, hub: Hub, what: string): Error {
  const { statusCode, headers } = response
  const said = headers['x-error-message']
  const because = typeof said === 'string' && said ? ` (${said})` : ''
  response.resume()
  switch (statusCode) {
    case 401:
      return new Error(
        hub.token
          ? `${what}: HF_TOKEN was refused${because}`
          : `${what} does not exist, or is private or gated: set HF_TOKEN to a token that may read it${because}`,
      )
    case 403:
      return new Error(
        `${what} is gated: accept its conditions on its page, and set HF_TOKEN to a token of that account${because}`,
      )
    case 404:
      return new Error(`${what} does not exist${because}`)
    case 429:
      return new Error(`${what}: the hub asks to slow down; try again later${because}`)
    default:
      return new Error(`${what}: the hub answered ${statusCode}${because}`)
  }
}

/** The names of a repository's files. */
export async function listFiles(hub: Hub, repo: string, signal?: AbortSignal): Promise<string[]> {
  const response = await fetchHttp(urlOf(hub, `api/models/${encodePath(repo)}`), { token: hub.token, signal })
  if (response.statusCode !== 200) throw refusal(response, hub, repo)
  const info = JSON.parse(await readText(response, 32 << 20)) as { siblings?: { rfilename?: unknown }[] }
  return (info.siblings ?? []).flatMap(({ rfilename }) => (typeof rfilename === 'string' ? [rfilename] : []))
}

/** What the hub says a file is: its size, and its SHA-256 where it says one. */
export async function describeFile(
  hub: Hub,
  repo: string,
  file: string,
  signal?: AbortSignal,
): Promise<{ size?: number; sha256?: string }> {
  const response = await fetchHttp(fileUrl(hub, repo, file), {
    method: 'HEAD',
    token: hub.token,
    signal,
    // The answer that leads to the storage host carries the description; renamed repositories redirect within the hub.
    follow: (answer, target) => !answer.headers['x-linked-etag'] && target.host === hub.endpoint.host,
  })
  response.resume()
  const { statusCode = 0, headers } = response
  if (statusCode >= 400 || statusCode < 200) throw refusal(response, hub, `${repo}/${file}`)
  const etag = String(headers['x-linked-etag'] ?? headers.etag ?? '').replace(/^W\/|"/g, '')
  const size = Number(headers['x-linked-size'] ?? (statusCode === 200 ? headers['content-length'] : Number.NaN))
  return {
    ...(Number.isSafeInteger(size) && { size }),
    ...(/^[0-9a-f]{64}$/i.test(etag) && { sha256: etag.toLowerCase() }),
  }
}

class WrongBytes extends Error {}
class Refused extends Error {}

/** One request for what is missing. Returns when the connection ends; throws when it breaks. */
async function pullOnce(
  url: URL,
  hub: Hub,
  partial: string,
  what: string,
  size: number,
  hash: ReturnType<typeof createHash>,
  from: number,
  onBytes: (count: number) => void,
  signal?: AbortSignal,
): Promise<void> {
  const response = await fetchHttp(url, {
    token: hub.token,
    signal,
    headers: from > 0 ? { range: `bytes=${from}-` } : {},
  })
  const { statusCode = 0, headers } = response
  let skip = 0
  if (statusCode === 200)
    skip = from // The server knows no ranges: what is here already goes by once more.
  else if (statusCode === 206) {
    const range = /^bytes (\d+)-/.exec(headers['content-range'] ?? '')
    if (Number(range?.[1]) !== from) throw new Refused(`${what}: the server answered with another range`)
  } else if (statusCode >= 500) throw refusal(response, hub, what)
  else throw new Refused(refusal(response, hub, what).message)
  const output = openSync(partial, 'a')
  let at = from - skip
  const take = (chunk: Buffer): void => {
    const fresh = chunk.subarray(Math.min(skip, chunk.length))
    skip -= chunk.length - fresh.length
    at += chunk.length
    if (at > size) throw new WrongBytes(`${what} is longer than the ${size} bytes announced`)
    if (fresh.length === 0) return
    writeSync(output, fresh)
    hash.update(fresh)
    onBytes(fresh.length)
  }
  try {
    // Taken as they come, and not by asynchronous iteration: when a connection breaks, what an iterator has not yet
    // been asked for is lost.
    await new Promise<void>((resolve, reject) => {
      response.on('data', (chunk: Buffer) => {
        try {
          take(chunk)
        } catch (error) {
          reject(error as Error)
          response.destroy()
        }
      })
      response.once('error', reject)
      response.once('close', resolve)
    })
  } finally {
    response.destroy()
    closeSync(output)
  }
}

/**
 * Pulls a file of the hub into its partial file, going on where an earlier pull stopped. On return the partial file
 * is whole and its hash is the expected one.
 */
export async function pullFromHub(
  hub: Hub,
  repo: string,
  file: string,
  target: string,
  expected: Expected,
  report: ProgressReport,
  signal?: AbortSignal,
): Promise<void> {
  const what = `${repo}/${file}`
  const url = fileUrl(hub, repo, file)
  const partial = partialPath(target, expected)
  let received = (await stat(partial).catch(() => undefined))?.size ?? 0
  if (received > expected.size) {
    await dropPartial(target, expected)
    received = 0
  }
  const hash = createHash('sha256')
  if (received > 0) {
    for await (const chunk of createReadStream(partial, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  }
  report(received)
  for (let fruitless = 0; received < expected.size;) {
    const before = received
    let failure: unknown = new Error(`${what}: the connection was closed after ${received} of ${expected.size} bytes`)
    try {
      const onBytes = (count: number): void => report((received += count))
      await pullOnce(url, hub, partial, what, expected.size, hash, received, onBytes, signal)
    } catch (error) {
      signal?.throwIfAborted()
      if (error instanceof WrongBytes) await dropPartial(target, expected)
      if (error instanceof WrongBytes || error instanceof Refused || isLocal(error)) throw error
      failure = error
    }
    if (received >= expected.size) break
    fruitless = received > before ? 0 : fruitless + 1
    if (fruitless >= MAX_FRUITLESS || isUnreachable(failure)) throw failure
    await delay(100 << fruitless, undefined, signal ? { signal } : {})
  }
  const sha256 = hash.digest('hex')
  if (sha256 === expected.sha256) return
  await dropPartial(target, expected)
  throw new Error(`${what} has SHA-256 ${sha256}, not the expected ${expected.sha256}`)
}

/** An error of this machine's disk, which trying again would not mend. */
function isLocal(error: unknown): boolean {
  return ['ENOSPC', 'EACCES', 'EROFS', 'EDQUOT', 'EIO'].includes((error as NodeJS.ErrnoException).code ?? '')
}

/** There is nobody there: the next source is better than another try. */
function isUnreachable(error: unknown): boolean {
  const { code = '', message = '' } = error as NodeJS.ErrnoException
  return (
    ['ENOTFOUND', 'EAI_AGAIN', 'ECONNREFUSED', 'ENETUNREACH', 'EHOSTUNREACH'].includes(code) ||
    message.startsWith('no connection')
  )
}
