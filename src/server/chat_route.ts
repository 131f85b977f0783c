/**
 * `POST /v1/chat/completions`: from a validated body to bytes. Generation, parsing and shapes are elsewhere; this
 * decides when to write what.
 */
import type { Response } from 'express'
import { answer, prepareChat, startChoices, type Answer, type PreparedChat, type TextEngine } from '../chat/answer.js'
import type { Generation, TokenLogprob } from '../engine.js'
import type { ChatRequest } from '../openai/request.js'
import {
  chatChunk,
  chatCompletion,
  logprobsJson,
  usageJson,
  type ChunkChoice,
  type ResponseHead,
} from '../openai/wire.js'
import { deltaJson, messageJson, type WireDelta } from '../tools/events.js'
import type { SseWriter } from './sse.js'

export interface Exchange {
  readonly engine: TextEngine
  readonly response: Response
  readonly head: ResponseHead
  /** Aborted when the client goes away, when the server's patience ends, or when a part of the answer fails. */
  readonly work: AbortController
  readonly stream: () => SseWriter
}

export async function serveChat(exchange: Exchange, request: ChatRequest): Promise<void> {
  const chat = await prepareChat(exchange.engine, request, exchange.head.id)
  if (request.stream) await streamChat(exchange, request, chat)
  else await wholeChat(exchange, request, chat)
}

async function wholeChat({ engine, response, head, work }: Exchange, request: ChatRequest, chat: PreparedChat) {
  const generations = startChoices(engine, { ...chat.generate, signal: work.signal }, request.choices)
  const answers = await together(work, generations, (generation, choice) =>
    answer(engine, chat, { choice, generation }),
  )
  const choices = answers.map((one, index) => ({
    index,
    message: messageJson(one.content ?? (one.calls.length === 0 ? '' : null), one.calls),
    logprobs: one.logprobs === null ? null : logprobsJson(one.logprobs),
    finish_reason: one.finishReason,
    ...closedJson(one),
  }))
  response.json(chatCompletion(head, choices, usageJson(answers.map(({ usage }) => usage))))
}

async function streamChat(exchange: Exchange, request: ChatRequest, chat: PreparedChat): Promise<void> {
  const { engine, head, work } = exchange
  const sse = exchange.stream()
  const noUsage = request.includeUsage ? null : undefined
  const generations = startChoices(engine, { ...chat.generate, signal: work.signal }, request.choices)
  const answers = await together(work, generations, async (generation, choice) => {
    const chunks = new ChoiceChunks(choice, request.logprobs !== null)
    const send = (chunk: ChunkChoice) => sse.data(chatChunk(head, [chunk], noUsage))
    let opened = false
    const open = async () => {
      if (!opened) await send(chunks.delta({ role: 'assistant', content: '' }))
      opened = true
    }
    const done = await answer(engine, chat, {
      choice,
      generation,
      onPiece: async ({ events, logprobs }) => {
        await open()
        chunks.hold(logprobs)
        for (const event of events) await send(chunks.delta(deltaJson(event)))
      },
    })
    await open()
    await send(chunks.last(done))
    return done
  })
  if (request.includeUsage) await sse.data(chatChunk(head, [], usageJson(answers.map(({ usage }) => usage))))
  await sse.data('[DONE]')
  sse.end()
}

function closedJson({ closed }: Answer): { closed?: boolean } {
  return closed === undefined ? {} : { closed }
}

/** The chunks of one choice. Log-probabilities go out with the first delta after their tokens. */
class ChoiceChunks {
  readonly #index: number
  readonly #withLogprobs: boolean
  #held: TokenLogprob[] = []

  constructor(index: number, withLogprobs: boolean) {
    this.#index = index
    this.#withLogprobs = withLogprobs
  }

  hold(logprobs: readonly TokenLogprob[]): void {
    this.#held.push(...logprobs)
  }

  delta(delta: WireDelta): ChunkChoice {
    return { index: this.#index, delta, logprobs: this.#takeLogprobs(), finish_reason: null }
  }

  last(answered: Answer): ChunkChoice {
    const { finishReason, lastCallCut } = answered
    return {
      index: this.#index,
      delta: {},
      logprobs: this.#takeLogprobs(),
      finish_reason: finishReason,
      ...(lastCallCut ? { truncated: true } : {}),
      ...closedJson(answered),
    }
  }

  #takeLogprobs(): ChunkChoice['logprobs'] {
    if (!this.#withLogprobs || this.#held.length === 0) return null
    const held = this.#held
    this.#held = []
    return logprobsJson(held)
  }
}

/** Makes the choices of a request at the same time. When one fails the others are stopped, and then the first failure is thrown. */
export async function together<T>(
  work: AbortController,
  generations: readonly Generation[],
  make: (generation: Generation, choice: number) => Promise<T>,
): Promise<T[]> {
  let failure: { error: unknown } | null = null
  const made = await Promise.all(
    generations.map(async (generation, choice) => {
      try {
        return [await make(generation, choice)]
      } catch (error) {
        failure ??= { error }
        work.abort(error)
        return []
      }
    }),
  )
  // The assignment is in a callback, where the checker does not see it.
  const failed = failure as { error: unknown } | null
  if (failed !== null) throw failed.error
  return made.flat()
}
