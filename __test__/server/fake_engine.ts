/**
 * An engine without a model: it says what a script says, in small pieces. For tests of the wire and of the steps
 * around an engine; what a model can say is tested with models.
 */
import type {
  Chunk,
  GenerateRequest,
  GenerateResult,
  Generation,
  RenderChatRequest,
  TokenLogprob,
} from '../../src/engine.js'
import type { TextEngine } from '../../src/chat/answer.js'
import { AbortError, ContextLengthError } from '../../src/errors.js'

export interface Said {
  readonly text: string
  readonly finishReason?: 'stop' | 'length'
  readonly complete?: boolean
}

export type Script = (request: GenerateRequest, prompt: string) => string | Said | Error | AsyncIterable<string>

export class FakeEngine implements TextEngine {
  readonly info = { name: 'fake-model', contextLength: 4096 }
  /** What was asked, in order. */
  readonly asked: { request: GenerateRequest; prompt: string }[] = []
  /** Generations that were aborted. */
  aborted = 0
  running = 0

  constructor(
    private readonly script: Script = () => 'Hello there.',
    private readonly pieceLength = 3,
  ) {}

  stream<T>(request: GenerateRequest<T>): Generation<T> {
    const prompt = typeof request.prompt === 'string' ? request.prompt : this.detokenize(request.prompt ?? [])
    this.asked.push({ request, prompt })
    const fits = [...prompt].length < this.info.contextLength
    const spoken = fits
      ? this.script(request, prompt)
      : new ContextLengthError('ERR_TINYLLM_CONTEXT_LENGTH', 'the prompt does not fit')
    let result: GenerateResult<T> | null = null
    const iterate = async function* (this: FakeEngine): AsyncGenerator<Chunk> {
      if (spoken instanceof Error) throw spoken
      this.running += 1
      try {
        let text = ''
        const logprobs: TokenLogprob[] = []
        let finishReason: 'stop' | 'length' = 'stop'
        const pieces =
          typeof spoken === 'string' ? this.pieces(spoken) : 'text' in spoken ? this.pieces(spoken.text) : spoken
        if (typeof spoken !== 'string' && 'text' in spoken) finishReason = spoken.finishReason ?? 'stop'
        const iterator = (
          Symbol.asyncIterator in pieces ? pieces[Symbol.asyncIterator]() : pieces[Symbol.iterator]()
        ) as AsyncIterator<string>
        for (;;) {
          const next = await untilAborted(Promise.resolve(iterator.next()), request.signal)
          if (next.done === true) break
          text += next.value
          const tokens = this.tokenize(next.value)
          const top = request.logprobs
          const told = top === undefined ? [] : Array.from(tokens, (id) => this.logprob(id, top))
          logprobs.push(...told)
          const chunk = { tokens, text: next.value, bytes: new TextEncoder().encode(next.value) }
          yield request.logprobs === undefined ? chunk : { ...chunk, logprobs: told }
        }
        const promptTokens = [...prompt].length
        const completionTokens = [...text].length + 1
        result = {
          text,
          tokens: this.tokenize(text),
          finishReason,
          ...(typeof spoken === 'object' && 'complete' in spoken ? { complete: spoken.complete } : {}),
          usage: { promptTokens, completionTokens, totalTokens: promptTokens + completionTokens, cachedTokens: 0 },
          ...(request.logprobs === undefined ? {} : { logprobs }),
        }
      } catch (error) {
        if (request.signal?.aborted === true) this.aborted += 1
        throw error
      } finally {
        this.running -= 1
      }
    }.bind(this)
    const iterator = iterate()
    return {
      [Symbol.asyncIterator]: () => iterator,
      cancel: () => void iterator.return(undefined),
      final: async () => {
        for await (const _ of iterator);
        if (result === null) throw new AbortError()
        return result
      },
    }
  }

  private *pieces(text: string): Generator<string> {
    const points = [...text]
    for (let at = 0; at < points.length; at += this.pieceLength) yield points.slice(at, at + this.pieceLength).join('')
  }

  private logprob(id: number, top: number): TokenLogprob {
    const text = String.fromCodePoint(id)
    const one = { id, text, bytes: new TextEncoder().encode(text), logprob: -0.5 }
    return { ...one, top: Array.from({ length: top }, (_, i) => ({ ...one, logprob: i === 0 ? -0.5 : -Infinity })) }
  }

  tokenize(text: string): Uint32Array {
    return Uint32Array.from([...text], (point) => point.codePointAt(0) ?? 0)
  }

  detokenize(ids: Uint32Array | readonly number[]): string {
    return Array.from(ids, (id) => String.fromCodePoint(id)).join('')
  }

  renderChat({ messages = [], addGenerationPrompt = true }: RenderChatRequest) {
    const text =
      messages.map(({ role, content }) => `[${role}]${content as string}\n`).join('') +
      (addGenerationPrompt ? '[assistant]' : '')
    return Promise.resolve({ text, segments: [{ text, special: false }], ids: this.tokenize(text) })
  }
}

async function untilAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return await work
  if (signal.aborted) throw new AbortError()
  let stop: () => void = () => undefined
  const aborted = new Promise<never>((_resolve, reject) => {
    stop = () => reject(new AbortError())
    signal.addEventListener('abort', stop, { once: true })
  })
  try {
    return await Promise.race([work, aborted])
  } finally {
    signal.removeEventListener('abort', stop)
  }
}
