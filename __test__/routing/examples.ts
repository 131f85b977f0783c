import type { RouteTool } from '../../src/routing/index.js'

/** The catalogue of the specification's example: two memory tools. */
export const memoryTools = [
  {
    type: 'function',
    function: {
      name: 'memory_search',
      description: 'Search memories.',
      parameters: {
        type: 'object',
        properties: { query: { type: 'string' } },
        required: ['query'],
        additionalProperties: false,
      },
    },
  },
  {
    type: 'function',
    function: {
      name: 'memory_read',
      parameters: {
        type: 'object',
        properties: { ids: { type: 'array', items: { type: 'string' } } },
        required: ['ids'],
        additionalProperties: false,
      },
    },
  },
] as const satisfies readonly RouteTool[]

/** A catalogue of tools without parameters. */
export function named(...names: string[]): RouteTool[] {
  return names.map((name) => ({ type: 'function', function: { name } }))
}
