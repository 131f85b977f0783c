/**
 * One answer to a chat: the steps between a validated request and the events of its answer, the same for the server
 * and for programs that use the engine directly. {@link prepareChat} renders and describes, {@link answer} generates
 * and parses.
 */
import type { Engine, GenerateRequest, TokenLogprob, Usage } from '../engine.js'
import { ContextLengthError } from '../errors.js'
import { grammar as asGrammar } from '../grammar.js'
import type { Sampling } from '../openai/request.js'
import type { Profile } from '../openai/profile.js'
import { collect, finishReason, type FinishReason, type ToolCall, type ToolEvent } from '../tools/events.js'
import { compactFormat, type ToolFormat } from '../tools/format.js'
import { grammar } from '../tools/grammar.js'
import { renderPrompt } from '../tools/render.js'
import type { ToolRequest } from '../tools/request.js'

/** What an answer needs to know. */
export interface ChatPlan {
  readonly messages: readonly unknown[]
  readonly tools: ToolRequest
  readonly sampling: Omit<Sampling, 'seed'> & { readonly seed?: number | bigint }
  readonly maxTokens: number | null
  /** Alternatives to tell per token; null for no log-probabilities. */
  readonly logprobs: number | null
  readonly closeWithinBudget: boolean
}

/** A chat whose prompt is known. Answers to it can be generated any number of times. */
export interface PreparedChat {
  readonly generate: GenerateRequest
  /** Whether the text is looked through for calls. */
  readonly parse: boolean
  readonly requestId: string
  readonly profile: Profile
  readonly format: ToolFormat
}

export interface Answer {
  readonly content: string | null
  readonly calls: readonly ToolCall[]
  readonly finishReason: FinishReason
  readonly lastCallCut: boolean
  readonly usage: Usage
  readonly logprobs: readonly TokenLogprob[] | null
}

/** What became known since the last piece. */
export interface AnswerPiece {
  readonly events: readonly ToolEvent[]
  readonly logprobs: readonly TokenLogprob[]
}

export async function prepareChat(
  engine: Pick<Engine, 'renderChat' | 'info'>,
  plan: ChatPlan,
  requestId: string,
  format: ToolFormat = compactFormat,
): Promise<PreparedChat> {
  const { tools, sampling, logprobs } = plan
  const { ids } = await renderPrompt(engine, plan.messages, tools.choice === 'none' ? [] : tools.tools, {
    profile: tools.profile,
    format,
  })
  const answerGrammar = grammar(tools, format)
  return {
    generate: {
      ...sampling,
      prompt: ids,
      maxTokens: tokenBudget(engine.info.contextLength, ids.length, plan.maxTokens),
      ...(answerGrammar === null ? {} : { grammar: asGrammar(answerGrammar.description) }),
      ...(logprobs === null ? {} : { logprobs }),
      ...(plan.closeWithinBudget ? { closeWithinBudget: true } : {}),
    },
    parse: tools.choice !== 'none',
    requestId,
    profile: tools.profile,
    format,
  }
}

/** The tokens an answer may have: what was asked for, as far as the context reaches. */
export function tokenBudget(contextLength: number, promptLength: number, asked: number | null): number {
  const left = contextLength - promptLength
  if (left < 1) {
    throw new ContextLengthError(
      'ERR_TINYLLM_CONTEXT_LENGTH',
      `the prompt has ${promptLength} tokens; the context of ${contextLength} leaves no room for an answer`,
      { details: { limit: contextLength, actual: promptLength } },
    )
  }
  return asked === null ? left : Math.min(asked, left)
}

export interface AnswerOptions {
  /** Which answer of the request this is. Default: 0. */
  readonly choice?: number
  readonly signal?: AbortSignal
  /** Told every piece in order; the generation waits for it. */
  readonly onPiece?: (piece: AnswerPiece) => void | Promise<void>
}

/** Generates one answer. The events told are those of the answer it returns. */
export async function answer(
  engine: Pick<Engine, 'stream'>,
  chat: PreparedChat,
  options: AnswerOptions = {},
): Promise<Answer> {
  const { choice = 0, signal, onPiece } = options
  const generation = engine.stream({
    ...chat.generate,
    ...seedOf(chat.generate, choice),
    ...(signal === undefined ? {} : { signal }),
  })
  const parser = chat.parse ? chat.format.parser(chat.requestId, choice) : null
  const events: ToolEvent[] = []
  const tell = async (told: readonly ToolEvent[], logprobs: readonly TokenLogprob[]) => {
    for (const event of told) events.push(event)
    if (told.length > 0 || logprobs.length > 0) await onPiece?.({ events: told, logprobs })
  }
  for await (const { text, logprobs = [] } of generation) {
    if (parser !== null) await tell(parser.push(text), logprobs)
    else await tell(text === '' ? [] : [{ type: 'content', text }], logprobs)
  }
  if (parser !== null) await tell(parser.finish(), [])
  const result = await generation.final()
  const lastCallCut = parser?.lastCallCut ?? false
  const { content, calls } = collect(events, { lastCallCut })
  return {
    content,
    calls,
    finishReason: finishReason(calls.length, result.finishReason, { profile: chat.profile, lastCallCut }),
    lastCallCut,
    usage: result.usage,
    logprobs: result.logprobs ?? null,
  }
}

/** Each answer of a seeded request has a seed of its own, the first one the request's. */
export function seedOf(request: GenerateRequest, choice: number): Pick<GenerateRequest, 'seed'> {
  const { seed } = request
  if (seed === undefined) return {}
  return { seed: choice === 0 ? seed : BigInt.asUintN(63, BigInt(seed) + BigInt(choice)) }
}
