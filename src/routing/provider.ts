/**
 * Where tools come from. The shape fits a Model Context Protocol client: list what can be called, call it.
 */
import { isRecord, type RouteTool } from './catalogue.js'

/** What a tool gives back: its content as text, or a tool-protocol result. */
export type ToolOutcome =
  | string
  | {
      readonly content: string | readonly { readonly type: string; readonly [member: string]: unknown }[]
      readonly isError?: boolean | undefined
    }

/** A source of tools. */
export interface ToolProvider {
  /**
   * The catalogue as it stands now. With schema routing it is read again every round, so a provider may narrow it: to the
   * identifiers it has handed out so far, say.
   */
  toolsForLlm(): readonly RouteTool[] | Promise<readonly RouteTool[]>
  /** Calls a tool. What it throws becomes an error result that the model reads. */
  callTool(
    name: string,
    args: Record<string, unknown>,
    context: { signal: AbortSignal; callId: string; argumentsText: string },
  ): ToolOutcome | Promise<ToolOutcome>
}

/** A result as the conversation carries it. */
export interface ToolContent {
  content: string
  isError: boolean
}

/** The text of an outcome: text parts joined by line breaks, any other part as its JSON. */
export function toolContent(outcome: ToolOutcome): ToolContent {
  if (typeof outcome === 'string') return { content: outcome, isError: false }
  if (!isRecord(outcome)) return { content: JSON.stringify(outcome) ?? '', isError: false }
  const { content, isError } = outcome
  const parts = Array.isArray(content) ? content : [content]
  const text = parts.map((part: unknown) => {
    if (typeof part === 'string') return part
    if (isRecord(part) && part.type === 'text' && typeof part.text === 'string') return part.text
    return JSON.stringify(part) ?? ''
  })
  return { content: text.join('\n'), isError: isError === true }
}
