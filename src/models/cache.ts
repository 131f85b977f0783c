/**
 * The cache folder, and how a file in it is known to be whole.
 *
 * Beside each model `file.gguf` lies a record `file.gguf.json` with the size, the SHA-256 and the modification time
 * the file had when its bytes were last hashed. A file whose size and time still agree is taken at its word (one
 * `stat`, so loading stays instant); any other is hashed again, and one that does not match is pulled anew. The record
 * is written before the file gets its name, so a file under its final name is always complete.
 */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import path from 'node:path'

/** What a file must be. */
export interface Expected {
  /** Bytes. */
  readonly size: number
  /** Lower-case hex. */
  readonly sha256: string
}

interface CacheRecord extends Expected {
  readonly mtimeMs: number
}

/** `TINYLLM_CACHE`, else the folder the platform keeps caches in. */
export function cacheFolder(
  env: NodeJS.ProcessEnv = process.env,
  platform: NodeJS.Platform = process.platform,
  home: string = homedir(),
): string {
  if (env.TINYLLM_CACHE) return path.resolve(env.TINYLLM_CACHE)
  if (platform === 'win32') return path.join(env.LOCALAPPDATA || path.join(home, 'AppData', 'Local'), 'tinyllm')
  if (platform === 'darwin') return path.join(home, 'Library', 'Caches', 'tinyllm')
  // The XDG specification: relative paths are invalid and to be ignored.
  const xdg = env.XDG_CACHE_HOME && path.isAbsolute(env.XDG_CACHE_HOME) ? env.XDG_CACHE_HOME : path.join(home, '.cache')
  return path.join(xdg, 'tinyllm')
}

async function readRecord(file: string): Promise<CacheRecord | undefined> {
  try {
    const record = JSON.parse(await readFile(`${file}.json`, 'utf8')) as Partial<CacheRecord> | null
    const whole =
      Number.isSafeInteger(record?.size) && typeof record?.sha256 === 'string' && typeof record.mtimeMs === 'number'
    return whole ? (record as CacheRecord) : undefined
  } catch {
    // Absent or damaged: the file itself will be hashed.
    return undefined
  }
}

async function writeRecord(file: string, record: CacheRecord): Promise<void> {
  const draft = `${file}.json.${process.pid}`
  await writeFile(draft, `${JSON.stringify(record)}\n`)
  await rename(draft, `${file}.json`)
}

/** SHA-256 of a file's bytes, in hex. */
export async function hashFile(file: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20, ...(signal && { signal }) }))
    hash.update(chunk as Buffer)
  return hash.digest('hex')
}

/** `whole`: use it; `absent`: there is none; `damaged`: there is one, and its bytes are wrong. */
export type CacheState = 'whole' | 'absent' | 'damaged'

/**
 * Looks at a cached file. `pinned` is what the manifest says; without it the record made when the file was pulled is
 * the measure, and a file without either counts as absent, since nothing vouches for it.
 * @param rehash hash the bytes even where size and time agree
 */
export async function inspectCached(
  file: string,
  pinned?: Expected,
  { rehash = false, signal }: { rehash?: boolean; signal?: AbortSignal } = {},
): Promise<CacheState> {
  const stats = await stat(file).catch(() => undefined)
  if (!stats?.isFile()) return 'absent'
  const record = await readRecord(file)
  const expected = pinned ?? record
  if (!expected) return 'absent'
  if (stats.size !== expected.size) return 'damaged'
  if (!rehash && record?.mtimeMs === stats.mtimeMs && record.sha256 === expected.sha256) return 'whole'
  if ((await hashFile(file, signal)) !== expected.sha256) {
    // A time that no file has: the bytes are not taken at their word again.
    if (record) await writeRecord(file, { ...record, mtimeMs: -1 }).catch(() => {})
    return 'damaged'
  }
  // A cache that others may only read is still good; it is just hashed each time.
  await writeRecord(file, { size: expected.size, sha256: expected.sha256, mtimeMs: stats.mtimeMs }).catch(() => {})
  return 'whole'
}

/** Where the bytes of a file that is being pulled are kept. The name carries the hash: a resumed part is of one file. */
export function partialPath(file: string, { sha256 }: Expected): string {
  return `${file}.${sha256.slice(0, 16)}.partial`
}

/** Gives a verified partial file its final name. */
export async function commitPartial(file: string, expected: Expected): Promise<void> {
  const partial = partialPath(file, expected)
  // Whole milliseconds survive every file system and JSON.
  const mtime = Math.floor(Date.now() / 1000)
  await utimes(partial, mtime, mtime)
  await writeRecord(file, { size: expected.size, sha256: expected.sha256, mtimeMs: mtime * 1000 })
  await rename(partial, file)
}

/** Removes a partial file, if there is one. */
export async function dropPartial(file: string, expected: Expected): Promise<void> {
  await rm(partialPath(file, expected), { force: true })
}

/** Makes the folder a file will lie in. */
export async function makeFolderFor(file: string): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true })
}
