import { AbortError } from '../errors.js'

/** Throws an `AbortError` when the signal has fired. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw new AbortError(undefined, { cause: signal.reason })
}
