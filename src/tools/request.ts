/**
 * The tool fields of a chat request: `tools`, `tool_choice`, `response_format`, `parallel_tool_calls`, validated.
 * Schemas stay the text they were written as, since the order of their properties is part of the language.
 */
import { TinyLlmError } from '../errors.js'
import { checkGrammar, schemaToRegex } from '../native.js'
import {
  kindName,
  member,
  readBody,
  sliceOf,
  toPlain,
  type Body,
  type JsonObject,
  type JsonValue,
} from '../openai/body.js'
import { fullProfile, type Profile } from '../openai/profile.js'
import { badRequest, ToolError, unsupported } from '../openai/tool_error.js'

export interface Tool {
  readonly name: string
  readonly description: string | null
  /** The arguments' JSON Schema, as text. */
  readonly parameters: string
}

export type ToolChoice = 'auto' | 'none' | 'required' | { readonly name: string }

export type ResponseFormat =
  | { readonly type: 'text' }
  | { readonly type: 'json_object' }
  /** `schema` is JSON text; null allows any object. */
  | { readonly type: 'json_schema'; readonly schema: string | null }

export interface ToolRequest {
  readonly tools: readonly Tool[]
  readonly choice: ToolChoice
  /** With `tool_choice: allowed_tools`: the tools that may be called; the model is told about all. */
  readonly allowed: readonly string[] | null
  readonly responseFormat: ResponseFormat
  readonly parallel: boolean
  readonly profile: Profile
}

/** Schema of a function without parameters. */
const NO_PARAMETERS = '{"type":"object","properties":{}}'
const NAME = /^[A-Za-z0-9_-]{1,64}$/

/**
 * Reads the tool fields of a request's body. Throws a {@link ToolError}: 400 for what is malformed, 422 for what is
 * not served, each naming the field.
 */
export function parseToolRequest(body: string | Body, profile: Profile = fullProfile): ToolRequest {
  const read = typeof body === 'string' ? readBody(body) : body
  checkMessages(member(read.root, 'messages'))
  const tools = readTools(read, profile)
  return {
    tools,
    ...readChoice(member(read.root, 'tool_choice'), tools, profile),
    responseFormat: readResponseFormat(read, profile),
    parallel: readParallel(member(read.root, 'parallel_tool_calls')),
    profile,
  }
}

/** `messages`, where it is there, is an array of objects that each have a role; the chat route also wants it there. */
function checkMessages(messages: JsonValue | undefined): void {
  if (messages === undefined) return
  if (messages.kind !== 'array') throw badRequest('messages', `messages must be an array, not ${kindName(messages)}`)
  messages.items.forEach((message, i) => {
    if (message.kind !== 'object') {
      throw badRequest(`messages[${i}]`, `messages[${i}] must be an object, not ${kindName(message)}`)
    }
    const role = member(message, 'role')
    if (role?.kind !== 'string') throw badRequest(`messages[${i}].role`, `messages[${i}].role must be a string`)
  })
}

function readTools(body: Body, profile: Profile): Tool[] {
  const value = member(body.root, 'tools')
  if (value === undefined) return []
  if (value.kind !== 'array') throw badRequest('tools', `tools must be an array, not ${kindName(value)}`)
  if (value.items.length > profile.maxTools) {
    throw badRequest('tools', `tools has ${value.items.length} entries; at most ${profile.maxTools} are allowed`)
  }
  const seen = new Map<string, number>()
  return value.items.map((item, i) => {
    const tool = readTool(body, item, `tools[${i}]`, profile)
    const first = seen.get(tool.name)
    if (first !== undefined) {
      const param = `tools[${i}].function.name`
      throw badRequest(param, `${param}: "${tool.name}" is the name of tools[${first}] already`)
    }
    seen.set(tool.name, i)
    return tool
  })
}

function readTool(body: Body, item: JsonValue, at: string, profile: Profile): Tool {
  if (item.kind !== 'object') throw badRequest(at, `${at} must be an object, not ${kindName(item)}`)
  const type = member(item, 'type')
  if (type?.kind !== 'string' || type.value !== 'function') throw badRequest(at, `${at}.type must be "function"`)
  const declared = member(item, 'function')
  if (declared?.kind !== 'object') throw badRequest(at, `${at}.function must be an object, not ${kindName(declared)}`)

  const name = member(declared, 'name')
  if (name?.kind !== 'string' || !NAME.test(name.value)) {
    const param = `${at}.function.name`
    throw badRequest(param, `${param} must be 1 to 64 of the characters A-Z, a-z, 0-9, "_" and "-"`)
  }
  const description = member(declared, 'description')
  const parameters = member(declared, 'parameters')
  const schema = parameters === undefined ? NO_PARAMETERS : sliceOf(body.text, parameters)
  checkSchema(schema, profile, `${at}.function.parameters`, 'tools')
  if (profile.toolStrict) {
    const strict = member(declared, 'strict')
    if (strict !== undefined && strict.kind !== 'bool') {
      throw badRequest(`${at}.function.strict`, `${at}.function.strict must be a boolean, not ${kindName(strict)}`)
    }
  }
  return {
    name: name.value,
    description: description?.kind === 'string' ? description.value : null,
    parameters: schema,
  }
}

/**
 * Refuses a schema that the profile's front end cannot enforce, with its own words about where and why. One that is
 * inside the subset and only too large is the whole field's trouble (`tooLarge`), as when it is found on compiling.
 */
