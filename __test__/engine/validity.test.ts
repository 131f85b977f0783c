/** Answers of the default model under many schemas, judged by an independent validator. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { type Engine, type JsonSchemaOptions, jsonSchema, load } from '../../src/index.js'

interface Case {
  name: string
  ask: string
  options?: JsonSchemaOptions
  schema: Record<string, unknown>
}

const cases = JSON.parse(readFileSync(join(__dirname, '../../fixtures/validity/schemas.json'), 'utf8')) as Case[]
const ajv = new Ajv2020({ strict: false })
addFormats.default(ajv)

let engine: Engine

beforeAll(async () => {
  engine = await load(process.env['TINYLLM_TEST_SMOLLM2'] ?? 'smollm2-135m-instruct', { contextLength: 1024 })
})

afterAll(async () => {
  await engine.close()
})

test('two answers under each of twenty schemas are whole and valid', async () => {
  expect(cases.length).toBe(20)
  const answers = cases.flatMap(({ name, ask, options, schema }) => {
    const validate = ajv.compile(schema)
    const grammar = jsonSchema(schema, options)
    return [0, 1].map(async (temperature) => {
      const request = { prompt: `${ask}\n`, grammar, maxTokens: 90, closeWithinBudget: true, temperature, seed: 5 }
      const { text, value, finishReason } = await engine.generate(request)
      expect([name, text, finishReason]).toEqual([name, text, 'stop'])
      expect(value).toEqual(JSON.parse(text))
      expect([name, text, validate(value), validate.errors]).toEqual([name, text, true, null])
    })
  })
  await Promise.all(answers)
})
