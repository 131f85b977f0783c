/**
 * A generation as an async iterable: pulls batches from the native side, ends it when the consumer leaves or the
 * caller's signal fires, and gathers the result on the way.
 */
import type {
  Chunk,
  GenerateRequest,
  GenerateResult,
  Generation,
  GenerationEvent,
  TokenLogprob,
  Usage,
} from './engine.js'
import { AbortError, InvalidRequestError, TinyLlmError } from './errors.js'
import type { Grammar } from './grammar.js'
import { unwrap, type NativeFinish, type NativeGeneration } from './native.js'

/** See {@link Generation}. `start` submits the request; it is called at once. */
export class RunningGeneration<T> implements Generation<T> {
  readonly #grammar: Grammar<T> | undefined
  readonly #signal: AbortSignal | undefined
  readonly #started: Promise<NativeGeneration>
  #native: NativeGeneration | undefined
  #cancelled = false
  #taken = false
  readonly #parts = new Parts()
  readonly #finish = new Deferred<NativeFinish>()
  readonly #report: (event: GenerationEvent) => void
  readonly #submitted = performance.now()
  #firstChunk: number | undefined

  constructor(
    request: GenerateRequest<T>,
    start: () => Promise<NativeGeneration>,
    report: (event: GenerationEvent) => void,
  ) {
    this.#report = report
    this.#grammar = request?.grammar
    // What is no signal is refused when the request is checked.
    const signal: Partial<AbortSignal> | undefined = request?.signal
    this.#signal = typeof signal?.addEventListener === 'function' ? request.signal : undefined
    this.#started = this.#start(start)
    // Errors surface where the generation is consumed; nobody may ever ask for the other promise.
    this.#started.catch(() => undefined)
    this.#finish.promise.catch(() => undefined)
  }

  async #start(start: () => Promise<NativeGeneration>): Promise<NativeGeneration> {
    const signal = this.#signal
    if (signal?.aborted) throw this.#abortError()
    signal?.addEventListener('abort', this.#onAbort)
    try {
      this.#native = await start()
    } catch (error) {
      signal?.removeEventListener('abort', this.#onAbort)
      throw error
    }
    if (this.#cancelled) this.#native.cancel()
    return this.#native
  }

  readonly #onAbort = (): void => this.cancel()

  cancel(): void {
    this.#cancelled = true
    this.#native?.cancel()
  }

  [Symbol.asyncIterator](): AsyncIterator<Chunk> {
    if (this.#taken) throw new InvalidRequestError('a generation can be iterated only once')
    this.#taken = true
    return this.#chunks()
  }

  async final(): Promise<GenerateResult<T>> {
    if (!this.#taken) {
      // Nobody iterates: the chunks are read here and dropped.
      this.#taken = true
      const chunks = this.#chunks()
      while (!(await chunks.next()).done);
    }
    const finish = await this.#finish.promise
    const { text, tokens, logprobs } = this.#parts
    const parse = finish.complete === true ? this.#grammar?.parse : undefined
    return {
      text: text.join(''),
      ...(parse === undefined ? {} : { value: await parse(text.join('')) }),
      tokens: Uint32Array.from(tokens),
      finishReason: finish.reason as 'stop' | 'length',
      ...(finish.complete === undefined ? {} : { complete: finish.complete }),
      usage: usageOf(finish),
      ...(logprobs === undefined ? {} : { logprobs }),
    }
  }

  async *#chunks(): AsyncGenerator<Chunk, void, undefined> {
    let end: NativeFinish | 'cancelled' | 'failed' = 'cancelled'
    try {
      const native = await this.#started
      for (;;) {
        // What was ready before a cancellation is not given out after it.
        const batch = unwrap(await native.nextBatch())
        if (this.#cancelled) throw this.#abortError()
        const { tokens, text, bytes, finish } = batch
        const logprobs = batch.logprobs.length > 0 ? batch.logprobs : undefined
        this.#parts.add(tokens, text, logprobs)
        if (tokens.length > 0 || text !== '') {
          this.#firstChunk ??= performance.now()
          yield logprobs === undefined ? { tokens, text, bytes } : { tokens, text, bytes, logprobs }
        }
        if (finish === undefined) continue
        if (this.#cancelled) throw this.#abortError()
        end = finish
        this.#finish.resolve(finish)
        return
      }
    } catch (error) {
      const aborted = TinyLlmError.is(error) && error.code === 'ERR_TINYLLM_ABORTED'
      if (!aborted) end = 'failed'
      const reason = aborted ? this.#abortError() : error
      this.#finish.reject(reason)
      throw reason
    } finally {
      // Left early, this ends the generation; after the end it does nothing.
      this.cancel()
      this.#signal?.removeEventListener('abort', this.#onAbort)
      this.#finish.reject(this.#abortError())
      this.#ended(end)
    }
  }

  #ended(end: NativeFinish | 'cancelled' | 'failed'): void {
    const since = (time: number): number => time - this.#submitted
    this.#report({
      ...(typeof end === 'string'
        ? { outcome: end }
        : { outcome: end.reason as 'stop' | 'length', usage: usageOf(end) }),
      ...(this.#firstChunk === undefined ? {} : { firstChunkMs: since(this.#firstChunk) }),
      totalMs: since(performance.now()),
    })
  }

  #abortError(): AbortError {
    const signal = this.#signal
    return new AbortError(undefined, signal?.aborted ? { cause: signal.reason } : {})
  }
}

function usageOf({ promptTokens, completionTokens, cachedTokens }: NativeFinish): Usage {
  return { promptTokens, completionTokens, totalTokens: promptTokens + completionTokens, cachedTokens }
}

class Deferred<T> {
  resolve!: (value: T) => void
  reject!: (reason: unknown) => void
  readonly promise = new Promise<T>((resolve, reject) => {
    this.resolve = resolve
    this.reject = reject
  })
}

/** What came so far. */
class Parts {
  readonly text: string[] = []
  readonly tokens: number[] = []
  logprobs: TokenLogprob[] | undefined

  add(tokens: Uint32Array, text: string, logprobs: readonly TokenLogprob[] | undefined): void {
    this.text.push(text)
    for (const token of tokens) this.tokens.push(token)
    if (logprobs !== undefined) (this.logprobs ??= []).push(...logprobs)
  }
}
