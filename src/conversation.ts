/**
 * A conversation that keeps its history. Each turn renders the whole of it again; what the engine computed for the
 * turns before is found in its prefix cache, so a turn costs its own tokens.
 */
import type { ChatMessage, Engine, GenerateRequest, GenerateResult, Generation } from './engine.js'
import { InvalidRequestError } from './errors.js'

export interface ConversationOptions {
  /** Put before the conversation as a `system` message. */
  readonly system?: string
  /** The conversation so far. */
  readonly messages?: readonly ChatMessage[]
}

/** What a turn takes besides its message. */
export type TurnRequest<T = unknown> = Omit<GenerateRequest<T>, 'prompt' | 'messages'>

export interface Conversation {
  /** The conversation so far. A turn adds its message and the answer when the answer is there. */
  readonly messages: readonly ChatMessage[]
  /** Says something and waits for the answer. One turn at a time. */
  generate<T = unknown>(content: string, request?: TurnRequest<T>): Promise<GenerateResult<T>>
  /** The same with the answer as it comes. */
  stream<T = unknown>(content: string, request?: TurnRequest<T>): Generation<T>
}

/** See {@link Conversation}. */
export class LiveConversation implements Conversation {
  readonly #engine: Engine
  #messages: readonly ChatMessage[]
  #busy = false

  constructor(engine: Engine, options: ConversationOptions) {
    this.#engine = engine
    const system = options.system === undefined ? [] : [{ role: 'system', content: options.system }]
    this.#messages = [...system, ...(options.messages ?? [])]
  }

  get messages(): readonly ChatMessage[] {
    return this.#messages
  }

  async generate<T>(content: string, request: TurnRequest<T> = {}): Promise<GenerateResult<T>> {
    return this.stream(content, request).final()
  }

  stream<T>(content: string, request: TurnRequest<T> = {}): Generation<T> {
    if (typeof content !== 'string') throw new InvalidRequestError('a chat takes its message as a string')
    if (this.#busy) throw new InvalidRequestError('a chat answers one message at a time')
    const messages = [...this.#messages, { role: 'user', content }]
    const generation = this.#engine.stream<T>({ ...request, messages })
    this.#busy = true
    return this.#watch(generation, messages)
  }

  /** The generation, with the history kept up when its answer is whole. */
  #watch<T>(generation: Generation<T>, messages: readonly ChatMessage[]): Generation<T> {
    let answer = ''
    let whole = false
    let ended = false
    const end = (): void => {
      if (ended) return
      ended = true
      this.#busy = false
      if (whole) this.#messages = [...messages, { role: 'assistant', content: answer }]
    }
    async function* chunks() {
      try {
        for await (const chunk of generation) {
          answer += chunk.text
          yield chunk
        }
        whole = true
      } finally {
        end()
      }
    }
    let iterated: AsyncGenerator | undefined
    const iterate = () => {
      if (iterated !== undefined) throw new InvalidRequestError('a generation can be iterated only once')
      const iterator = chunks()
      iterated = iterator
      return iterator
    }
    return {
      [Symbol.asyncIterator]: iterate,
      cancel: () => {
        generation.cancel()
        // Nobody may ever iterate over it.
        if (iterated === undefined) end()
      },
      final: async () => {
        if (iterated === undefined) for await (const _ of { [Symbol.asyncIterator]: iterate });
        return generation.final()
      },
    }
  }
}
