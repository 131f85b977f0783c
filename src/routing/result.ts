/**
 * The user message that answers a routed call.
 *
 * A routed action is an ordinary assistant message, so its result is an ordinary user message: the conversation
 * alternates, and no model needs a tool template for it. The first line says which call is answered.
 */

/** Options of a result message. */
export interface RoutedResultOptions {
  /** Type: `boolean`. Default: `false`. The tool failed, and the content says how. */
  isError?: boolean
}

/**
 * The id of the call made in a round, counted from 1. A pure function of the round: there is one action per round, so the
 * id is unique within a run, and a replayed run has the same bytes.
 */
export function routedCallId(round: number): string {
  return `route-${round}`
}

/** The first line of a result message, without its line break. */
export function routedResultHeader(tool: string, callId: string, options: RoutedResultOptions = {}): string {
  return `Tool ${options.isError === true ? 'error' : 'result'} for ${tool} (call ${callId}):`
}

/** The whole result message: the header, a line break, the tool's content as it is. */
export function routedResultText(
  tool: string,
  callId: string,
  content: string,
  options: RoutedResultOptions = {},
): string {
  return `${routedResultHeader(tool, callId, options)}\n${content}`
}

/**
 * Takes a result message apart: `[header, content]`, or `[]` for any other text. It inverts `routedResultText` for every
 * content and every tool name without a line break.
 */
export function splitRoutedResult(text: string): [header: string, content: string] | [] {
  const end = text.indexOf('\n')
  if (end < 0) return []
  const header = text.slice(0, end)
  return /^Tool (?:result|error) for [^\n]+ \(call [^\n]+\):$/.test(header) ? [header, text.slice(end + 1)] : []
}
