import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { parseRoute, routeSchema, routeToolNames } from '../../src/routing/index.js'
import { memoryTools } from './examples.js'

const names = routeToolNames(memoryTools)

describe('parseRoute', () => {
  test('synopsis: what the model answered, checked against what it was offered', () => {
    expect(parseRoute('{"tool":"memory_search","arguments":{"query":"latch"}}', names)).toEqual({
      ok: true,
      tool: 'memory_search',
      arguments: { query: 'latch' },
      argumentsText: '{"query":"latch"}',
      text: '{"tool":"memory_search","arguments":{"query":"latch"}}',
    })
    expect(parseRoute('{"tool":"none"}', names)).toEqual({ ok: true, tool: 'none', text: '{"tool":"none"}' })
    expect(parseRoute('Sure! Let me search.', names)).toEqual({ ok: false, error: 'the reply is not a JSON object' })
  })

  test('the examples of the description', () => {
    expect(parseRoute('{"tool": "memory_search", "arguments": {"query": "the latch"}}', names)).toMatchObject({
      ok: true,
      arguments: { query: 'the latch' },
    })
    expect(parseRoute('{"tool": "memory_read",   "arguments": {"ids": ["M1", "M3"]}}', names)).toMatchObject({
      ok: true,
      arguments: { ids: ['M1', 'M3'] },
      argumentsText: '{"ids": ["M1", "M3"]}',
    })
    expect(parseRoute('{"tool": "none"}', names)).toEqual({ ok: true, tool: 'none', text: '{"tool": "none"}' })
  })

  test('the whole text, trimmed of JSON white space, is read; white space between tokens is fine', () => {
    const text = '{ "tool"\n:\t"memory_search" ,\r\n"arguments" : { "query" : "x" } }'
    expect(parseRoute(`\n\t \r${text} \r\n`, names)).toMatchObject({ ok: true, text })
    // A no-break space and a byte order mark are not JSON white space.
    expect(parseRoute(`\u00a0${text}`, names).ok).toBe(false)
    expect(parseRoute(`\ufeff${text}`, names).ok).toBe(false)
  })

  test('argumentsText is the verbatim slice, so that key order and spelling survive', () => {
    const args = '{"10":1.50, "2":1e2,"\\u0061":"é😀"}'
    expect(parseRoute(`{"tool":"memory_search","arguments":${args}}`, names)).toMatchObject({ argumentsText: args })
    expect(parseRoute(`{"arguments":${args},"tool":"memory_search"}`, names)).toMatchObject({ argumentsText: args })
  })

  test.each<[string, string, string | RegExp]>([
    ['nothing', '', 'the reply is not a JSON object'],
    ['an array', '[]', 'the reply is not a JSON object'],
    ['a string', '"none"', 'the reply is not a JSON object'],
    ['null', 'null', 'the reply is not a JSON object'],
    ['trailing text', '{"tool":"none"} ok', 'the reply is not a JSON object'],
    ['two objects', '{"tool":"none"}{"tool":"none"}', 'the reply is not a JSON object'],
    ['a fence', '```json\n{"tool":"none"}\n```', 'the reply is not a JSON object'],
    ['single quotes', "{'tool':'none'}", 'the reply is not a JSON object'],
    ['a trailing comma', '{"tool":"none",}', 'the reply is not a JSON object'],
    ['a missing tool', '{"arguments":{}}', /no "tool"/],
    ['another letter case', '{"Tool":"none"}', /no "tool"/],
    ['an empty tool', '{"tool":"","arguments":{}}', /non-empty string/],
    ['a tool that is no string', '{"tool":["none"]}', /non-empty string/],
    ['a null tool', '{"tool":null}', /non-empty string/],
    ['an unknown tool', '{"tool":"delete_all","arguments":{}}', /no tool is called "delete_all"/],
    ['the name in another case', '{"tool":"Memory_Search","arguments":{}}', /no tool is called/],
    ['none with arguments', '{"tool":"none","arguments":{}}', /takes no other key/],
    ['None', '{"tool":"None"}', /no tool is called/],
    ['missing arguments', '{"tool":"memory_read"}', /no "arguments"/],
    ['arguments that are a list', '{"tool":"memory_read","arguments":[]}', /not an object/],
    ['arguments that are text', '{"tool":"memory_read","arguments":"{}"}', /not an object/],
    ['null arguments', '{"tool":"memory_read","arguments":null}', /not an object/],
    ['another key', '{"tool":"memory_read","arguments":{},"why":1}', /unexpected key "why"/],
    ['a repeated tool', '{"tool":"memory_read","tool":"memory_read","arguments":{}}', /repeats the key "tool"/],
    ['repeated arguments', '{"tool":"memory_read","arguments":{},"arguments":{}}', /repeats the key "arguments"/],
    ['an escaped repetition', '{"tool":"none","t\\u006fol":"none"}', /repeats the key "tool"/],
    ['infinity', '{"tool":"memory_read","arguments":{"x":1e999}}', /not finite/],
    ['infinity in a list', '{"tool":"memory_read","arguments":{"x":[[{"y":-1e999}]]}}', /not finite/],
    ['a very long integer', `{"tool":"memory_read","arguments":{"x":${'9'.repeat(400)}}}`, /not finite/],
    ['too deep', `{"tool":"memory_read","arguments":{"x":${'['.repeat(200)}${']'.repeat(200)}}}`, /cannot be read/],
    ['far too deep', '['.repeat(1_000_000), 'the reply is not a JSON object'],
  ])('%s is an error', (_what, text, error) => {
    const parsed = parseRoute(text, names)
    expect(parsed.ok).toBe(false)
    if (parsed.ok) return
    if (typeof error === 'string') expect(parsed.error).toBe(error)
    else expect(parsed.error).toMatch(error)
  })

  test('the error quotes at most 64 characters of the reply', () => {
    for (const unit of ['x', '😀', 'é']) {
      const long = unit.repeat(500)
      for (const text of [
        `{"tool":"${long}","arguments":{}}`,
        `{"tool":"none","${long}":1}`,
        `{"tool":"memory_read","arguments":{},"${long}":1}`,
        `{"tool":"none","${long}":1,"${long}":1}`,
        long,
      ]) {
        const parsed = parseRoute(text, names)
        expect(parsed.ok).toBe(false)
        if (!parsed.ok) expect(Array.from(parsed.error).filter((c) => c === unit).length).toBeLessThanOrEqual(64)
      }
    }
  })

  test('a name of __proto__ or constructor is a name like any other', () => {
    expect(parseRoute('{"tool":"__proto__","arguments":{}}', names).ok).toBe(false)
    const text = '{"tool":"__proto__","arguments":{"__proto__":{"x":1}}}'
    const parsed = parseRoute(text, ['__proto__'])
    expect(parsed).toMatchObject({ ok: true, tool: '__proto__' })
    expect(JSON.stringify(parsed.ok && parsed.arguments)).toBe('{"__proto__":{"x":1}}')
  })

  test('it never throws, whatever it is given', () => {
    const piece = fc.constantFrom('{', '}', '"tool"', ':', '"none"', '"memory_read"', ',', '"arguments"', '1e999', ' ')
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.array(piece).map((pieces) => pieces.join('')),
      fc.json(),
    )
    fc.assert(
      fc.property(text, (reply) => {
        const parsed = parseRoute(reply, names)
        if (!parsed.ok) expect(typeof parsed.error).toBe('string')
        else expect(JSON.parse(parsed.text)).toHaveProperty('tool', parsed.tool)
      }),
      { numRuns: 500 },
    )
    for (const odd of [undefined, null, 7, {}, []]) expect(parseRoute(odd as never, names).ok).toBe(false)
  })

  test('it never accepts what the route schema, with every tool’s parameters a plain object, refuses', () => {
    const plain = memoryTools.map(({ type, function: { name } }) => ({
      type,
      function: { name, parameters: { type: 'object' } },
    }))
    const check = new Ajv2020({ strict: false }).compile(routeSchema(plain))
    const key = fc.constantFrom('tool', 'arguments', 'Tool', 'why', '__proto__')
    const value = fc.oneof(
      fc.constantFrom(
        '"none"',
        '"memory_read"',
        '"memory_search"',
        '"other"',
        '""',
        '{}',
        '{"a":1}',
        '[]',
        'null',
        '1',
      ),
      fc.json(),
    )
    const pairs = fc.array(
      fc.tuple(key, value).map(([k, v]) => `${JSON.stringify(k)}:${v}`),
      { maxLength: 3 },
    )
    const object = pairs.map((members) => `{${members.join(',')}}`)
    const text = fc.oneof({ arbitrary: object, weight: 5 }, fc.json(), fc.string({ unit: 'binary' }))
    let accepted = 0
    fc.assert(
      fc.property(text, (reply) => {
        if (!parseRoute(reply, names).ok) return
        accepted += 1
        expect(check(JSON.parse(reply))).toBe(true)
      }),
      { numRuns: 5000 },
    )
    expect(accepted).toBeGreaterThan(0)
  })

  test('every action a catalogue offers is read back', () => {
    const finite = fc.jsonValue({ noUnicodeString: false })
    fc.assert(
      fc.property(fc.constantFrom(...names), fc.dictionary(fc.string(), finite), (tool, args) => {
        const argumentsText = JSON.stringify(args)
        const text = JSON.stringify({ tool, arguments: args })
        expect(parseRoute(text, names)).toMatchObject({ ok: true, tool, argumentsText, text })
      }),
    )
  })
})
