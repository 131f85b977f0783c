/**
 * The agent loop: ask for the next action, run it, answer it, until the model decides that it is done.
 *
 * With schema routing every reply of the routing phase is one of the offered actions; a reply that is not one is never
 * repaired and never enters the conversation. The messages of a run are a pure function of its inputs and of what the
 * model and the tools said: replaying those gives the same bytes.
 *
 * Every step is an event of the run, which is an async iterable; leaving the iteration aborts what is under way.
 */
import { AbortError, InvalidRequestError } from '../errors.js'
import { throwIfAborted, untilAborted } from './abort.js'
import { ArgumentChecks } from './arguments.js'
import {
  canRoute,
  routedBackend,
  routingCap,
  type AgentMessage,
  type AgentToolCall,
  type Backend,
  type Completion,
  type CompletionRequest,
} from './backend.js'
import { checkCatalogue, isRecord, NO_TOOL, type CheckedTool, type RouteTool } from './catalogue.js'
import { CallLimits, DEFAULT_LIMITS, type LimitName, type LoopLimits } from './limits.js'
import { parseRoute, type RoutedCall, type RoutedNone } from './parse.js'
import { toolContent, type ToolContent, type ToolProvider } from './provider.js'
import { routedCallId, routedResultText } from './result.js'
import { routeSchema } from './schema.js'

/** Options of `runToolLoop`. */
export interface ToolLoopOptions {
  backend: Backend
  provider: ToolProvider
  /** The conversation so far; it is not changed. */
  messages: readonly AgentMessage[]
  /**
   * Default: `schema`. `schema` asks for each action as a constrained choice and answers it with a user message;
   * `native` uses the backend's own tool calling.
   */
  toolRouting?: 'schema' | 'native'
  /** Type: tokens. Default: 512. The most a routed reply may take; the backend's own budget where that is lower. */
  maxRouteTokens?: number
  /** Default: 3. How often a failed route is asked for again in its round. */
  maxRetries?: number
  limits?: Partial<LoopLimits>
  /** Default: `true`. After the routing phase, ask for one ordinary, unconstrained answer. */
  finalTurn?: boolean
  /** Default: 0. Attempt k of a round uses `seed + k`. */
  seed?: number
  signal?: AbortSignal
}

/** A step of a run. */
export type ToolLoopEvent =
  | { type: 'round'; round: number; tools: string[] }
  | { type: 'attempt'; round: number; attempt: number; seed: number; temperature: number | undefined }
  | { type: 'text'; phase: 'route' | 'answer'; round: number; text: string }
  | { type: 'route_invalid'; round: number; attempt: number; error: string; text: string; cut: boolean }
  | { type: 'route'; round: number; action: RoutedCall | RoutedNone }
  | { type: 'call'; round: number; callId: string; tool: string; arguments: unknown; argumentsText: string }
  | { type: 'result'; round: number; callId: string; tool: string; content: string; isError: boolean }
  | { type: 'limit'; round: number; limit: LimitName; max: number }
  | { type: 'route_failed'; round: number; attempts: number; error: string }
  | { type: 'answer'; text: string; cut: boolean }
  | { type: 'done'; result: ToolLoopResult }

/** What ended the routing phase. */
export type RoutingEnd = 'none' | 'route_failed' | 'limit'

/** The outcome of a run. */
export interface ToolLoopResult {
  /** The whole conversation, the given messages included. */
  messages: AgentMessage[]
  /** The answer; undefined where no final turn was asked for. */
  text: string | undefined
  /** `none`: the model was done. Otherwise the routing phase was ended for it. */
  ended: RoutingEnd
  /** The limit that ended it. */
  limit?: LimitName
  /** What was wrong with the last attempt of a failed route. */
  error?: string
  rounds: number
  calls: number
  /** Summed over every request whose usage is known, failed routes included. */
  usage: { promptTokens: number; completionTokens: number }
}

/** A run. It can be iterated once; `final()` drains what nobody iterated over. */
export interface ToolLoopRun extends AsyncIterable<ToolLoopEvent> {
  /** The outcome; rejects with what ended the run early, an `AbortError` for an abort. */
  final(): Promise<ToolLoopResult>
}

const RETRY_TEMPERATURE = 0.7
const DEFAULT_ROUTE_TOKENS = 512
const DEFAULT_RETRIES = 3

