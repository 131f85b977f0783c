/**
 * One answer to a chat: the steps between a validated request and the events of its answer, the same for the server
 * and for programs that use the engine directly. {@link prepareChat} renders and describes, {@link answer} generates
 * and parses.
 */
import type { Engine, EngineInfo, GenerateRequest, Generation, TokenLogprob, Usage } from '../engine.js'
import { ContextLengthError } from '../errors.js'
import { grammar as asGrammar } from '../grammar.js'
import type { Sampling } from '../openai/request.js'
import type { Profile } from '../openai/profile.js'
import { choiceSeed } from '../request.js'
import { collect, finishReason, type FinishReason, type ToolCall, type ToolEvent } from '../tools/events.js'
import { compactFormat, type ToolFormat } from '../tools/format.js'
import { grammar } from '../tools/grammar.js'
import { renderPrompt } from '../tools/render.js'
import type { ToolRequest } from '../tools/request.js'

/** What generates text: an engine, or whatever does the same. The chats here are built on it. */
export type TextEngine = Pick<Engine, 'stream' | 'renderChat' | 'tokenize' | 'detokenize'> &
  Partial<Pick<Engine, 'streamChoices'>> & {
    readonly info: Pick<EngineInfo, 'name' | 'contextLength'>
  }

/** What an answer needs to know. */
export interface ChatPlan {
  readonly messages: readonly unknown[]
  readonly tools: ToolRequest
  readonly sampling: Omit<Sampling, 'seed'> & { readonly seed?: number | bigint }
  readonly maxTokens: number | null
  /** Alternatives to tell per token; null for no log-probabilities. */
  readonly logprobs: number | null
  /** With log-probabilities and a grammar: tell the probability that the grammar took away. */
  readonly removedMass: boolean
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
  /** Under `closeWithinBudget`: whether the answer is a whole document of its grammar. */
  readonly closed?: boolean
}

/** What became known since the last piece. */
export interface AnswerPiece {
  readonly events: readonly ToolEvent[]
  readonly logprobs: readonly TokenLogprob[]
}

export async function prepareChat(
  engine: Pick<TextEngine, 'renderChat' | 'info'>,
  plan: ChatPlan,
  requestId: string,
  format: ToolFormat = compactFormat,
): Promise<PreparedChat> {
  const { tools, sampling, logprobs } = plan
  const { ids } = await renderPrompt(engine, plan.messages, tools.tools, {
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
      ...(plan.removedMass && logprobs !== null && answerGrammar !== null ? { removedMass: true } : {}),
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
  /** The generation of this answer (see {@link startChoices}). Default: one of its own is started. */
  readonly generation?: Generation
  readonly signal?: AbortSignal
}

/** Starts the generations of several answers to one request; where the engine can, they share the prompt's computing. */
export function startChoices(
  engine: Pick<TextEngine, 'stream' | 'streamChoices'>,
  request: GenerateRequest,
  count: number,
): Generation[] {
  if (count === 1) return [engine.stream(request)]
  if (engine.streamChoices !== undefined) return engine.streamChoices(request, count)
  const { seed } = request
  return Array.from({ length: count }, (_, choice) =>
    engine.stream(seed === undefined ? request : { ...request, seed: choiceSeed(seed, choice) }),
  )
}

/**
 * Generates one answer, piece by piece; the generation waits for whoever takes the pieces, and stops when nobody does
 * any more. The answer returned at the end is made of the same events.
 */
export async function* answerPieces(
  engine: Pick<Engine, 'stream'>,
  chat: PreparedChat,
  options: AnswerOptions = {},
): AsyncGenerator<AnswerPiece, Answer, void> {
  const { choice = 0, signal } = options
  const generation =
    options.generation ?? engine.stream({ ...chat.generate, ...(signal === undefined ? {} : { signal }) })
  const parser = chat.parse ? chat.format.parser(chat.requestId, choice) : null
  const said: ToolEvent[] = []
  for await (const { text, logprobs = [] } of generation) {
    const events = parser?.push(text) ?? plainText(text)
    for (const event of events) said.push(event)
    if (events.length > 0 || logprobs.length > 0) yield { events, logprobs }
  }
  const rest = parser?.finish() ?? []
  for (const event of rest) said.push(event)
  if (rest.length > 0) yield { events: rest, logprobs: [] }

  const result = await generation.final()
  const lastCallCut = parser?.lastCallCut ?? false
  const { content, calls } = collect(said, { lastCallCut })
  return {
    content,
    calls,
    finishReason: finishReason(calls.length, result.finishReason, { profile: chat.profile, lastCallCut }),
    lastCallCut,
    usage: result.usage,
    logprobs: result.logprobs ?? null,
    ...(chat.generate.closeWithinBudget === true ? { closed: result.complete === true } : {}),
  }
}

/** Generates one answer; every piece is told in order, and the generation waits until it has been taken. */
export async function answer(
  engine: Pick<Engine, 'stream'>,
  chat: PreparedChat,
  options: AnswerOptions & { readonly onPiece?: (piece: AnswerPiece) => Promise<void> } = {},
): Promise<Answer> {
  const pieces = answerPieces(engine, chat, options)
  for (;;) {
    const next = await pieces.next()
    if (next.done === true) return next.value
    try {
      await options.onPiece?.(next.value)
    } catch (error) {
      await pieces.return(undefined as never)
      throw error
    }
  }
}

function plainText(text: string): ToolEvent[] {
  return text === '' ? [] : [{ type: 'content', text }]
}
