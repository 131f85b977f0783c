/**
 * Answers on the wire: completions, chunks, usage and log-probabilities as OpenAI writes them. Plain values; the
 * server turns them into bytes.
 */
import { randomBytes } from 'node:crypto'
import type { TokenLogprob, Usage } from '../engine.js'
import type { FinishReason, WireDelta, WireMessage } from '../tools/events.js'

/** What all parts of one response share. */
export interface ResponseHead {
  readonly id: string
  /** Seconds since 1970. */
  readonly created: number
  readonly model: string
}

export function newId(prefix: 'chatcmpl' | 'cmpl'): string {
  return `${prefix}-${randomBytes(8).toString('hex')}`
}

export interface WireUsage {
  readonly prompt_tokens: number
  readonly completion_tokens: number
  readonly total_tokens: number
  readonly prompt_tokens_details: { readonly cached_tokens: number }
}

/** Usage of a response: the prompt is counted once, the answers together. */
export function usageJson(usages: readonly Usage[]): WireUsage {
  const prompt = usages[0]?.promptTokens ?? 0
  const completion = usages.reduce((sum, usage) => sum + usage.completionTokens, 0)
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: usages[0]?.cachedTokens ?? 0 },
  }
}

interface WireAlternative {
  readonly token: string
  readonly logprob: number
  readonly bytes: readonly number[]
}

export interface WireLogprobs {
  readonly content: readonly (WireAlternative & {
    readonly top_logprobs: readonly WireAlternative[]
    /** Not OpenAI's: the probability of the tokens that the grammar did not allow here. */
    readonly removed_mass?: number
  })[]
  readonly refusal: null
}

/** JSON has no infinity; OpenAI writes this for a token that cannot be. */
const IMPOSSIBLE = -9999

function alternative({ text, logprob, bytes }: Pick<TokenLogprob, 'text' | 'logprob' | 'bytes'>): WireAlternative {
  return { token: text, logprob: Number.isFinite(logprob) ? logprob : IMPOSSIBLE, bytes: Array.from(bytes) }
}

/** Log-probabilities of a chat answer: of the masked logits, after penalties and before temperature. */
export function logprobsJson(tokens: readonly TokenLogprob[]): WireLogprobs {
  return {
    content: tokens.map((token) => ({
      ...alternative(token),
      top_logprobs: token.top.map(alternative),
      ...(token.removedMass === undefined ? {} : { removed_mass: token.removedMass }),
    })),
    refusal: null,
  }
}

export interface LegacyLogprobs {
  readonly tokens: readonly string[]
  readonly token_logprobs: readonly number[]
  readonly top_logprobs: readonly Readonly<Record<string, number>>[]
  readonly text_offset: readonly number[]
}

/** Log-probabilities of the completions route; `offset` is where the first token's text begins in the answer. */
export function legacyLogprobsJson(tokens: readonly TokenLogprob[], offset: number): LegacyLogprobs {
  let next = offset
  return {
    tokens: tokens.map(({ text }) => text),
    token_logprobs: tokens.map((token) => alternative(token).logprob),
    top_logprobs: tokens.map(({ top }) =>
      Object.fromEntries(top.map((token) => [token.text, alternative(token).logprob])),
    ),
    text_offset: tokens.map(({ text }) => {
      const at = next
      next += text.length
      return at
    }),
  }
}

/** Members of a choice that OpenAI does not have; absent when there is nothing to say. */
export interface ChoiceExtensions {
  /** The last call was cut short; in a whole answer the call itself says so. */
  readonly truncated?: true
  /** Under `close_within_budget`: whether the answer is a whole document of its grammar. */
  readonly closed?: boolean
}

export interface ChatChoice extends ChoiceExtensions {
  readonly index: number
  readonly message: WireMessage
  readonly logprobs: WireLogprobs | null
  readonly finish_reason: FinishReason
}

export function chatCompletion(head: ResponseHead, choices: readonly ChatChoice[], usage: WireUsage) {
  const { id, created, model } = head
  return { id, object: 'chat.completion' as const, created, model, choices, usage }
}

export interface ChunkChoice extends ChoiceExtensions {
  readonly index: number
  readonly delta: WireDelta
  readonly logprobs: WireLogprobs | null
  readonly finish_reason: FinishReason | null
}

/** A chunk; `usage` is undefined unless the stream was asked for it, and then null in all chunks but the last. */
export function chatChunk(head: ResponseHead, choices: readonly ChunkChoice[], usage: WireUsage | null | undefined) {
  const { id, created, model } = head
  const chunk = { id, object: 'chat.completion.chunk' as const, created, model, choices }
  return usage === undefined ? chunk : { ...chunk, usage }
}

export interface CompletionChoice {
  readonly index: number
  readonly text: string
  readonly logprobs: LegacyLogprobs | null
  readonly finish_reason: 'stop' | 'length' | null
}

export function textCompletion(
  head: ResponseHead,
  choices: readonly CompletionChoice[],
  usage: WireUsage | null | undefined,
) {
  const { id, created, model } = head
  const completion = { id, object: 'text_completion' as const, created, model, choices }
  return usage === undefined ? completion : { ...completion, usage }
}
