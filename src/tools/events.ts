/**
 * What the streaming parser says, and what becomes of it: the folded answer, the OpenAI message and the deltas.
 * Plain functions over plain values.
 */
import { fullProfile, type Profile } from '../openai/profile.js'
import { ValueScanner } from './value_scanner.js'

export type ToolEvent =
  | { readonly type: 'content'; readonly text: string }
  | { readonly type: 'callStart'; readonly index: number; readonly id: string; readonly name: string }
  | { readonly type: 'arguments'; readonly index: number; readonly fragment: string }

export interface ToolCall {
  readonly id: string
  readonly name: string
  /** The arguments' JSON text. */
  readonly arguments: string
  /** The answer ended before the arguments did. */
  readonly truncated?: true
}

export interface Collected {
  /** null when there was none. */
  readonly content: string | null
  readonly calls: readonly ToolCall[]
}

/**
 * Folds events into an answer. Whether the last call was cut is the parser's knowledge (`ToolParser.lastCallCut`);
 * without it, a last call whose brackets or string are still open counts as cut.
 */
export function collect(events: Iterable<ToolEvent>, options: { readonly lastCallCut?: boolean } = {}): Collected {
  const content: string[] = []
  const calls: { id: string; name: string; fragments: string[] }[] = []
  for (const event of events) {
    if (event.type === 'content') content.push(event.text)
    else if (event.type === 'callStart') calls[event.index] = { id: event.id, name: event.name, fragments: [] }
    else calls[event.index]?.fragments.push(event.fragment)
  }
  const text = content.join('')
  return {
    content: text === '' ? null : text,
    calls: calls.map(({ id, name, fragments }, index) => {
      const written = fragments.join('')
      const cut = index === calls.length - 1 && (options.lastCallCut ?? isOpen(written))
      // A call without arguments has the empty object; one that was cut shows what there is.
      const call = { id, name, arguments: written === '' && !cut ? '{}' : written }
      return cut ? { ...call, truncated: true } : call
    }),
  }
}

/** Whether a prefix of a JSON value still has an open bracket or string. */
function isOpen(text: string): boolean {
  const scanner = new ValueScanner()
  scanner.take(text, 0)
  return scanner.open
}

export type FinishReason = 'stop' | 'length' | 'tool_calls'

/**
 * `tool_calls` when any call was made, whatever the tool_choice. A last call that the token budget cut short is
 * `length` in the full profile, where clients that act on `tool_calls` must not act on half a call.
 */
export function finishReason(
  calls: number,
  engineReason: 'stop' | 'length',
  options: { readonly profile?: Profile; readonly lastCallCut?: boolean } = {},
): FinishReason {
  if (calls === 0) return engineReason
  const cut = options.lastCallCut === true && engineReason === 'length'
  return cut ? (options.profile ?? fullProfile).cutCall : 'tool_calls'
}

export interface WireToolCall {
  readonly id: string
  readonly type: 'function'
  readonly function: { readonly name: string; readonly arguments: string }
  readonly truncated?: true
}

export interface WireMessage {
  readonly role: 'assistant'
  readonly content: string | null
  readonly tool_calls?: readonly WireToolCall[]
}

/** The assistant message: beside calls the content is null rather than empty; without calls there is no `tool_calls`. */
export function messageJson(content: string | null, calls: readonly ToolCall[]): WireMessage {
  if (calls.length === 0) return { role: 'assistant', content }
  return {
    role: 'assistant',
    content: content === '' ? null : content,
    tool_calls: calls.map((call) => ({
      id: call.id,
      type: 'function',
      function: { name: call.name, arguments: call.arguments },
      ...(call.truncated ? { truncated: true } : {}),
    })),
  }
}

export interface WireDelta {
  readonly role?: 'assistant'
  readonly content?: string
  readonly tool_calls?: readonly {
    readonly index: number
    readonly id?: string
    readonly type?: 'function'
    readonly function: { readonly name?: string; readonly arguments: string }
  }[]
}

/** One event as a delta. A call's id, type and name are in its first delta and never again. */
export function deltaJson(event: ToolEvent): WireDelta {
  switch (event.type) {
    case 'content':
      return { content: event.text }
    case 'callStart': {
      const { index, id, name } = event
      return { tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] }
    }
    case 'arguments':
      return { tool_calls: [{ index: event.index, function: { arguments: event.fragment } }] }
  }
}
