// Answers of a real model under schemas, each read by JSON.parse and judged by an independent validator:
//
//   npm run eval:grammar [-- --model NAME_OR_PATH] [--each N] [--out FILE.md]
//
// The schemas are those of fixtures/validity and three made with zod. Of the N answers of each schema (24) two are greedy,
// the others sampled at temperature 1 with seeds; every second one closes within its budget, and then must be whole.
// Every answer that ended by itself must parse and validate; any that does not is printed, and the command fails.
import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { z } from 'zod'
import { jsonSchema, load } from '../../dist/index.mjs'

const { values: options } = parseArgs({
  options: {
    model: { type: 'string', default: 'smollm2-135m-instruct' },
    each: { type: 'string', default: '24' },
    out: { type: 'string' },
  },
})
const EACH = Number(options.each)
const MAX_TOKENS = 160

const made = [
  {
    name: 'zod: event',
    ask: 'Plan a meeting.',
    zod: z.object({
      title: z.string().min(1).max(40),
      on: z.iso.date(),
      minutes: z.number().int().min(5).max(480),
      guests: z.array(z.email()).max(2),
      place: z.union([z.literal('online'), z.object({ room: z.string().max(12) })]),
    }),
  },
  {
    name: 'zod: shape',
    ask: 'Draw a shape.',
    zod: z.discriminatedUnion('kind', [
      z.object({ kind: z.literal('circle'), radius: z.number().positive().max(100) }),
      z.object({ kind: z.literal('box'), sides: z.array(z.number().min(0).max(9)).min(1).max(3).nullable() }),
      z.object({ kind: z.literal('text'), text: z.string().max(20), bold: z.boolean().optional() }),
    ]),
  },
  {
    name: 'zod: review',
    ask: 'Review a book.',
    zod: z.object({
      verdict: z.enum(['good', 'bad', 'mixed']),
      rating: z.number().min(0).max(10),
      id: z.uuid(),
      quote: z.string().max(60).nullable(),
    }),
  },
]
const given = JSON.parse(readFileSync(new URL('../../fixtures/validity/schemas.json', import.meta.url), 'utf8'))
const cases = [...given, ...made.map(({ zod, ...rest }) => ({ ...rest, zod, schema: z.toJSONSchema(zod) }))]

const ajv = new Ajv2020({ strict: false, allErrors: true })
addFormats(ajv)
const engine = await load(options.model, { contextLength: 1024 })
const rows = []
const failures = []

for (const { name, ask, schema, zod, options: how } of cases) {
  const validate = ajv.compile(schema)
  const grammar = zod ? jsonSchema(zod) : jsonSchema(schema, how)
  const messages = [
    { role: 'system', content: `Answer with JSON. Schema: ${JSON.stringify(schema)}` },
    { role: 'user', content: ask },
  ]
  const row = { name, answers: 0, valid: 0, cut: 0, closing: 0, closed: 0, tokens: 0 }
  const answers = Array.from({ length: EACH }, async (_, n) => {
    const closing = n % 2 === 0
    const sampling = n < 2 ? { temperature: 0 } : { temperature: 1, seed: n }
    const request = { messages, grammar, maxTokens: MAX_TOKENS, closeWithinBudget: closing, ...sampling }
    const { text, value, finishReason, usage } = await engine.generate(request)
    row.answers++
    row.tokens += usage.completionTokens
    row.closing += closing
    const fail = (why) => failures.push(`${name}, answer ${n}: ${why}\n${text}`)
    if (finishReason !== 'stop') {
      row.cut++
      if (closing) fail('cut, though it should have closed within its budget')
      return
    }
    row.closed += closing
    try {
      const parsed = JSON.parse(text)
      if (!validate(parsed)) fail(ajv.errorsText(validate.errors))
      else if (zod && !zod.safeParse(parsed).success) fail('zod refuses it')
      else if (JSON.stringify(parsed) !== JSON.stringify(value)) fail('value is not what the text says')
      else row.valid++
    } catch (error) {
      fail(String(error))
    }
  })
  await Promise.all(answers)
  rows.push(row)
}
await engine.close()

const total = { name: 'all' }
for (const key of ['answers', 'valid', 'cut', 'closing', 'closed', 'tokens'])
  total[key] = rows.reduce((sum, row) => sum + row[key], 0)
const lines = [
  '| schema | answers | whole and valid | cut | told to close: closed | tokens |',
  '| --- | --: | --: | --: | --: | --: |',
  ...[...rows, total].map(
    (r) => `| ${r.name} | ${r.answers} | ${r.valid} | ${r.cut} | ${r.closing}: ${r.closed} | ${r.tokens} |`,
  ),
]
const table = `${lines.join('\n')}\n`
console.log(table)
if (options.out) writeFileSync(options.out, table)
for (const failure of failures) console.error(failure)
if (failures.length > 0) process.exitCode = 1
