import { AbortError } from '../errors.js'

/** Throws an `AbortError` when the signal has fired. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw new AbortError(undefined, { cause: signal.reason })
}

/**
 * The work's outcome, or an `AbortError` as soon as the signal fires: a provider or a backend of somebody else's may
 * never look at the signal it was given.
 */
export async function untilAborted<T>(work: T | PromiseLike<T>, signal: AbortSignal): Promise<T> {
  let onAbort: () => void = () => undefined
  const aborted = new Promise<never>((_resolve, reject) => {
    onAbort = () => reject(new AbortError(undefined, { cause: signal.reason }))
    signal.addEventListener('abort', onAbort, { once: true })
  })
  // Work that is left behind may fail later, when nobody listens any more; so may the signal fire.
  const done = Promise.resolve(work)
  done.catch(() => undefined)
  aborted.catch(() => undefined)
  try {
    throwIfAborted(signal)
    return await Promise.race([done, aborted])
  } catch (error) {
    // What the work makes of the signal is its own affair.
    throwIfAborted(signal)
    throw error
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
