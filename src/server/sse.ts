/**
 * Server-sent events over a response: data events, a comment when nothing was said for a while, and back-pressure.
 * The headers go out with the first event or comment, so an error before that can still be an ordinary response.
 */
import type { ServerResponse } from 'node:http'

/** Timers, so that tests need not wait. */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number
  setTimeout(run: () => void, ms: number): unknown
  clearTimeout(timer: unknown): void
}

export const systemClock: Clock = {
  now: () => Date.now(),
  setTimeout: (run, ms) => setTimeout(run, ms).unref(),
  clearTimeout: (timer) => {
    clearTimeout(timer as NodeJS.Timeout)
  },
}

/** Proxies and clients give up on a connection that is silent for long. */
const SILENCE_MS = 15_000

export class SseWriter {
  readonly #response: ServerResponse
  readonly #clock: Clock
  #timer: unknown
  #ended = false

  constructor(response: ServerResponse, clock: Clock = systemClock) {
    this.#response = response
    this.#clock = clock
    this.#wait()
  }

  /** Whether the headers have gone out. */
  get started(): boolean {
    return this.#response.headersSent
  }

  /** Sends one event; resolves when the client has room for more, or has gone. */
  async data(value: unknown): Promise<void> {
    await this.#write(`data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`)
  }

  /** Ends the stream; nothing is sent after this. */
  end(): void {
    if (this.#ended) return
    this.stop()
    this.#open()
    this.#response.end()
  }

  /** Gives the response up without ending it, so that somebody else can answer. */
  stop(): void {
    this.#ended = true
    this.#clock.clearTimeout(this.#timer)
  }

  async #write(text: string): Promise<void> {
    if (this.#ended || this.#response.destroyed) return
    this.#open()
    this.#wait()
    if (!this.#response.write(text)) await drained(this.#response)
  }

  #open(): void {
    if (this.#response.headersSent) return
    this.#response.writeHead(200, {
      'content-type': 'text/event-stream; charset=utf-8',
      'cache-control': 'no-cache, no-transform',
      'x-accel-buffering': 'no',
    })
  }

  #wait(): void {
    this.#clock.clearTimeout(this.#timer)
    this.#timer = this.#clock.setTimeout(() => {
      void this.#write(': ping\n\n')
    }, SILENCE_MS)
  }
}

async function drained(response: ServerResponse): Promise<void> {
  await new Promise<void>((resolve) => {
    const done = () => {
      response.off('drain', done)
      response.off('close', done)
      resolve()
    }
    response.on('drain', done)
    response.on('close', done)
    if (response.destroyed) done()
  })
}
