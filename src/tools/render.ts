/**
 * From a conversation to what the model's chat template takes: tools told in one system text, calls and results
 * written back the way they were generated, content as plain strings. Pure, except that {@link renderPrompt} asks the
 * engine to apply the template.
 */
import { TinyLlmError } from '../errors.js'
import type { Engine, RenderedChat } from '../engine.js'
import { parseJson } from '../native.js'
import { fullProfile, type Profile } from '../openai/profile.js'
import { badRequest, unsupported } from '../openai/tool_error.js'
import { compactFormat, type ToolFormat } from './format.js'
import type { Tool } from './request.js'
import { minifyJson } from './value_scanner.js'

/** A part of a message: written by this renderer, or somebody else's text, which never becomes control tokens. */
export interface MessageSegment {
  readonly text: string
  readonly foreign: boolean
}

export interface RenderedMessage {
  readonly role: 'system' | 'user' | 'assistant'
  /** The segments' texts, joined. */
  readonly content: string
  readonly segments: readonly MessageSegment[]
}

export interface RenderOptions {
  readonly profile?: Profile
  readonly format?: ToolFormat
}

/** Renders a conversation (`messages` of a request) and its tools. Throws a 400 or 422 that names the message. */
export function renderMessages(
  messages: unknown,
  tools: readonly Tool[],
  options: RenderOptions = {},
): RenderedMessage[] {
  const { profile = fullProfile, format = compactFormat } = options
  if (!Array.isArray(messages)) throw badRequest('messages', 'messages must be an array')
  const rendered = messages.map((message: unknown, i) => renderMessage(message, `messages[${i}]`, profile, format))
  if (tools.length === 0) return rendered

  const told: MessageSegment = { text: format.describe(tools), foreign: true }
  // A conversation has one system message: the tools join the one that is there, wherever the client put it.
  const at = rendered.findIndex(({ role }) => role === 'system')
  const existing = rendered[at]
  if (existing === undefined) return [join('system', [told]), ...rendered]
  const separator: MessageSegment = { text: '\n\n', foreign: false }
  return rendered.with(at, join('system', [...existing.segments, separator, told]))
}

/** The prompt of a conversation: {@link renderMessages} through the model's template, up to the answer's opening. */
export async function renderPrompt(
  engine: Pick<Engine, 'renderChat'>,
  messages: unknown,
  tools: readonly Tool[],
  options: RenderOptions = {},
): Promise<RenderedChat> {
  const rendered = renderMessages(messages, tools, options)
  return await engine.renderChat({
    messages: rendered.map(({ role, content }) => ({ role, content })),
    addGenerationPrompt: true,
  })
}

function renderMessage(message: unknown, at: string, profile: Profile, format: ToolFormat): RenderedMessage {
  if (!isRecord(message)) throw badRequest(at, `${at} must be an object`)
  const role = message['role']
  if (typeof role !== 'string') throw badRequest(`${at}.role`, `${at}.role must be a string`)
  const content = readContent(message['content'], `${at}.content`, profile)
  switch (role) {
    case 'system':
    case 'developer':
      return join('system', [{ text: content, foreign: true }])
    case 'user':
      return join('user', [{ text: content, foreign: true }])
    case 'assistant':
      return join('assistant', [{ text: content, foreign: true }, ...readCalls(message['tool_calls'], at, format)])
    case 'tool':
      return join('user', [{ text: format.writeResult(content), foreign: true }])
    default:
      throw badRequest(`${at}.role`, `${at}.role must be system, developer, user, assistant or tool, not "${role}"`)
  }
}

/** Content as one string: null and absent are empty, text parts are joined. */
function readContent(content: unknown, param: string, profile: Profile): string {
  if (content === undefined || content === null) return ''
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) throw badRequest(param, `${param} must be a string`)
  if (!profile.contentParts) throw unsupported(param, `${param}: content given as parts is not served`)
  return content
    .map((part: unknown, j) => {
      if (!isRecord(part)) throw badRequest(param, `${param}[${j}] must be an object`)
      if (part['type'] !== 'text') throw unsupported(param, `${param}[${j}]: only parts of the type "text" are served`)
      if (typeof part['text'] !== 'string') throw badRequest(param, `${param}[${j}].text must be a string`)
      return part['text']
    })
    .join('')
}

/** An assistant turn's calls, in the text they were generated as. */
function readCalls(calls: unknown, at: string, format: ToolFormat): MessageSegment[] {
  if (calls === undefined || calls === null) return []
  const param = `${at}.tool_calls`
  if (!Array.isArray(calls)) throw badRequest(param, `${param} must be an array`)
  return calls.flatMap((call: unknown, j) => {
    const declared = isRecord(call) ? call['function'] : undefined
    if (!isRecord(declared) || typeof declared['name'] !== 'string') {
      throw badRequest(`${param}[${j}]`, `${param}[${j}].function must have a name`)
    }
    const args = declared['arguments'] ?? '{}'
    if (typeof args !== 'string') {
      throw badRequest(`${param}[${j}]`, `${param}[${j}].function.arguments must be a string of JSON`)
    }
    const block = format.writeCall(declared['name'], writeArguments(args))
    const separator: MessageSegment[] = j === 0 ? [] : [{ text: format.separator, foreign: false }]
    return [...separator, { text: block, foreign: false }]
  })
}

/** Arguments that are JSON lose their white space and nothing else; others are kept as a JSON string. */
function writeArguments(text: string): string {
  try {
    parseJson(text)
  } catch (error) {
    if (TinyLlmError.is(error)) return JSON.stringify(text)
    throw error
  }
  return minifyJson(text)
}

function join(role: RenderedMessage['role'], segments: readonly MessageSegment[]): RenderedMessage {
  const kept = segments.filter(({ text }) => text !== '')
  return { role, content: kept.map(({ text }) => text).join(''), segments: kept }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
