/** The default model through the façade. */
import { choice, type Engine, jsonSchema, load, regex } from '../../src/index.js'

let engine: Engine

beforeAll(async () => {
  engine = await load(process.env['TINYLLM_TEST_SMOLLM2'] ?? 'smollm2-135m-instruct', { contextLength: 1024 })
})

afterAll(async () => {
  await engine.close()
})

const question = 'Is the sky blue? Answer yes or no.'

test('an answer under (yes|no) is exactly yes or no', async () => {
  for (const seed of [1, 2, 3]) {
    const { text, finishReason } = await engine.generate({
      prompt: question,
      grammar: regex('(yes|no)'),
      temperature: 1,
      seed,
    })
    expect(['yes', 'no']).toContain(text)
    expect(finishReason).toBe('stop')
  }
})

test('it answers a question in its chat format, and the same again', async () => {
  const messages = [{ role: 'user', content: 'What is the capital of France?' }]
  const first = await engine.generate({ messages, maxTokens: 24 })
  expect(first.text).toContain('Paris')
  expect((await engine.generate({ messages, maxTokens: 24 })).tokens).toEqual(first.tokens)
})

test('greedy and seeded answers are the same alone and in a batch, cold and warm, for any chunk', async () => {
  const requests = ['One', 'Two birds', 'Once upon a time', question].map((prompt, i) => ({
    prompt,
    maxTokens: 10,
    temperature: i % 2,
    seed: i,
    logprobs: 1,
    ...(i === 3 ? { grammar: choice(['yes', 'no']) } : {}),
  }))
  const alone = []
  for (const request of requests) alone.push(await engine.generate(request))
  const together = await Promise.all(requests.map((request) => engine.generate(request)))
  const other = await load(engine.info.path, { contextLength: 256, prefillChunk: 3, threads: 1 })
  const chunked = await Promise.all(requests.map((request) => other.generate(request)))
  await other.close()
  for (const [i, { tokens, logprobs }] of alone.entries()) {
    expect(together[i]).toMatchObject({ tokens, logprobs })
    expect(chunked[i]).toMatchObject({ tokens, logprobs })
  }
})

test('JSON follows its schema', async () => {
  const grammar = jsonSchema<{ city: string; degrees: number }>({
    type: 'object',
    properties: { city: { type: 'string', maxLength: 20 }, degrees: { type: 'integer' } },
    required: ['city', 'degrees'],
  })
  const { value } = await engine.generate({
    messages: [{ role: 'user', content: 'The weather in Paris, as JSON with city and degrees.' }],
    grammar,
    maxTokens: 60,
  })
  expect(value).toEqual({ city: expect.any(String), degrees: expect.any(Number) })
})

test('a system prompt that comes again is not computed again', async () => {
  const system = { role: 'system', content: 'You are a patient teacher who explains everything twice. '.repeat(12) }
  const ask = async (content: string) =>
    (await engine.generate({ messages: [system, { role: 'user', content }], maxTokens: 1 })).usage
  await ask('What is a noun?')
  const { promptTokens, cachedTokens } = await ask('And a verb?')
  expect(promptTokens - cachedTokens).toBeLessThanOrEqual(31 + 12)
})
