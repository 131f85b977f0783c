import fc from 'fast-check'
import { RouteCatalogueError, routeChoices, routeSchema, routeToolNames } from '../../src/routing/index.js'
import { memoryTools, named } from './examples.js'

describe('routeSchema', () => {
  test('synopsis: one JSON schema, one alternative per tool plus "no tool calls needed"', () => {
    expect(JSON.stringify(routeSchema(memoryTools))).toBe(
      '{"type":"object","anyOf":[' +
        '{"type":"object","description":"Search memories.","properties":{"tool":{"const":"memory_search"},' +
        '"arguments":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"],"additionalProperties":false}},' +
        '"required":["tool","arguments"],"additionalProperties":false},' +
        '{"type":"object","properties":{"tool":{"const":"memory_read"},' +
        '"arguments":{"type":"object","properties":{"ids":{"type":"array","items":{"type":"string"}}},"required":["ids"],"additionalProperties":false}},' +
        '"required":["tool","arguments"],"additionalProperties":false},' +
        '{"type":"object","properties":{"tool":{"const":"none"}},"required":["tool"],"additionalProperties":false}]}',
    )
  })

  test('synopsis: routeChoices', () => {
    expect(routeChoices(memoryTools)).toEqual(['memory_search', 'memory_read', 'none'])
    expect(routeToolNames(memoryTools)).toEqual(['memory_search', 'memory_read'])
  })

  test('alternatives stand under anyOf, not oneOf, in catalogue order and the none alternative last', () => {
    const schema = routeSchema(named('b', 'a', 'c'))
    expect(Object.keys(schema)).toEqual(['type', 'anyOf'])
    expect(schema.anyOf.map((option) => option.properties.tool.const)).toEqual(['b', 'a', 'c', 'none'])
  })

  test('tool comes first in properties and in required', () => {
    for (const option of routeSchema([...memoryTools, ...named('x')]).anyOf) {
      expect(Object.keys(option.properties)[0]).toBe('tool')
      expect(option.required[0]).toBe('tool')
    }
  })

  test('a tool with no parameters takes an empty object', () => {
    const empty = { type: 'object', properties: {}, additionalProperties: false }
    expect(routeSchema(named('now')).anyOf[0]?.properties.arguments).toEqual(empty)
    const tool = { type: 'function', function: { name: 'now', parameters: null } } as const
    expect(routeSchema([tool]).anyOf[0]?.properties.arguments).toEqual(empty)
  })

  test('an empty catalogue leaves the decision to call nothing', () => {
    expect(routeChoices([])).toEqual(['none'])
  })

  test('the parameters schema is the tool’s own, copied verbatim and detached', () => {
    const parameters = JSON.parse(
      '{"type":"object","title":"T","properties":{"__proto__":{"type":"string"},"b":{"$ref":"#/$defs/x"},"a":{}},"$defs":{"x":{"enum":[1,"1"]}}}',
    ) as Record<string, unknown>
    const before = JSON.stringify(parameters)
    const tools = [{ type: 'function' as const, function: { name: 't', parameters } }]
    const schema = routeSchema(tools)
    const copy = schema.anyOf[0]?.properties.arguments as Record<string, Record<string, unknown>>
    expect(JSON.stringify(copy)).toBe(before)
    ;(copy.$defs as Record<string, { enum: unknown[] }>).x?.enum.push('changed')
    delete copy.title
    expect(JSON.stringify(parameters)).toBe(before)
    expect(JSON.stringify(routeSchema(tools).anyOf[0]?.properties.arguments)).toBe(before)
  })

  test('frozen catalogues are read, never written', () => {
    const freeze = (value: unknown): unknown => {
      if (typeof value === 'object' && value !== null) {
        Object.values(value).forEach(freeze)
        Object.freeze(value)
      }
      return value
    }
    const frozen = freeze(structuredClone(memoryTools)) as typeof memoryTools
    expect(routeSchema(frozen)).toEqual(routeSchema(memoryTools))
  })
})

describe('a bad catalogue dies with the index and the reason', () => {
  const good = memoryTools[0]
  const withFunction = (fn: unknown): unknown => ({ type: 'function', function: fn })
  test.each<[string, unknown, RegExp]>([
    ['a declaration that is not an object', null, /not an object/],
    ['a declaration that is not type: function', { type: 'tool', function: { name: 'x' } }, /type must be "function"/],
    ['a missing function', { type: 'function' }, /function must be an object/],
    ['a missing name', withFunction({}), /name is missing or blank/],
    ['a blank name', withFunction({ name: ' \t' }), /name is missing or blank/],
    ['a name that is not text', withFunction({ name: 7 }), /name is missing or blank/],
    ['a name used twice', withFunction({ name: 'memory_search' }), /"memory_search" is already used by tools\[0\]/],
    ['a tool named none', withFunction({ name: 'none' }), /calls no tool/],
    ['half a surrogate pair', withFunction({ name: 'a\ud800' }), /unpaired surrogate/],
    ['parameters that are a list', withFunction({ name: 'x', parameters: [] }), /must be an object schema/],
    ['parameters that are text', withFunction({ name: 'x', parameters: '{}' }), /must be an object schema/],
    ['parameters without a type', withFunction({ name: 'x', parameters: {} }), /must have type "object"/],
    ['parameters of another type', withFunction({ name: 'x', parameters: { type: 'array' } }), /must have type/],
    ['a list of types', withFunction({ name: 'x', parameters: { type: ['object'] } }), /must have type "object"/],
    [
      'parameters that are not JSON',
      withFunction({ name: 'x', parameters: { type: 'object', f: () => 1 } }),
      /is not JSON/,
    ],
  ])('%s', (_what, bad, reason) => {
    for (const build of [routeSchema, routeChoices, routeToolNames] as const) {
      let error: unknown
      try {
        build([good, bad as never])
      } catch (caught) {
        error = caught
      }
      expect(error).toBeInstanceOf(RouteCatalogueError)
      expect(error).toMatchObject({ index: 1, code: 'ERR_TINYLLM_ROUTE_CATALOGUE' })
      expect((error as Error).message).toMatch(/^tools\[1\]: /)
      expect((error as Error).message).toMatch(reason)
    }
  })

  test('any other name is accepted: unicode, quotes and line breaks included', () => {
    const name = fc.string({ unit: 'grapheme', minLength: 1 }).filter((s) => s.trim() !== '' && s !== 'none')
    fc.assert(
      fc.property(fc.uniqueArray(name), (names) => {
        expect(routeToolNames(named(...names))).toEqual(names)
        expect(JSON.parse(JSON.stringify(routeSchema(named(...names))))).toEqual(routeSchema(named(...names)))
      }),
    )
  })
})
