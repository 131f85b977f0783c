/**
 * Checks a request's members one by one, so that a mistake is named, and turns it into what the native part takes.
 * Ranges that need the model (the context, token ids) are checked there.
 */
import { InvalidRequestError } from './errors.js'
import type { GenerateRequest, LoadOptions } from './engine.js'
import type { NativeLoadOptions, NativeRequest } from './native.js'

const MAX_U32 = 2 ** 32 - 1
const MAX_U64 = 2n ** 64n - 1n

type Check = (value: unknown, param: string) => unknown

function refuse(param: string, expected: string): never {
  throw new InvalidRequestError(`${param} must be ${expected}`, { details: { param } })
}

function integer(min: number, max: number): Check {
  return (value, param) => {
    if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max) return value
    return refuse(param, max === MAX_U32 ? `an integer of at least ${min}` : `an integer from ${min} to ${max}`)
  }
}

function number(min: number, max: number, above = false): Check {
  return (value, param) => {
    if (typeof value === 'number' && (above ? value > min : value >= min) && value <= max) return value
    return refuse(param, above ? `a number above ${min} and at most ${max}` : `a number from ${min} to ${max}`)
  }
}

const boolean: Check = (value, param) => (typeof value === 'boolean' ? value : refuse(param, 'true or false'))

const seed: Check = (value, param) => {
  if (typeof value === 'bigint' && value >= 0n && value <= MAX_U64) return value
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return BigInt(value)
  return refuse(param, 'an integer from 0 to 2^53 - 1, or a bigint from 0 to 2^64 - 1')
}

const stop: Check = (value, param) => {
  const list: unknown[] = Array.isArray(value) ? value : [value]
  if (list.length <= 16 && list.every((s) => typeof s === 'string' && s !== '')) return [...list]
  return refuse(param, 'a string or an array of at most 16 strings, none of them empty')
}

/** The seed of one of several answers to a request: the first has the request's, the next ones the numbers after it (63 bits). */
export function choiceSeed(seed: number | bigint, choice: number): bigint {
  return choice === 0 ? BigInt(seed) : BigInt.asUintN(63, BigInt(seed) + BigInt(choice))
}

/** Token ids as the native part takes them. */
export function toIds(value: unknown, param: string): Uint32Array {
  if (value instanceof Uint32Array) return value
  if (Array.isArray(value) && value.every((id) => Number.isInteger(id) && id >= 0 && id <= MAX_U32)) {
    return Uint32Array.from(value as number[])
  }
  return refuse(param, 'token ids: a Uint32Array or an array of integers')
}

function logitBias(value: unknown, param: string): Pick<NativeRequest, 'logitBias' | 'logitBiasTokens'> {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    refuse(param, 'an object from token ids to numbers')
  const entries = Object.entries(value)
  for (const [id, bias] of entries) {
    if (!/^(0|[1-9]\d{0,9})$/.test(id) || Number(id) > MAX_U32)
      refuse(`${param}[${JSON.stringify(id)}]`, 'keyed by a token id')
    number(-100, 100)(bias, `${param}[${id}]`)
  }
  return {
    logitBiasTokens: Uint32Array.from(entries, ([id]) => Number(id)),
    logitBias: Float64Array.from(entries, ([, bias]) => bias as number),
  }
}

/** Members that cross as they are. */
const CHECKS: Partial<Record<keyof GenerateRequest, Check>> = {
  maxTokens: integer(1, MAX_U32),
  temperature: number(0, 100),
  topK: integer(0, MAX_U32),
  topP: number(0, 1, true),
  minP: number(0, 1),
  repetitionPenalty: number(0, 100, true),
  presencePenalty: number(-2, 2),
  frequencyPenalty: number(-2, 2),
  seed,
  stop,
  logprobs: integer(0, 20),
  removedMass: boolean,
  ignoreEos: boolean,
  promptSpecial: boolean,
  closeWithinBudget: boolean,
}

/** Checks a request and converts it; a `messages` request has no prompt yet. */
export function toNativeRequest(request: GenerateRequest): NativeRequest {
  if (typeof request !== 'object' || request === null) refuse('the request', 'an object')
  const native: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(request)) {
    if (value === undefined) continue
    const check = CHECKS[key as keyof GenerateRequest]
    if (check !== undefined) native[key] = check(value, key)
    else convert(native, key, value)
  }
  const { prompt, messages } = request
  if ((prompt === undefined) === (messages === undefined)) {
    throw new InvalidRequestError('a request has either prompt or messages', { details: { param: 'prompt' } })
  }
  return native as NativeRequest
}

/** The members that do not cross as they are. */
function convert(native: Record<string, unknown>, key: string, value: unknown): void {
  switch (key) {
    case 'prompt':
      if (typeof value === 'string') native.promptText = value
      else native.prompt = toIds(value, key)
      break
    case 'messages':
      if (!Array.isArray(value)) refuse(key, 'an array')
      break
    case 'grammar': {
      const description = (value as { description?: unknown } | null)?.description
      if (typeof description !== 'object' || description === null) {
        refuse(key, 'made by regex(), choice(), jsonSchema() or jsonObject()')
      }
      native.grammar = JSON.stringify(description)
      break
    }
    case 'logitBias':
      Object.assign(native, logitBias(value, key))
      break
    case 'contextOverflow':
      if (value !== 'error' && value !== 'truncate') refuse(key, '"error" or "truncate"')
      native.truncate = value === 'truncate'
      break
    case 'signal':
      if (typeof (value as AbortSignal | null)?.addEventListener !== 'function') refuse(key, 'an AbortSignal')
      break
    default:
      throw new InvalidRequestError(`${key} is not a member of a request`, { details: { param: key } })
  }
}

const bytes = integer(0, Number.MAX_SAFE_INTEGER)

const LOAD_CHECKS: Partial<Record<keyof LoadOptions, Check>> = {
  contextLength: integer(2, MAX_U32),
  device: (value, param) => (typeof value === 'string' ? value : refuse(param, 'the name of a device, such as "cpu"')),
  forward: (value, param) =>
    value === 'packed' || value === 'reference' ? value : refuse(param, '"packed" or "reference"'),
  prefill: (value, param) => (value === 'exact' || value === 'fast' ? value : refuse(param, '"exact" or "fast"')),
  threads: integer(1, 1024),
  parallel: integer(1, 4096),
  maxQueue: integer(0, 65536),
  kvBytes: bytes,
  prefillChunk: integer(1, MAX_U32),
  grammarCacheBytes: bytes,
}

/** Checks the options of `load` that the native part takes. */
export function toNativeLoadOptions(options: LoadOptions): NativeLoadOptions {
  const native: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined) continue
    const check = LOAD_CHECKS[key as keyof LoadOptions]
    if (check === undefined) {
      throw new InvalidRequestError(`${key} is not an option of load()`, { details: { param: key } })
    }
    native[key] = check(value, key)
  }
  const tier = process.env['TINYLLM_CPU']
  if (tier !== undefined) native.cpu = tier
  return native as NativeLoadOptions
}