function checkSchema(schema: string, profile: Profile, param: string, tooLarge: string): void {
  try {
    checkGrammar({ type: 'schema', schema, subset: profile.subset, whitespace: 'compact' })
  } catch (error) {
    if (!TinyLlmError.is(error)) throw error
    const { pointer } = error.details
    const where = pointer === undefined || pointer === '' || error.message.includes(pointer) ? '' : ` (at "${pointer}")`
    throw unsupported(isInside(schema, profile, error) ? tooLarge : param, `${param}: ${error.message}${where}`, error)
  }
}

/** Whether a refused schema is inside the subset, and only its automaton cannot be built. */
function isInside(schema: string, profile: Profile, error: TinyLlmError): boolean {
  if (error.code === 'ERR_TINYLLM_GRAMMAR_LIMIT') return true
  if (profile.subset !== 'strict') return false
  try {
    // The strict subset is what has a pattern; that some patterns cannot be compiled comes after.
    schemaToRegex(schema)
    return true
  } catch {
    return false
  }
}

function readChoice(
  value: JsonValue | undefined,
  tools: readonly Tool[],
  profile: Profile,
): { choice: ToolChoice; allowed: readonly string[] | null } {
  if (value === undefined) return { choice: tools.length > 0 ? 'auto' : 'none', allowed: null }
  if (value.kind === 'string' && value.value === 'none') return { choice: 'none', allowed: null }
  if (tools.length === 0) throw badRequest('tool_choice', 'tool_choice must be "none" when there are no tools')
  if (value.kind === 'string' && (value.value === 'auto' || value.value === 'required')) {
    return { choice: value.value, allowed: null }
  }
  if (value.kind === 'object') {
    const plain = toPlain(value)
    const name = functionName(plain)
    if (name !== null) return { choice: { name: listed(name, tools) }, allowed: null }
    if (profile.allowedTools) {
      const allowed = allowedTools(plain)
      if (allowed !== null) {
        return { choice: allowed.mode, allowed: allowed.names.map((allowedName) => listed(allowedName, tools)) }
      }
    }
  }
  const forms = ['"auto"', '"none"', '"required"', '{"type":"function","function":{"name":…}}']
  if (profile.allowedTools) forms.push('{"type":"allowed_tools","allowed_tools":{"mode":…,"tools":[…]}}')
  throw badRequest('tool_choice', `tool_choice must be ${forms.slice(0, -1).join(', ')} or ${forms.at(-1)}`)
}

function listed(name: string, tools: readonly Tool[]): string {
  if (tools.some((tool) => tool.name === name)) return name
  throw badRequest('tool_choice', `tool_choice names the function "${name}", which is not among the tools`)
}

/** The name in exactly `{type:"function",function:{name}}`. */
function functionName(value: unknown): string | null {
  if (!hasExactly(value, ['type', 'function']) || value['type'] !== 'function') return null
  const inner = value['function']
  return hasExactly(inner, ['name']) && typeof inner['name'] === 'string' ? inner['name'] : null
}

function allowedTools(value: unknown): { mode: 'auto' | 'required'; names: string[] } | null {
  if (!hasExactly(value, ['type', 'allowed_tools']) || value['type'] !== 'allowed_tools') return null
  const inner = value['allowed_tools']
  if (!hasExactly(inner, ['mode', 'tools']) || !Array.isArray(inner['tools']) || inner['tools'].length === 0)
    return null
  const mode = inner['mode']
  if (mode !== 'auto' && mode !== 'required') return null
  const names = inner['tools'].map(functionName)
  return names.every((name) => name !== null) ? { mode, names } : null
}

function hasExactly(value: unknown, keys: readonly string[]): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const own = Object.keys(value)
  return own.length === keys.length && keys.every((key) => own.includes(key))
}

function readResponseFormat(body: Body, profile: Profile): ResponseFormat {
  const value = member(body.root, 'response_format')
  if (value === undefined) return { type: 'text' }
  const param = 'response_format'
  if (value.kind !== 'object') throw badRequest(param, `${param} must be an object, not ${kindName(value)}`)
  const type = member(value, 'type')
  if (type?.kind !== 'string') throw badRequest(param, `${param}.type must be a string`)
  if (type.value === 'text' || type.value === 'json_object') return { type: type.value }
  if (type.value === 'json_schema' && profile.jsonSchema) return readJsonSchema(body, value, profile)
  throw unsupported(param, `${param}: the type "${type.value}" is not served`)
}

function readJsonSchema(body: Body, format: JsonObject, profile: Profile): ResponseFormat {
  const param = 'response_format'
  const declared = member(format, 'json_schema')
  if (declared?.kind !== 'object') {
    throw badRequest(param, `${param}.json_schema must be an object, not ${kindName(declared)}`)
  }
  const name = member(declared, 'name')
  if (name !== undefined && (name.kind !== 'string' || !NAME.test(name.value))) {
    throw badRequest(param, `${param}.json_schema.name must be 1 to 64 of the characters A-Z, a-z, 0-9, "_" and "-"`)
  }
  const schema = member(declared, 'schema')
  if (schema === undefined) return { type: 'json_schema', schema: null }
  const text = sliceOf(body.text, schema)
  checkSchema(text, profile, param, param)
  return { type: 'json_schema', schema: text }
}

function readParallel(value: JsonValue | undefined): boolean {
  if (value === undefined) return true
  if (value.kind === 'bool') return value.value
  throw badRequest('parallel_tool_calls', `parallel_tool_calls must be a boolean, not ${kindName(value)}`)
}

/** The tools a request may call. */
export function callableTools(request: ToolRequest): readonly Tool[] {
  const { tools, allowed, choice } = request
  if (typeof choice === 'object') return tools.filter((tool) => tool.name === choice.name)
  return allowed === null ? tools : tools.filter((tool) => allowed.includes(tool.name))
}

export { ToolError }
