import { route, type RouteOf, type RouteTool } from '../../src/routing/index.js'
import { compilable } from '../../src/routing/grammar.js'
import { routeSchema } from '../../src/routing/index.js'
import { memoryTools, named } from './examples.js'

describe('route(tools)', () => {
  test('the general front end gets the schema as it is, root type included; the strict one without it', () => {
    expect(route(memoryTools).description).toEqual({
      type: 'schema',
      schema: JSON.stringify(routeSchema(memoryTools)),
      subset: 'general',
      whitespace: 'compact',
    })
    expect(route(memoryTools, { subset: 'strict', maxStringLength: 40 }).description).toEqual({
      type: 'schema',
      schema: JSON.stringify({ anyOf: routeSchema(memoryTools).anyOf }),
      subset: 'strict',
      whitespace: 'compact',
      maxStringLength: 40,
    })
  })

  test('the parsed route is the value', async () => {
    const text = '{"tool":"memory_read","arguments":{"ids":["M1","M3"]}}'
    const action = await route(memoryTools).parse?.(text)
    // The type follows the catalogue.
    if (action?.tool === 'memory_read') expect(action.arguments.ids.map((id) => id.length)).toEqual([2, 2])
    const typed: RouteOf<typeof memoryTools> | undefined = action
    expect(typed).toMatchObject({ ok: true, text })
    expect(() => route(named('x')).parse?.('{"tool":"x","arguments":{"n":1e999}}')).toThrow(/not finite/)
  })

  test('references inside a tool’s parameters point to where the parameters stand', () => {
    const parameters = {
      type: 'object',
      properties: { a: { $ref: '#/$defs/id' }, $ref: { const: { $ref: '#/x' } } },
      $defs: { id: { type: 'string' }, self: { $ref: '#' } },
      examples: [{ $ref: '#/y' }],
    }
    const tools: RouteTool[] = [...named('first'), { type: 'function', function: { name: 't', parameters } }]
    expect(compilable(routeSchema(tools)).anyOf[1]?.properties.arguments).toEqual({
      type: 'object',
      properties: {
        a: { $ref: '#/anyOf/1/properties/arguments/$defs/id' },
        $ref: { const: { $ref: '#/x' } },
      },
      $defs: { id: { type: 'string' }, self: { $ref: '#/anyOf/1/properties/arguments' } },
      examples: [{ $ref: '#/y' }],
    })
    expect(routeSchema(tools).anyOf[1]?.properties.arguments).toEqual(parameters)
  })
})
