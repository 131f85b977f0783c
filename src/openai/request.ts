/**
 * Whole request bodies, validated: chat completions and (legacy) completions. The result says what to do in this
 * project's own terms; what is malformed is a 400 and what is not served a 422, each naming the field.
 */
import type { z } from 'zod'
import type { GenerateRequest } from '../engine.js'
import { parseToolRequest, type ToolRequest } from '../tools/request.js'
import { member, toPlain, type Body } from './body.js'
import { chatFields, completionFields, detokenizeFields, tokenizeFields, type Field } from './fields.js'
import type { Profile } from './profile.js'
import { badRequest, unsupported } from './tool_error.js'

/** How to sample, with HTTP's defaults filled in. */
export type Sampling = Pick<
  GenerateRequest,
  | 'temperature'
  | 'topP'
  | 'topK'
  | 'minP'
  | 'repetitionPenalty'
  | 'presencePenalty'
  | 'frequencyPenalty'
  | 'stop'
  | 'logitBias'
> & { readonly seed?: bigint }

interface CommonRequest {
  /** null when the request names none. */
  readonly model: string | null
  readonly sampling: Sampling
  readonly maxTokens: number | null
  /** Number of answers (`n`). */
  readonly choices: number
  readonly stream: boolean
  readonly includeUsage: boolean
  /** Alternatives to tell per token; null when log-probabilities are not asked for. */
  readonly logprobs: number | null
  /** Fields that were passed over because nobody knows them. */
  readonly ignored: readonly string[]
}

export interface ChatRequest extends CommonRequest {
  readonly messages: readonly unknown[]
  readonly tools: ToolRequest
  /** Tell, beside log-probabilities, the probability that a grammar took away. */
  readonly removedMass: boolean
  readonly closeWithinBudget: boolean
}

export interface CompletionRequest extends CommonRequest {
  readonly prompt: string | readonly number[]
}

/** Fields of the profile-independent part that only some profiles know. */
const OPTIONAL = new Set(['logit_bias', 'close_within_budget'])
/** OpenAI's default for the legacy route. */
const COMPLETION_TOKENS = 16
const MAX_SEED = 2n ** 63n - 1n

export function readChatRequest(body: Body, profile: Profile): ChatRequest {
  const tools = parseToolRequest(body, profile)
  const read = reader(chatFields, body, profile)
  const messages = member(body.root, 'messages')
  if (messages?.kind !== 'array' || messages.items.length === 0) {
    throw badRequest('messages', 'messages must be a non-empty array')
  }
  const logprobs = read('logprobs') ?? false
  const top = read('top_logprobs')
  if (top !== undefined && !logprobs) throw badRequest('top_logprobs', 'top_logprobs needs logprobs: true')
  const wholeTokens = read('max_completion_tokens')
  const maxTokens = read('max_tokens')
  return {
    ...readCommon(read, body, profile, chatFields),
    messages: messages.items.map(toPlain),
    tools,
    maxTokens: wholeTokens ?? maxTokens ?? null,
    logprobs: logprobs ? (top ?? 0) : null,
    removedMass: logprobs,
    closeWithinBudget: read('close_within_budget') ?? false,
  }
}

export function readCompletionRequest(body: Body, profile: Profile): CompletionRequest {
  const read = reader(completionFields, body, profile)
  const prompt = read('prompt')
  if (prompt === undefined) throw badRequest('prompt', `prompt must be ${completionFields.prompt.expected}`)
  const [first] = prompt
  return {
    ...readCommon(read, body, profile, completionFields),
    prompt: Array.isArray(prompt) && typeof first === 'string' ? first : (prompt as string | number[]),
    maxTokens: read('max_tokens') ?? COMPLETION_TOKENS,
    logprobs: read('logprobs') ?? null,
  }
}

export function readTokenizeRequest(body: Body, profile: Profile): { content: string; special: boolean } {
  const read = reader(tokenizeFields, body, profile)
  const content = read('content')
  if (content === undefined) throw badRequest('content', 'content must be a string')
  return { content, special: read('parse_special') ?? false }
}

export function readDetokenizeRequest(body: Body, profile: Profile): { tokens: readonly number[] } {
  const tokens = reader(detokenizeFields, body, profile)('tokens')
  if (tokens === undefined) throw badRequest('tokens', 'tokens must be an array of token ids')
  return { tokens }
}

type Values<F extends Record<string, Field>> = { [K in keyof F]: z.output<F[K]['shape']> }
type Read<F extends Record<string, Field>> = <K extends keyof F & string>(name: K) => Values<F>[K] | undefined

/** Reads one field by its row; absent, null and unknown to the profile are undefined. */
function reader<F extends Record<string, Field>>(fields: F, body: Body, profile: Profile): Read<F> {
  return (name) => {
    const value = member(body.root, name)
    if (value === undefined || !isKnown(name, fields, profile)) return undefined
    const { shape, expected } = fields[name] as Field
    const parsed = shape.safeParse(toPlain(value))
    if (!parsed.success) throw badRequest(name, `${name} must be ${expected}`)
    return parsed.data as Values<F>[typeof name]
  }
}

function isKnown(name: string, fields: Record<string, Field>, profile: Profile): boolean {
  return Object.hasOwn(fields, name) && (!OPTIONAL.has(name) || profile.optionalFields.has(name))
}

type SharedFields = Pick<
  typeof completionFields,
  Extract<keyof typeof chatFields, Exclude<keyof typeof completionFields, 'logprobs'>>
>

function readCommon(
  read: Read<SharedFields>,
  body: Body,
  profile: Profile,
  fields: Record<string, Field>,
): Omit<CommonRequest, 'maxTokens' | 'logprobs'> {
  const refused = body.root.members.find(
    ([name, value]) => profile.refusedFields.has(name) && !Object.hasOwn(fields, name) && value.kind !== 'null',
  )
  if (refused !== undefined) throw unsupported(refused[0], `${refused[0]} is not served`)
  if (read('echo') === true) throw unsupported('echo', 'echo is not served')
  const choices = read('n') ?? 1
  if (choices > profile.maxChoices) throw unsupported('n', `n above ${profile.maxChoices} is not served`)
  read('user')
  const streamOptions = read('stream_options')
  return {
    model: read('model') ?? null,
    sampling: readSampling(read, body),
    choices,
    stream: read('stream') ?? false,
    includeUsage: streamOptions?.include_usage ?? false,
    ignored: body.root.members
      .map(([name]) => name)
      .filter((name) => !isKnown(name, fields, profile) && !profile.metadataFields.has(name)),
  }
}

function readSampling(read: Read<SharedFields>, body: Body): Sampling {
  const optional = {
    topK: read('top_k'),
    minP: read('min_p'),
    repetitionPenalty: read('repetition_penalty'),
    presencePenalty: read('presence_penalty'),
    frequencyPenalty: read('frequency_penalty'),
    stop: read('stop'),
    seed: readSeed(body),
    logitBias: read('logit_bias'),
  }
  const given = Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== undefined))
  return { temperature: read('temperature') ?? 1, topP: read('top_p') ?? 1, ...(given as Partial<Sampling>) }
}

/** A seed has more digits than a double holds, so it is read from its digits. */
function readSeed(body: Body): bigint | undefined {
  const value = member(body.root, 'seed')
  if (value === undefined) return undefined
  const seed = value.kind === 'int' ? BigInt(value.digits) : -1n
  if (seed < 0n || seed > MAX_SEED) throw badRequest('seed', `seed must be ${chatFields.seed.expected}`)
  return seed
}
