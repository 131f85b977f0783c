/**
 * The loop of an agent: answer, run the functions that were called, tell their results, answer again, until an answer
 * calls nothing. It ends: turns and calls are bounded, and a forced choice holds for the first turn only.
 */
import type { Usage } from '../engine.js'
import { AbortError, InvalidRequestError } from '../errors.js'
import type { TextEngine } from './answer.js'
import { chat, type ChatOptions, type ChatResult, type Message } from './chat.js'
import type { RunnableTool, TypedCall } from './tools.js'

export interface RunToolsOptions<T extends RunnableTool = RunnableTool> extends ChatOptions<T> {
  readonly tools: readonly T[]
  /** Answers at most; the run ends with the last one even if it calls something. Default: 10. */
  readonly maxTurns?: number
  /** Function runs at most, over all turns. Default: 32. */
  readonly maxCalls?: number
  /** Told before each function runs. */
  readonly onCall?: (call: TypedCall<T>) => void
}

export interface RunToolsResult<T extends RunnableTool = RunnableTool> {
  /** The last answer. */
  readonly answer: ChatResult<T>
  /** `answer`: an answer called nothing. `turns`, `calls`: a bound was reached. `cut`: the token budget cut a call. */
  readonly ended: 'answer' | 'turns' | 'calls' | 'cut'
  /** The whole conversation, the last answer included. */
  readonly messages: readonly Message[]
  readonly turns: number
  readonly usage: Usage
}

export async function runTools<const T extends RunnableTool>(
  engine: TextEngine,
  options: RunToolsOptions<T>,
): Promise<RunToolsResult<T>> {
  const { maxTurns = 10, maxCalls = 32, onCall, ...request } = options
  for (const [name, value] of Object.entries({ maxTurns, maxCalls })) {
    if (!Number.isInteger(value) || value < 1) throw new InvalidRequestError(`${name} must be an integer, 1 or more`)
  }
  const signal = options.signal ?? new AbortController().signal
  const messages: Message[] = [...options.messages]
  let usage: Usage = { promptTokens: 0, completionTokens: 0, totalTokens: 0, cachedTokens: 0 }
  let made = 0
  for (let turns = 1; ; turns += 1) {
    const answer = await chat<T>(engine, {
      ...request,
      messages,
      // Forced again and again, a model could never answer.
      ...(turns > 1 && isForced(options.toolChoice) ? { toolChoice: 'auto' } : {}),
    })
    messages.push(answer.message)
    usage = sum(usage, answer.usage)
    const end = (ended: RunToolsResult['ended']) => ({ answer, ended, messages, turns, usage })
    if (answer.cutCall !== undefined) return end('cut')
    if (answer.calls.length === 0) return end('answer')
    if (turns === maxTurns) return end('turns')
    if (made + answer.calls.length > maxCalls) return end('calls')
    made += answer.calls.length

    const run = async (call: TypedCall<T>) => {
      if (signal.aborted) throw new AbortError()
      onCall?.(call)
      return await execute(call, options.tools, signal)
    }
    // Calls of one answer do not wait for each other, unless parallel calls are off; results are told in call order.
    const results =
      options.parallelToolCalls === false ? await oneByOne(answer.calls, run) : await Promise.all(answer.calls.map(run))
    answer.calls.forEach((call, i) => {
      messages.push({ role: 'tool', tool_call_id: call.id, content: results[i] ?? '' })
    })
  }
}

function isForced(choice: ChatOptions['toolChoice']): boolean {
  return choice === 'required' || (typeof choice === 'object' && !('allowed' in choice && choice.mode === 'auto'))
}

/** Runs one function. What it throws ends the run: an error of a program is not a result for a model. */
async function execute<T extends RunnableTool>(call: TypedCall<T>, tools: readonly T[], signal: AbortSignal) {
  const tool = tools.find(({ name }) => name === call.name)
  // The grammar knows only these tools, but an engine of one's own may hold no grammar.
  if (tool === undefined)
    return `There is no function "${call.name}". There are: ${tools.map(({ name }) => name).join(', ')}.`
  const result = await tool.execute(call.arguments as never, { id: call.id, signal })
  return typeof result === 'string' ? result : JSON.stringify(result ?? null)
}

async function oneByOne<T, R>(items: readonly T[], run: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  for (const item of items) results.push(await run(item))
  return results
}

function sum(a: Usage, b: Usage): Usage {
  return {
    promptTokens: a.promptTokens + b.promptTokens,
    completionTokens: a.completionTokens + b.completionTokens,
    totalTokens: a.totalTokens + b.totalTokens,
    cachedTokens: a.cachedTokens + b.cachedTokens,
  }
}
