/**
 * The tool catalogue a routed turn chooses from, and what makes one unusable.
 *
 * A catalogue is checked as a whole before anything is built from it: a routed turn must offer exactly the actions the
 * host declared, so one bad declaration is an error that names it, never an alternative that silently goes missing.
 */
import { TinyLlmError } from '../errors.js'

/** A JSON Schema, as plain JavaScript values. */
export type JsonSchema = { [keyword: string]: unknown }

/** A function tool in the shape chat APIs take. */
export interface RouteTool {
  readonly type: 'function'
  readonly function: {
    readonly name: string
    readonly description?: string | null | undefined
    /** An object schema; absent or null means the tool takes no arguments. */
    readonly parameters?: JsonSchema | null | undefined
  }
}

/** The action every catalogue offers besides its tools: no tool call is needed. */
export const NO_TOOL = 'none'

/** A catalogue that cannot be offered. `index` is the position of the declaration at fault. */
export class RouteCatalogueError extends TinyLlmError {
  readonly index: number
  readonly reason: string

  constructor(index: number, reason: string) {
    super('ERR_TINYLLM_ROUTE_CATALOGUE', `tools[${index}]: ${reason}`, { details: { index } })
    this.name = 'RouteCatalogueError'
    this.index = index
    this.reason = reason
  }
}

/** A declaration that has been checked: its name, its description if it has one, its own parameters if it has any. */
export interface CheckedTool {
  readonly name: string
  readonly description?: string
  readonly parameters?: JsonSchema
}

/**
 * Checks a catalogue and returns its declarations in order.
 *
 * @throws {RouteCatalogueError} naming the first declaration at fault
 */
export function checkCatalogue(tools: readonly RouteTool[]): CheckedTool[] {
  if (!Array.isArray(tools)) throw new RouteCatalogueError(0, 'the catalogue is not an array')
  const firstUse = new Map<string, number>()
  return tools.map((tool, index) => {
    const checked = checkTool(tool, index)
    const earlier = firstUse.get(checked.name)
    if (earlier !== undefined) {
      throw new RouteCatalogueError(
        index,
        `the name ${JSON.stringify(checked.name)} is already used by tools[${earlier}]`,
      )
    }
    firstUse.set(checked.name, index)
    return checked
  })
}

function checkTool(tool: unknown, index: number): CheckedTool {
  const fail = (reason: string): never => {
    throw new RouteCatalogueError(index, reason)
  }
  if (!isRecord(tool)) return fail('the declaration is not an object')
  if (tool.type !== 'function') return fail('type must be "function"')
  const declaration = tool.function
  if (!isRecord(declaration)) return fail('function must be an object')
  const { name, description, parameters } = declaration
  if (typeof name !== 'string' || name.trim() === '') return fail('function.name is missing or blank')
  if (name === NO_TOOL) return fail(`the name "${NO_TOOL}" is the action that calls no tool`)
  // Half a surrogate pair has no UTF-8 form, so no model could ever write the name it is compared with.
  if (/\p{Cs}/u.test(name)) return fail('function.name holds an unpaired surrogate')
  if (parameters !== undefined && parameters !== null) {
    if (!isRecord(parameters)) return fail('function.parameters must be an object schema')
    if (parameters.type !== 'object') return fail('function.parameters must have type "object"')
  }
  return {
    name,
    ...(typeof description === 'string' && description !== '' ? { description } : {}),
    ...(isRecord(parameters) ? { parameters: detached(parameters, index) } : {}),
  }
}

/** A deep copy that shares nothing with the host's value. */
function detached(parameters: JsonSchema, index: number): JsonSchema {
  try {
    const copy = structuredClone(parameters)
    JSON.stringify(copy)
    return copy
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RouteCatalogueError(index, `function.parameters is not JSON (${reason})`)
  }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