/** A cut reply is a failed route even where its JSON closed: what it would have gone on to say is unknown. */
const CUT = { ok: false, error: 'the reply was cut at its token budget' } as const

/**
 * Starts a run. Nothing is asked until it is iterated over or `final()` is called.
 *
 * @throws {InvalidRequestError} naming the option that is wrong
 */
export function runToolLoop(options: ToolLoopOptions): ToolLoopRun {
  checkOptions(options)
  const events = new Run(options).events()
  let outcome: ToolLoopResult | undefined
  let failure: unknown = new AbortError('The run was left before its end')
  async function* observed(): AsyncGenerator<ToolLoopEvent, void> {
    try {
      for await (const event of events) {
        if (event.type === 'done') outcome = event.result
        yield event
      }
    } catch (error) {
      failure = error
      throw error
    }
  }
  const iterator = observed()
  return {
    [Symbol.asyncIterator]: () => iterator,
    async final() {
      for await (const _event of iterator);
      if (outcome === undefined) throw failure
      return outcome
    },
  }
}

function checkOptions({
  backend,
  toolRouting = 'schema',
  maxRouteTokens,
  maxRetries,
  limits = {},
}: ToolLoopOptions): void {
  const refuse = (param: string, expected: string): never => {
    throw new InvalidRequestError(`${param} must be ${expected}`, { details: { param } })
  }
  if (toolRouting !== 'schema' && toolRouting !== 'native') refuse('toolRouting', '"schema" or "native"')
  if (toolRouting === 'schema' && !canRoute(backend)) refuse('backend', 'one that can be cloned with other settings')
  const count = (param: string, value: unknown, least: number): void => {
    if (value !== undefined && !(Number.isSafeInteger(value) && (value as number) >= least)) {
      refuse(param, `an integer, ${least} or more`)
    }
  }
  count('maxRouteTokens', maxRouteTokens, 1)
  count('maxRetries', maxRetries, 0)
  for (const [name, value] of Object.entries(limits)) {
    if (!Object.hasOwn(DEFAULT_LIMITS, name))
      refuse(`limits.${name}`, `one of ${Object.keys(DEFAULT_LIMITS).join(', ')}`)
    count(`limits.${name}`, value, 0)
  }
}

class Run {
  readonly #options: ToolLoopOptions
  readonly #messages: AgentMessage[]
  readonly #limits: CallLimits
  readonly #checks = new ArgumentChecks()
  readonly #usage = { promptTokens: 0, completionTokens: 0 }
  /** Fires on the caller's signal and when the caller leaves the iteration. */
  readonly #abort = new AbortController()
  #rounds = 0

  constructor(options: ToolLoopOptions) {
    this.#options = options
    this.#messages = [...options.messages]
    const given = Object.entries(options.limits ?? {}).filter(([, value]) => value !== undefined)
    this.#limits = new CallLimits({ ...DEFAULT_LIMITS, ...Object.fromEntries(given) })
  }

  async *events(): AsyncGenerator<ToolLoopEvent, void> {
    const { signal, toolRouting = 'schema' } = this.#options
    throwIfAborted(signal)
    const forward = (): void => this.#abort.abort(signal?.reason)
    signal?.addEventListener('abort', forward, { once: true })
    try {
      const result = toolRouting === 'native' ? yield* this.#native() : yield* this.#routed()
      yield { type: 'done', result }
    } finally {
      signal?.removeEventListener('abort', forward)
      this.#abort.abort()
    }
  }

  async *#routed(): AsyncGenerator<ToolLoopEvent, ToolLoopResult> {
    for (let round = 1; ; round += 1) {
      if (!this.#limits.allowsRound(round)) return yield* this.#limited(round, 'rounds')
      this.#rounds = round
      const catalogue = await this.#catalogue()
      const tools = checkCatalogue(catalogue)
      this.#checks.prepare(tools)
      yield { type: 'round', round, tools: tools.map(({ name }) => name) }

      const action = yield* this.#route(round, catalogue, tools)
      if (!action.ok) return yield* this.#answer('route_failed', { error: action.error })
      yield { type: 'route', round, action }
      if (action.arguments === undefined) return yield* this.#answer(NO_TOOL)

      const over = this.#limits.admit([{ name: action.tool, arguments: action.arguments }])
      if (over !== undefined) return yield* this.#limited(round, over)
      this.#messages.push({ role: 'assistant', content: action.text })
      const callId = routedCallId(round)
      const { content, isError } = yield* this.#call(round, callId, action.tool, action.arguments, action.argumentsText)
      this.#messages.push({ role: 'user', content: routedResultText(action.tool, callId, content, { isError }) })
    }
  }

