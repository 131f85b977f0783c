/**
 * The action schema as a grammar of this engine: an unoffered tool, a missing argument or prose cannot be written.
 */
import { GrammarError } from '../errors.js'
import { grammar, type Grammar } from '../grammar.js'
import type { FromJsonSchema } from '../chat/json_schema_type.js'
import { isRecord, type JsonSchema, type RouteTool } from './catalogue.js'
import { parseRoute, type RoutedCall, type RoutedNone } from './parse.js'
import { routeSchema, routeToolNames, type RouteSchema } from './schema.js'

/** Options of `route`. */
export interface RouteOptions {
  /**
   * Default: `general`, whose numbers are finite doubles and whose strings hold no lone surrogate. `strict` compiles the
   * same actions through the small exact subset; parameters outside it are refused.
   */
  subset?: 'general' | 'strict'
  /**
   * Type: characters. Default: none. Bounds every string of the arguments, so that one rambling argument cannot use up
   * the budget of the whole action.
   */
  maxStringLength?: number
}

/** The actions a catalogue allows, told apart by `tool`; arguments are typed where parameters are given `as const`. */
export type RouteOf<Tools extends readonly RouteTool[]> =
  | {
      [Index in keyof Tools]: RoutedCall<Tools[Index]['function']['name'], RouteArguments<Tools[Index]['function']>>
    }[number]
  | RoutedNone

type RouteArguments<F> = F extends { readonly parameters: infer P } ? FromJsonSchema<P> : Record<string, never>

/**
 * The grammar of a routed reply: `engine.generate({ messages, grammar: route(tools), maxTokens })` returns the action as
 * `value`.
 *
 * @throws {RouteCatalogueError} when the catalogue cannot be offered
 */
export function route<const Tools extends readonly RouteTool[]>(
  tools: Tools,
  options: RouteOptions = {},
): Grammar<RouteOf<Tools>> {
  const { subset = 'general', maxStringLength } = options
  const names = routeToolNames(tools)
  const schema = compilable(routeSchema(tools))
  return grammar(
    {
      type: 'schema',
      // `type` beside `anyOf` is outside the strict subset and says nothing that the alternatives do not.
      schema: JSON.stringify(subset === 'strict' ? { anyOf: schema.anyOf } : schema),
      subset,
      whitespace: 'compact',
      ...(maxStringLength === undefined ? {} : { maxStringLength }),
    },
    (text) => {
      const action = parseRoute(text, names)
      if (!action.ok) throw new GrammarError('ERR_TINYLLM_GRAMMAR', `the routed reply cannot be used: ${action.error}`)
      return action as RouteOf<Tools>
    },
  )
}

/**
 * The same schema with the references inside each tool's parameters pointing where those parameters now stand, for
 * whoever compiles it. `routeSchema` itself keeps them verbatim. A schema of another shape is returned as it is.
 */
export function compilable<S extends RouteSchema | JsonSchema>(schema: S): S {
  const alternatives: unknown = schema.anyOf
  if (!Array.isArray(alternatives)) return schema
  return {
    ...schema,
    anyOf: alternatives.map((alternative: unknown, index) => {
      if (!isRecord(alternative) || !isRecord(alternative.properties)) return alternative
      const { properties } = alternative
      if (properties.arguments === undefined) return alternative
      const args = rebase(properties.arguments, `#/anyOf/${index}/properties/arguments`)
      return { ...alternative, properties: { ...properties, arguments: args } }
    }),
  }
}

/** Keywords whose values are data, not schemas: a `$ref` inside them is a string like any other. */
const DATA_KEYWORDS = new Set(['const', 'enum', 'default', 'examples'])
/** Keywords whose values are maps from names to schemas. */
const SCHEMA_MAPS = new Set(['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'])

function rebase(schema: unknown, base: string): unknown {
  if (Array.isArray(schema)) return schema.map((item) => rebase(item, base))
  if (!isRecord(schema)) return schema
  return mapValues(schema, (keyword, value) => {
    if (DATA_KEYWORDS.has(keyword)) return value
    if (keyword === '$ref' && typeof value === 'string' && (value === '#' || value.startsWith('#/'))) {
      return `${base}${value.slice(1)}`
    }
    if (SCHEMA_MAPS.has(keyword) && isRecord(value)) return mapValues(value, (_name, member) => rebase(member, base))
    return rebase(value, base)
  })
}

/** Like `Object.fromEntries`, which defines members; assigning them would lose one named `__proto__`. */
function mapValues(record: Record<string, unknown>, change: (key: string, value: unknown) => unknown): JsonSchema {
  return Object.fromEntries(Object.entries(record).map(([key, value]) => [key, change(key, value)]))
}
