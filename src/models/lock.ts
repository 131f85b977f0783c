/**
 * A lock between processes: a file that only one can create.
 *
 * Its holder touches it every few seconds. A lock is taken over when its process is gone (same machine) or when it has
 * not been touched for {@link STALE_MS} (another machine on a shared disk). Losing a lock that way can at worst pull a
 * file twice: what is pulled is hashed before it gets its name.
 */
import { randomUUID } from 'node:crypto'
import { link, open, readFile, rename, rm, stat, utimes } from 'node:fs/promises'
import { hostname } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'

const STALE_MS = 30_000
const TOUCH_MS = 5_000
const POLL_MS = 100

interface Holder {
  readonly pid: number
  readonly host: string
  readonly token: string
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    // EPERM: there is such a process, and it is another user's.
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

async function isStale(file: string, text: string): Promise<boolean> {
  const stats = await stat(file).catch(() => undefined)
  if (!stats) return false
  if (Date.now() - stats.mtimeMs > STALE_MS) return true
  try {
    const holder = JSON.parse(text) as Holder
    return holder.host === hostname() && !isAlive(holder.pid)
  } catch {
    // Empty or half-written: its maker is between creating and writing it, or died there.
    return false
  }
}

async function takeAway(file: string, seen: string): Promise<void> {
  const grave = `${file}.${randomUUID()}`
  try {
    await rename(file, grave)
  } catch {
    return
  }
  // Between looking and renaming someone else may have taken the lock over: then it is given back.
  if ((await readFile(grave, 'utf8').catch(() => seen)) !== seen) await link(grave, file).catch(() => {})
  await rm(grave, { force: true })
}

/**
 * Runs `work` while holding the lock `file`.
 * @param onWait called once if somebody else holds it
 */
export async function withLock<T>(
  file: string,
  work: () => Promise<T>,
  { signal, onWait }: { signal?: AbortSignal | undefined; onWait?: () => void } = {},
): Promise<T> {
  const token = JSON.stringify({ pid: process.pid, host: hostname(), token: randomUUID() } satisfies Holder)
  for (let tries = 0; ; tries += 1) {
    signal?.throwIfAborted()
    try {
      const handle = await open(file, 'wx')
      await handle.writeFile(token).finally(() => handle.close())
      break
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    }
    const seen = await readFile(file, 'utf8').catch(() => undefined)
    if (seen !== undefined && (await isStale(file, seen))) {
      await takeAway(file, seen)
      continue
    }
    if (tries === 0) onWait?.()
    await delay(POLL_MS, undefined, signal ? { signal } : {})
  }
  const touch = setInterval(() => {
    const now = new Date()
    utimes(file, now, now).catch(() => {})
  }, TOUCH_MS)
  touch.unref()
  try {
    return await work()
  } finally {
    clearInterval(touch)
    if ((await readFile(file, 'utf8').catch(() => undefined)) === token) await rm(file, { force: true })
  }
}
