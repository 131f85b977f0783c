/** Grammars through the façade: what is generated, what is refused, and what comes out as a value. */
import Ajv from 'ajv'
import { z } from 'zod'
import {
  choice,
  type Engine,
  GrammarError,
  type Grammar,
  InvalidRequestError,
  jsonObject,
  jsonSchema,
  regex,
} from '../../src/index.js'
import { checkGrammar, grammarTable, jsonObjectRegex, schemaToRegex } from '../../src/native.js'
import { loadTiny } from './tiny.js'

let engine: Engine

beforeAll(async () => {
  engine = await loadTiny()
})

afterAll(async () => {
  await engine.close()
})

/** Ten answers, drawn hot, so that the grammar alone keeps them in form. */
async function answers<T>(grammar: Grammar<T>, maxTokens = 240) {
  const seeds = Array.from({ length: 10 }, (_, seed) => seed)
  return Promise.all(seeds.map((seed) => engine.generate({ prompt: 'x', grammar, temperature: 2, seed, maxTokens })))
}

test('a pattern is the whole text', async () => {
  for (const { text, value, finishReason, complete } of await answers(regex('(yes|no)'))) {
    expect(['yes', 'no']).toContain(text)
    expect(value).toBeUndefined()
    expect({ finishReason, complete }).toEqual({ finishReason: 'stop', complete: true })
  }
})

test('a choice is one of its texts, whatever characters they have', async () => {
  const grammar = choice(['a.b', '(é)', '€|$'])
  for (const { value, text } of await answers(grammar)) {
    expect(['a.b', '(é)', '€|$']).toContain(text)
    const typed: 'a.b' | '(é)' | '€|$' | undefined = value
    expect(typed).toBe(text)
  }
})

test('a JSON object parses', async () => {
  for (const { value, complete, text } of await answers(jsonObject({ depth: 2 }))) {
    expect(complete ? typeof value : text[0]).toBe(complete ? 'object' : '{')
  }
})

test('a schema is followed, and the value has its type', async () => {
  const schema = {
    type: 'object',
    properties: { n: { type: 'integer' }, ok: { type: 'boolean' }, tag: { enum: ['a', 'b', null] } },
    required: ['n', 'ok', 'tag'],
    additionalProperties: false,
  }
  const valid = new Ajv({ strict: false }).compile(schema)
  for (const grammar of [
    jsonSchema<{ n: number }>(schema),
    jsonSchema<{ n: number }>(JSON.stringify(schema), { subset: 'strict' }),
    jsonSchema<{ n: number }>(schema, { whitespace: 'flexible' }),
  ]) {
    for (const { value, complete } of await answers(grammar)) {
      expect(complete).toBe(true)
      expect(valid(value)).toBe(true)
      expect(Number.isInteger(value?.n)).toBe(grammar.description.type === 'schema')
    }
  }
})

test('a zod schema is followed, its value goes through it, and is typed by it', async () => {
  const schema = z.object({ color: z.enum(['red', 'blue']), size: z.int().min(1).max(20) })
  const grammar = jsonSchema(schema)
  for (const { value } of await answers(grammar)) {
    const typed: { color: 'red' | 'blue'; size: number } | undefined = value
    expect(schema.parse(typed)).toEqual(typed)
  }
  const transformed = jsonSchema(z.object({ n: z.int().min(0).max(9) }).refine(() => false, 'never'))
  await expect(engine.generate({ prompt: 'x', grammar: transformed })).rejects.toThrow(GrammarError)
  await expect(engine.generate({ prompt: 'x', grammar: transformed })).rejects.toThrow('never')
})

test('an answer that is cut has no value', async () => {
  const grammar = jsonSchema({ type: 'array', items: { type: 'integer' }, minItems: 50 })
  const { value, complete, finishReason } = await engine.generate({ prompt: 'x', grammar, maxTokens: 5 })
  expect({ value, complete, finishReason }).toEqual({ value: undefined, complete: false, finishReason: 'length' })
})

test('within its budget an answer is whole', async () => {
  const grammar = jsonSchema({ type: 'array', items: { type: 'string' } })
  for (const maxTokens of [4, 9, 25]) {
    for (const seed of [1, 2, 3]) {
      const request = { prompt: 'x', grammar, maxTokens, seed, temperature: 2, closeWithinBudget: true }
      const { value, complete, usage } = await engine.generate(request)
      expect(complete).toBe(true)
      expect(Array.isArray(value)).toBe(true)
      expect(usage.completionTokens).toBeLessThanOrEqual(maxTokens)
    }
  }
})

test('what cannot be compiled is an error with its place', async () => {
  const refused = async (grammar: Grammar) => {
    const error: unknown = await engine.generate({ prompt: 'x', grammar }).catch((e: unknown) => e)
    expect(error).toBeInstanceOf(GrammarError)
    return error as GrammarError
  }
  expect((await refused(regex('ab(c'))).details.position).toBeGreaterThanOrEqual(2)
  expect((await refused(regex('[^\\x00-\\xff]'))).code).toBe('ERR_TINYLLM_REGEX')
  const schema = { type: 'object', properties: { a: { type: 'string', format: 'no-such-format', nonsense: 1 } } }
  expect((await refused(jsonSchema(schema))).details.pointer).toMatch(/^\/properties\/a/)
  const nested = regex(`${'('.repeat(5000)}a${')'.repeat(5000)}`)
  expect((await refused(nested)).code).toBe('ERR_TINYLLM_GRAMMAR_LIMIT')
  // The engine goes on.
  expect((await engine.generate({ prompt: 'x', grammar: regex('ok') })).text).toBe('ok')
})

test('constructors refuse what is no grammar', () => {
  expect(() => regex(5 as never)).toThrow(InvalidRequestError)
  expect(() => choice([])).toThrow(InvalidRequestError)
  expect(() => jsonObject({ depth: -1 })).toThrow(InvalidRequestError)
  const mute = { '~standard': { version: 1 as const, vendor: 'mute', validate: (value: unknown) => ({ value }) } }
  expect(() => jsonSchema(mute)).toThrow(GrammarError)
})

test('an automaton is told in the golden form, and patterns and schemas are checked without a model', async () => {
  const table = JSON.parse(await grammarTable({ type: 'regex', pattern: '(cat|car|dog)s?' })) as Record<string, unknown>
  expect(table).toMatchObject({
    regex: '(cat|car|dog)s?',
    n_states: 7,
    accept: [5, 6],
    sha256: '7c14c58dfd777d0ff8411e0414b98560e8856b9219bda835d1888f2421adde80',
  })
  expect(schemaToRegex('{"type":"boolean"}')).toBe('(?:true|false)')
  expect(jsonObjectRegex(1)).toContain('\\{')
  expect(() => checkGrammar({ type: 'regex', pattern: '*' })).toThrow(GrammarError)
  checkGrammar({ type: 'trigger', trigger: '<t>', body: { type: 'literal', text: 'x' } })
})
