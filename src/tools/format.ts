/**
 * How calls are written in a model's text. A {@link ToolFormat} is a value: the tags, how a call and a result are
 * written, what the model is told, the grammar of a call's body and the parser that reads it back. The compact form
 * is the first; the forms model families were trained on can be further values.
 */
import type { GrammarDescription } from '../grammar.js'
import type { Profile } from '../openai/profile.js'
import { dumpJson } from '../native.js'
import type { ToolEvent } from './events.js'
import { ToolParser } from './parser.js'
import type { Tool } from './request.js'

/** The texts around a call. */
export interface CallTags {
  readonly open: string
  readonly close: string
}

export interface EventParser {
  readonly calls: number
  readonly lastCallCut: boolean
  push(piece: string): ToolEvent[]
  finish(): ToolEvent[]
}

export interface ToolFormat {
  readonly name: string
  readonly tags: CallTags
  /** Between two calls. */
  readonly separator: string
  /** A call, tags included; `args` is finished JSON text. */
  writeCall(name: string, args: string): string
  /** A tool's result, as a user turn. */
  writeResult(content: string): string
  /** What the model is told about its tools. */
  describe(tools: readonly Tool[]): string
  /** What follows the opening tag in a call of this tool, through the closing tag. */
  callBody(tool: Tool, profile: Profile): GrammarDescription
  parser(requestId: string, choice: number): EventParser
}

export const compactTags: CallTags = { open: '<tool_call>', close: '</tool_call>' }

/** `<tool_call>{"name":"…","arguments":…}</tool_call>` without any white space. */
export const compactFormat: ToolFormat = {
  name: 'compact',
  tags: compactTags,
  separator: '\n',
  writeCall: (name, args) =>
    `${compactTags.open}{"name":${JSON.stringify(name)},"arguments":${args}}${compactTags.close}`,
  writeResult: (content) => `<tool_response>${content}</tool_response>`,
  describe: (tools) =>
    [
      'You can call functions. These are the functions, one JSON object per line:',
      ...tools.map(toolLine),
      'To call a function, write its name and its arguments like this, with nothing before or after it:',
      `${compactTags.open}{"name":"<function name>","arguments":<arguments object>}${compactTags.close}`,
      'Several calls are written one per line. Results come back between <tool_response> and </tool_response>.',
    ].join('\n'),
  callBody: (tool, profile) => ({
    type: 'sequence',
    items: [
      { type: 'literal', text: `{"name":${JSON.stringify(tool.name)},"arguments":` },
      { type: 'schema', schema: tool.parameters, subset: profile.subset, whitespace: 'compact' },
      { type: 'literal', text: `}${compactTags.close}` },
    ],
  }),
  parser: (requestId, choice) => new ToolParser(requestId, { choice }),
}

/** A tool as one line of compact JSON; the parameters' key order is kept. */
function toolLine(tool: Tool): string {
  const description = tool.description === null ? '' : `,"description":${JSON.stringify(tool.description)}`
  const head = `{"type":"function","function":{"name":${JSON.stringify(tool.name)}${description}`
  return `${head},"parameters":${dumpJson(tool.parameters)}}}`
}
