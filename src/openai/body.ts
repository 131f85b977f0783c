/**
 * A request body as it was written. Property order is part of a tool's grammar and `JSON.parse` reorders keys that
 * look like integers, so bodies go through the order-keeping reader, and a schema stays the slice of text it was.
 */
import { TinyLlmError } from '../errors.js'
import { parseJson, type JsonValue } from '../native.js'
import { badRequest } from './tool_error.js'

export type { JsonValue } from '../native.js'
export type JsonObject = Extract<JsonValue, { kind: 'object' }>

/** A body that is a JSON object, with the text its values are slices of. */
export interface Body {
  readonly text: string
  readonly root: JsonObject
}

/** Reads a body: 400 without a `param` when it is not a JSON object or is nested too deeply. */
export function readBody(text: string): Body {
  let value: JsonValue
  try {
    value = parseJson(text)
  } catch (error) {
    if (!TinyLlmError.is(error)) throw error
    throw badRequest(null, `the body is not JSON that can be read: ${error.message}`, error)
  }
  if (value.kind !== 'object') throw badRequest(null, `the body must be a JSON object, not ${kindName(value)}`)
  return { text, root: value }
}

/** A member's value; null counts as absent everywhere in a request. */
export function member(object: JsonObject, key: string): JsonValue | undefined {
  const value = object.members.find(([name]) => name === key)?.[1]
  return value?.kind === 'null' ? undefined : value
}

/** The text a value was written as. */
export function sliceOf(text: string, value: JsonValue): string {
  return text.slice(value.start, value.end)
}

/** The value as JavaScript has it; key order and the digits of long numbers are lost. */
export function toPlain(value: JsonValue): unknown {
  switch (value.kind) {
    case 'null':
      return null
    case 'int':
      return Number(value.digits)
    case 'array':
      return value.items.map(toPlain)
    case 'object':
      return Object.fromEntries(value.members.map(([key, inner]) => [key, toPlain(inner)]))
    default:
      return value.value
  }
}

/** How a message names a value's type. */
export function kindName(value: JsonValue | undefined): string {
  switch (value?.kind) {
    case undefined:
    case 'null':
      return 'null'
    case 'bool':
      return 'a boolean'
    case 'int':
    case 'float':
      return 'a number'
    case 'string':
      return 'a string'
    case 'array':
      return 'an array'
    case 'object':
      return 'an object'
  }
}
