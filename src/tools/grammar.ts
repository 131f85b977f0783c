/**
 * From tools, tool_choice and response_format to what the model may write. Pure: it puts descriptions together and
 * compiles nothing.
 */
import type { GrammarDescription } from '../grammar.js'
import { schemaToRegex, jsonObjectRegex } from '../native.js'
import type { Profile } from '../openai/profile.js'
import { compactFormat, type ToolFormat } from './format.js'
import { callableTools, type ResponseFormat, type Tool, type ToolRequest } from './request.js'

/** How deep an object under `response_format: json_object` may nest. */
const OBJECT_DEPTH = 3

export interface ToolGrammar {
  readonly description: GrammarDescription
  /** Text that ends the free part of an answer; null when the grammar holds from the first token. */
  readonly trigger: string | null
  /**
   * The grammar as one pattern of the strict regex subset; after a trigger, the pattern of what follows it. Computed
   * when read; only schemas of the strict subset have one.
   */
  readonly pattern: string
}

/** What an answer to the request may be; null when it is free text. */
export function grammar(request: ToolRequest, format: ToolFormat = compactFormat): ToolGrammar | null {
  const description = describeAnswer(request, format)
  if (description === null) return null
  const body = description.type === 'trigger' ? description.body : description
  return {
    description,
    trigger: description.type === 'trigger' ? description.trigger : null,
    get pattern() {
      return patternOf(body)
    },
  }
}

function describeAnswer(request: ToolRequest, format: ToolFormat): GrammarDescription | null {
  const { choice, parallel, profile } = request
  const answer = describeFormat(request.responseFormat, profile)
  if (choice === 'none') return answer
  const tools = callableTools(request)
  if (typeof choice === 'object') return calls(tools, 1, format, profile)
  if (choice === 'required') return calls(tools, parallel ? profile.maxCalls : 1, format, profile)

  const most = parallel ? profile.maxAutoCalls : 1
  if (answer !== null && profile.answerBesideTools) {
    return { type: 'alternative', options: [calls(tools, most, format, profile), answer] }
  }
  const first = alternative(tools.map((tool) => format.callBody(tool, profile)))
  const more: GrammarDescription = {
    type: 'repeat',
    item: { type: 'sequence', items: [literal(format.separator), calls(tools, 1, format, profile)] },
    separator: '',
    min: 0,
    max: most - 1,
  }
  return {
    type: 'trigger',
    trigger: format.tags.open,
    body: most === 1 ? first : { type: 'sequence', items: [first, more] },
  }
}

/** What `response_format` alone asks for. */
function describeFormat(format: ResponseFormat, profile: Profile): GrammarDescription | null {
  switch (format.type) {
    case 'text':
      return null
    case 'json_schema':
      if (format.schema !== null) {
        return { type: 'schema', schema: format.schema, subset: profile.subset, whitespace: 'compact' }
      }
    // falls through: without a schema any object is an answer
    case 'json_object':
      return { type: 'json_object', depth: OBJECT_DEPTH, finite: profile.finite }
  }
}

/** One to `most` calls of any of the tools. */
function calls(tools: readonly Tool[], most: number, format: ToolFormat, profile: Profile): GrammarDescription {
  const one: GrammarDescription = {
    type: 'sequence',
    items: [literal(format.tags.open), alternative(tools.map((tool) => format.callBody(tool, profile)))],
  }
  return most === 1 ? one : { type: 'repeat', item: one, separator: format.separator, min: 1, max: most }
}

function literal(text: string): GrammarDescription {
  return { type: 'literal', text }
}

function alternative(options: readonly GrammarDescription[]): GrammarDescription {
  return options.length === 1 && options[0] !== undefined ? options[0] : { type: 'alternative', options }
}

/** A description as one pattern of the strict regex subset. */
function patternOf(description: GrammarDescription): string {
  switch (description.type) {
    case 'regex':
      return `(?:${description.pattern})`
    case 'literal':
      return escapePattern(description.text)
    case 'choice':
      return `(?:${description.choices.map(escapePattern).join('|')})`
    case 'schema':
      return schemaToRegex(description.schema)
    case 'json_object':
      return jsonObjectRegex(description.depth)
    case 'sequence':
      return description.items.map(patternOf).join('')
    case 'alternative':
      return `(?:${description.options.map(patternOf).join('|')})`
    case 'repeat': {
      const { item, separator, min, max } = description
      const one = patternOf(item)
      const most = max ?? ''
      if (separator === '') return `(?:${one}){${min},${most}}`
      const rest = `(?:${escapePattern(separator)}${one}){${Math.max(min - 1, 0)},${max === undefined ? '' : max - 1}}`
      return min === 0 ? `(?:${one}${rest})?` : `${one}${rest}`
    }
    case 'trigger':
      return patternOf(description.body)
  }
}

/** A text as a pattern that matches its UTF-8 bytes and nothing else. */
function escapePattern(text: string): string {
  const parts = Array.from(new TextEncoder().encode(text), (byte) => {
    const char = String.fromCharCode(byte)
    if (/[A-Za-z0-9]/.test(char)) return char
    if ('\\.*+?()[]{}|^$/"-,:#&~\' '.includes(char)) return `\\${char}`
    return `\\x${byte.toString(16).padStart(2, '0')}`
  })
  return parts.join('')
}
