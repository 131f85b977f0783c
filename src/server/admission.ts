/**
 * Who may run: a bounded number of requests at a time, a bounded queue in front of them, and the list of what is in
 * the house, for a shutdown that waits and then cuts.
 */
import { overloaded, shuttingDown } from './failure.js'

/** A request that may run. */
export interface Lease extends Disposable {
  /** Aborted when the client goes away or the server's patience ends. */
  readonly signal: AbortSignal
}

export class Admission {
  readonly #most: number
  readonly #mostWaiting: number
  readonly #inside = new Set<AbortController>()
  readonly #queue: (() => void)[] = []
  #running = 0
  #closing = false
  #emptied: (() => void) | null = null

  constructor(options: { readonly running: number; readonly waiting: number }) {
    this.#most = options.running
    this.#mostWaiting = options.waiting
  }

  get closing(): boolean {
    return this.#closing
  }

  /** Waits for a turn. 429 when the queue is full, 503 when the server is closing, AbortError when the client left. */
  async enter(controller: AbortController): Promise<Lease> {
    controller.signal.throwIfAborted()
    if (this.#closing) throw shuttingDown()
    if (this.#running >= this.#most && this.#queue.length >= this.#mostWaiting) {
      throw overloaded(`${this.#queue.length} requests are waiting already; try again later`)
    }
    this.#inside.add(controller)
    try {
      if (this.#running >= this.#most) await this.#turn(controller.signal)
      else this.#running += 1
    } catch (error) {
      this.#leave(controller)
      throw error
    }
    let released = false
    return {
      signal: controller.signal,
      [Symbol.dispose]: () => {
        if (released) return
        released = true
        this.#running -= 1
        this.#leave(controller)
        this.#next()
      },
    }
  }

  /** Lets nobody in any more; resolves when everybody has left. */
  async close(): Promise<void> {
    this.#closing = true
    if (this.#inside.size === 0) return
    await new Promise<void>((resolve) => {
      this.#emptied = resolve
    })
  }

  /** Cuts whatever is still inside. */
  cut(): void {
    for (const controller of this.#inside) controller.abort(shuttingDown())
  }

  async #turn(signal: AbortSignal): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const start = () => {
        signal.removeEventListener('abort', give)
        this.#running += 1
        resolve()
      }
      const give = () => {
        this.#queue.splice(this.#queue.indexOf(start), 1)
        reject(signal.reason as Error)
      }
      signal.addEventListener('abort', give, { once: true })
      this.#queue.push(start)
    })
  }

  #next(): void {
    if (this.#running < this.#most) this.#queue.shift()?.()
  }

  #leave(controller: AbortController): void {
    this.#inside.delete(controller)
    if (this.#inside.size === 0) this.#emptied?.()
  }
}
