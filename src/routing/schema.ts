/**
 * The action schema: one JSON schema whose alternatives are the tools on offer and, last, the decision to call none.
 *
 * Every reply that satisfies it is one of a closed set of actions; there is no free branch a small model could ramble in.
 */
import { checkCatalogue, NO_TOOL, type JsonSchema, type RouteTool } from './catalogue.js'

/** One alternative of the action schema. */
export interface RouteAlternative {
  type: 'object'
  description?: string
  properties: { tool: { const: string }; arguments?: JsonSchema }
  required: string[]
  additionalProperties: false
}

/** The schema of a routed reply. */
export interface RouteSchema {
  type: 'object'
  anyOf: RouteAlternative[]
}

/**
 * Builds the action schema of a catalogue.
 *
 * `tool` comes first in `properties` and in `required`: servers that compile grammars write members in one of those two
 * orders, and the model must name its action before it writes an argument. The alternatives stand under `anyOf`, which
 * every structured-output implementation takes; their `tool` constants keep them apart.
 *
 * A tool's parameters are copied verbatim and detached: the catalogue is never changed, the result shares nothing with it.
 *
 * @throws {RouteCatalogueError} when the catalogue cannot be offered
 */
export function routeSchema(tools: readonly RouteTool[]): RouteSchema {
  const alternatives = checkCatalogue(tools).map(({ name, description, parameters }): RouteAlternative => ({
    type: 'object',
    ...(description === undefined ? {} : { description }),
    properties: {
      tool: { const: name },
      arguments: parameters ?? { type: 'object', properties: {}, additionalProperties: false },
    },
    required: ['tool', 'arguments'],
    additionalProperties: false,
  }))
  alternatives.push({
    type: 'object',
    properties: { tool: { const: NO_TOOL } },
    required: ['tool'],
    additionalProperties: false,
  })
  return { type: 'object', anyOf: alternatives }
}

/**
 * The names a routed reply may choose from: the tools in catalogue order, then `none`.
 *
 * @throws {RouteCatalogueError} when the catalogue cannot be offered
 */
export function routeChoices(tools: readonly RouteTool[]): string[] {
  return [...routeToolNames(tools), NO_TOOL]
}

/**
 * The tools' names in catalogue order.
 *
 * @throws {RouteCatalogueError} when the catalogue cannot be offered
 */
export function routeToolNames(tools: readonly RouteTool[]): string[] {
  return checkCatalogue(tools).map(({ name }) => name)
}