  /** One action, asked for until an attempt gives one or the attempts are used up. */
  async *#route(
    round: number,
    catalogue: readonly RouteTool[],
    tools: readonly CheckedTool[],
  ): AsyncGenerator<ToolLoopEvent, ReturnType<typeof parseRoute>> {
    const { backend, maxRouteTokens = DEFAULT_ROUTE_TOKENS, maxRetries = DEFAULT_RETRIES, seed = 0 } = this.#options
    const router = routedBackend(backend, routeSchema(catalogue), routingCap(backend, maxRouteTokens))
    const names = tools.map(({ name }) => name)
    let error = ''
    for (let attempt = 0; attempt <= maxRetries; attempt += 1) {
      const own = backend.settings.temperature
      const temperature = attempt === 0 ? own : Math.max(RETRY_TEMPERATURE, own ?? 0)
      yield { type: 'attempt', round, attempt, seed: seed + attempt, temperature }
      const reply = yield* this.#ask(router, 'route', {
        messages: this.#messages,
        seed: seed + attempt,
        ...(temperature === undefined ? {} : { temperature }),
      })
      const action = reply.cut ? CUT : this.#checked(parseRoute(reply.text, names), tools)
      if (action.ok) return action
      error = action.error
      yield { type: 'route_invalid', round, attempt, error, text: reply.text, cut: reply.cut }
    }
    yield { type: 'route_failed', round, attempts: maxRetries + 1, error }
    return { ok: false, error }
  }

  /** The action, if its arguments fit the tool's own parameters. */
  #checked(action: ReturnType<typeof parseRoute>, tools: readonly CheckedTool[]): ReturnType<typeof parseRoute> {
    if (!action.ok || action.arguments === undefined) return action
    const tool = tools.find(({ name }) => name === action.tool)
    const error = tool === undefined ? undefined : this.#checks.problem(tool, action.arguments)
    return error === undefined ? action : { ok: false, error }
  }

  async *#native(): AsyncGenerator<ToolLoopEvent, ToolLoopResult> {
    const { backend, seed = 0 } = this.#options
    const catalogue = await this.#catalogue()
    const tools = checkCatalogue(catalogue)
    this.#checks.prepare(tools)
    for (let round = 1; ; round += 1) {
      if (!this.#limits.allowsRound(round)) return yield* this.#limited(round, 'rounds')
      this.#rounds = round
      yield { type: 'round', round, tools: tools.map(({ name }) => name) }
      const reply = yield* this.#ask(backend, 'answer', { messages: this.#messages, tools: catalogue, seed })
      if (reply.toolCalls.length === 0) {
        this.#messages.push({ role: 'assistant', content: reply.text })
        yield { type: 'answer', text: reply.text, cut: reply.cut }
        return this.#result(NO_TOOL, reply.text)
      }
      const calls = reply.toolCalls.map((call) => readCall(call, tools, this.#checks))
      const over = this.#limits.admit(calls.map(({ name, arguments: args }) => ({ name, arguments: args })))
      if (over !== undefined) return yield* this.#limited(round, over)
      this.#messages.push({
        role: 'assistant',
        content: reply.text === '' ? null : reply.text,
        tool_calls: reply.toolCalls,
      })
      for (const { id, name, arguments: args, argumentsText, problem } of calls) {
        const { content } =
          problem === undefined
            ? yield* this.#call(round, id, name, args, argumentsText)
            : yield* this.#refused(round, id, name, args, argumentsText, problem)
        this.#messages.push({ role: 'tool', tool_call_id: id, content })
      }
    }
  }

  async #catalogue(): Promise<readonly RouteTool[]> {
    throwIfAborted(this.#options.signal)
    const tools = await untilAborted(this.#options.provider.toolsForLlm(), this.#abort.signal)
    throwIfAborted(this.#options.signal)
    return tools
  }

  async *#call(
    round: number,
    callId: string,
    tool: string,
    args: Record<string, unknown>,
    argumentsText: string,
  ): AsyncGenerator<ToolLoopEvent, ToolContent> {
    yield { type: 'call', round, callId, tool, arguments: args, argumentsText }
    throwIfAborted(this.#options.signal)
    let result: ToolContent
    try {
      const context = { signal: this.#abort.signal, callId, argumentsText }
      const outcome = this.#options.provider.callTool(tool, args, context)
      result = toolContent(await untilAborted(outcome, this.#abort.signal))
    } catch (error) {
      throwIfAborted(this.#options.signal)
      result = { content: error instanceof Error ? error.message : String(error), isError: true }
    }
    throwIfAborted(this.#options.signal)
    yield { type: 'result', round, callId, tool, ...result }
    return result
  }

  /** A native call that cannot be made; the model reads why. */
  async *#refused(
    round: number,
    callId: string,
    tool: string,
    args: unknown,
    argumentsText: string,
    problem: string,
  ): AsyncGenerator<ToolLoopEvent, ToolContent> {
    yield { type: 'call', round, callId, tool, arguments: args, argumentsText }
    yield { type: 'result', round, callId, tool, content: problem, isError: true }
    return { content: problem, isError: true }
  }

  async *#limited(round: number, limit: LimitName): AsyncGenerator<ToolLoopEvent, ToolLoopResult> {
    yield { type: 'limit', round, limit, max: this.#limits.max(limit) }
    return yield* this.#answer('limit', { limit })
  }

  /** The final turn: ordinary, unconstrained, without tools. */
  async *#answer(
    ended: RoutingEnd,
    why: Pick<ToolLoopResult, 'limit' | 'error'> = {},
  ): AsyncGenerator<ToolLoopEvent, ToolLoopResult> {
    const { backend, finalTurn = true, seed = 0 } = this.#options
    if (!finalTurn) return this.#result(ended, undefined, why)
    const reply = yield* this.#ask(backend, 'answer', { messages: this.#messages, seed })
    this.#messages.push({ role: 'assistant', content: reply.text })
    yield { type: 'answer', text: reply.text, cut: reply.cut }
    return this.#result(ended, reply.text, why)
  }

  #result(
    ended: RoutingEnd,
    text: string | undefined,
    why: Pick<ToolLoopResult, 'limit' | 'error'> = {},
  ): ToolLoopResult {
    const counts = { rounds: this.#rounds, calls: this.#limits.calls, usage: { ...this.#usage } }
    return { messages: this.#messages, text, ended, ...why, ...counts }
  }

  /** One request, its text passed on as it arrives. */
  async *#ask(
    backend: Backend,
    phase: 'route' | 'answer',
    request: CompletionRequest,
  ): AsyncGenerator<ToolLoopEvent, Completion> {
    throwIfAborted(this.#options.signal)
    const pieces: string[] = []
    let settled = false
    let wake = (): void => undefined
    const asked = backend.complete({
      ...request,
      // A backend that keeps what it is given must not see the conversation grow.
      messages: [...request.messages],
      signal: this.#abort.signal,
      onText(piece) {
        pieces.push(piece)
        wake()
      },
    })
    const reply = untilAborted(asked, this.#abort.signal)
    const settle = (): void => {
      settled = true
      wake()
    }
    reply.then(settle, settle)
    while (!settled || pieces.length > 0) {
      throwIfAborted(this.#options.signal)
      if (pieces.length > 0) yield { type: 'text', phase, round: this.#rounds, text: pieces.splice(0).join('') }
      else await new Promise<void>((resolve) => (wake = resolve))
    }
    const completion = await reply
    throwIfAborted(this.#options.signal)
    if (completion.usage !== undefined) {
      this.#usage.promptTokens += completion.usage.promptTokens
      this.#usage.completionTokens += completion.usage.completionTokens
    }
    return completion
  }
}

interface NativeCall {
  id: string
  name: string
  arguments: Record<string, unknown>
  argumentsText: string
  problem: string | undefined
}

function readCall(call: AgentToolCall, tools: readonly CheckedTool[], checks: ArgumentChecks): NativeCall {
  const { name, arguments: argumentsText } = call.function
  const read = { id: call.id, name, argumentsText, arguments: {} as Record<string, unknown> }
  const tool = tools.find((candidate) => candidate.name === name)
  if (tool === undefined) return { ...read, problem: `no tool is called ${JSON.stringify(name)}` }
  let value: unknown
  try {
    value = JSON.parse(argumentsText)
  } catch {
    return { ...read, problem: 'the arguments are not JSON' }
  }
  if (!isRecord(value)) return { ...read, problem: 'the arguments are not a JSON object' }
  return { ...read, arguments: value, problem: checks.problem(tool, value) }
}
