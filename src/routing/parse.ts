/**
 * The strict reading of a routed reply.
 *
 * A reply that needs repairing is a reply the grammar did not constrain, so nothing is repaired here: no fences are
 * stripped, no JSON is dug out of prose, no letter case is folded. The action is checked, not the arguments: the tools'
 * own schemas are the caller's to enforce.
 */
import { parseJson, type JsonValue } from '../native.js'
import { isRecord, NO_TOOL } from './catalogue.js'

/** A reply that calls one of the offered tools. */
export interface RoutedCall<Name extends string = string, Arguments = Record<string, unknown>> {
  ok: true
  tool: Name
  arguments: Arguments
  /** The arguments as the model wrote them, so that key order and the spelling of numbers survive. */
  argumentsText: string
  /** The reply without the white space around it. */
  text: string
}

/** A reply that calls no tool. */
export interface RoutedNone {
  ok: true
  tool: typeof NO_TOOL
  arguments?: undefined
  argumentsText?: undefined
  text: string
}

/** A reply that is not. */
export interface RouteFailure {
  ok: false
  error: string
}

export type ParsedRoute = RoutedCall | RoutedNone | RouteFailure

/** At most this many characters of a reply are quoted in an error. */
const QUOTED_CHARACTERS = 64

/**
 * Reads a reply against the names that were offered. Never throws.
 *
 * @param text the whole reply
 * @param names the tools' names, as `routeToolNames` gives them
 */
export function parseRoute(text: string, names: readonly string[]): ParsedRoute {
  if (typeof text !== 'string') return failure('the reply is not text')
  const trimmed = text.replace(/^[ \t\n\r]+/, '').replace(/[ \t\n\r]+$/, '')
  let value: JsonValue
  try {
    value = parseJson(trimmed)
  } catch (error) {
    return failure(unreadable(trimmed, error))
  }
  if (value.kind !== 'object') return failure('the reply is not a JSON object')

  const repeated = value.repeated[0]
  if (repeated !== undefined) return failure(`the reply repeats the key ${quote(repeated)}`)
  const members = new Map(value.members)
  const tool = members.get('tool')
  if (tool === undefined) return failure('the reply has no "tool"')
  if (tool.kind !== 'string' || tool.value === '') return failure('"tool" is not a non-empty string')

  if (tool.value === NO_TOOL) {
    const extra = value.members.find(([key]) => key !== 'tool')
    if (extra !== undefined) return failure(`"${NO_TOOL}" takes no other key, and the reply has ${quote(extra[0])}`)
    return { ok: true, tool: NO_TOOL, text: trimmed }
  }

  if (!names.includes(tool.value)) return failure(`no tool is called ${quote(tool.value)}`)
  const extra = value.members.find(([key]) => key !== 'tool' && key !== 'arguments')
  if (extra !== undefined) return failure(`the reply has the unexpected key ${quote(extra[0])}`)
  const args = members.get('arguments')
  if (args === undefined) return failure('the reply has no "arguments"')
  if (args.kind !== 'object') return failure('"arguments" is not an object')

  const argumentsText = trimmed.slice(args.start, args.end)
  const parsed: unknown = JSON.parse(argumentsText)
  if (!isRecord(parsed) || !isFinite(parsed)) return failure(OUT_OF_RANGE)
  return { ok: true, tool: tool.value, arguments: parsed, argumentsText, text: trimmed }
}

const OUT_OF_RANGE = '"arguments" holds a number that is not finite'

/**
 * Why the reader refused a text. JavaScript's own reader turns `1e999` into infinity where ours refuses it, which tells a
 * number out of range from a text that is no JSON at all.
 */
function unreadable(text: string, error: unknown): string {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch {
    return 'the reply is not a JSON object'
  }
  if (!isRecord(value)) return 'the reply is not a JSON object'
  if (!isFinite(value)) return OUT_OF_RANGE
  return `the reply cannot be read: ${truncate(error instanceof Error ? error.message : String(error))}`
}

/** Whether every number anywhere in a value is finite. Iterative: the depth is a model's to choose. */
function isFinite(root: unknown): boolean {
  const pending = [root]
  while (pending.length > 0) {
    const value = pending.pop()
    if (typeof value === 'number') {
      if (!Number.isFinite(value)) return false
    } else if (typeof value === 'object' && value !== null) {
      for (const child of Object.values(value)) pending.push(child)
    }
  }
  return true
}

function failure(error: string): RouteFailure {
  return { ok: false, error }
}

/** A piece of the reply, as a JSON string of at most `QUOTED_CHARACTERS` characters of it. */
function quote(text: string): string {
  return JSON.stringify(truncate(text))
}

function truncate(text: string): string {
  const characters = Array.from(text.slice(0, 2 * QUOTED_CHARACTERS + 2))
  if (characters.length <= QUOTED_CHARACTERS) return text
  return `${characters.slice(0, QUOTED_CHARACTERS - 1).join('')}…`
}
