/** The JSON reader and printer across the border. */
import fc from 'fast-check'
import { InvalidRequestError } from '../../src/index.js'
import { dumpJson, type JsonValue, parseJson } from '../../src/native.js'

/** The plain value, and a check that every slice holds its value. */
function plain(value: JsonValue, source: string): unknown {
  const slice = source.slice(value.start, value.end)
  switch (value.kind) {
    case 'null':
      return JSON.parse(slice)
    case 'bool':
    case 'float':
    case 'string':
      expect(JSON.parse(slice)).toBe(value.value)
      return value.value
    case 'int':
      expect(value.digits).toBe(slice === '-0' ? '-0' : slice)
      return Number(value.digits)
    case 'array':
      return value.items.map((item) => plain(item, source))
    case 'object': {
      expect([slice.at(0), slice.at(-1)]).toEqual(['{', '}'])
      return Object.fromEntries(value.members.map(([key, member]) => [key, plain(member, source)]))
    }
  }
}

test('a text is read as JSON.parse reads it, each value with its slice', () => {
  const spaced = fc.tuple(fc.json(), fc.integer({ min: 0, max: 3 }))
  fc.assert(
    fc.property(spaced, ([json, indent]) => {
      const source = ` ${JSON.stringify(JSON.parse(json), null, indent)}\n`
      const expected: unknown = JSON.parse(source)
      // -0 is kept as digits; as a number it is what JSON.parse gives.
      expect(plain(parseJson(source), source)).toEqual(expected)
      expect(JSON.parse(dumpJson(source))).toEqual(expected)
    }),
  )
})

test('slices are counted in UTF-16 units', () => {
  const source = `["${'é€😀'.repeat(50)}", {"😀": 1}]`
  const value = parseJson(source)
  if (value.kind !== 'array') throw new Error('an array')
  expect(value.items.map((item) => source.slice(item.start, item.end))).toEqual([`"${'é€😀'.repeat(50)}"`, '{"😀": 1}'])
})

test('key order, digits and repeated keys are kept', () => {
  const value = parseJson('{"b": 12345678901234567890, "a": 1, "b": 2.50, "a": 3, "c": {}}')
  expect(value).toMatchObject({
    kind: 'object',
    members: [
      ['b', { kind: 'float', value: 2.5 }],
      ['a', { kind: 'int', digits: '3' }],
      ['c', { kind: 'object', members: [], repeated: [] }],
    ],
    repeated: ['b', 'a'],
  })
  expect(parseJson('12345678901234567890')).toMatchObject({ kind: 'int', digits: '12345678901234567890' })
})

test('what is no JSON is refused with its place in UTF-16 units', () => {
  const at = (text: string): unknown => {
    try {
      parseJson(text)
    } catch (error) {
      expect(error).toBeInstanceOf(InvalidRequestError)
      expect(error).toMatchObject({ code: 'ERR_TINYLLM_JSON' })
      return (error as InvalidRequestError).details.position
    }
    throw new Error(`${text} was accepted`)
  }
  expect(at('[1,]')).toBe(3)
  expect(at('{"😀": x}')).toBe(7)
  expect(at('')).toBe(0)
  expect(at(`${'['.repeat(129)}${']'.repeat(129)}`)).toBeGreaterThan(100)
  expect(parseJson(`${'['.repeat(128)}${']'.repeat(128)}`).kind).toBe('array')
})

test('printing is compact, as Python does it', () => {
  expect(dumpJson('{"a": [1, 2.0, 1e16, "é\\u0007"], "b": null}')).toBe('{"a":[1,2.0,1e+16,"é\\u0007"],"b":null}')
})
