/** The default model through the façade. */
import fc from 'fast-check'
import { choice, type Engine, type GenerateRequest, jsonSchema, load, regex, TinyLlmError } from '../../src/index.js'
import { cpuReport } from '../../src/native.js'

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

test('random schedules on every kind of CPU there is: bit for bit the same as alone', async () => {
  const beginning = 'You are a helpful assistant who answers in one short sentence, without any explanation. '
  const grammar = jsonSchema({
    type: 'object',
    properties: { who: { type: 'string', maxLength: 12 }, when: { type: 'string', pattern: '^[0-9]{4}-[0-9]{2}$' } },
    required: ['who', 'when'],
  })
  const requests: fc.Arbitrary<GenerateRequest> = fc.record({
    prompt: fc
      .tuple(fc.constantFrom('', beginning, beginning.repeat(2)), fc.constantFrom('One', 'Who came?', 'Once upon'))
      .map((parts) => parts.join('')),
    maxTokens: fc.integer({ min: 1, max: 12 }),
    seed: fc.integer({ min: 0, max: 1000 }),
    temperature: fc.constantFrom(0, 1),
    topP: fc.constantFrom(1, 0.9),
    logprobs: fc.constantFrom(0, 3),
    repetitionPenalty: fc.constantFrom(1, 1.1),
    grammar: fc.constantFrom(undefined, grammar),
  }) as fc.Arbitrary<GenerateRequest>
  const options = fc.record({
    prefillChunk: fc.constantFrom(1, 7, 64, 512),
    threads: fc.constantFrom(1, 2),
    parallel: fc.constantFrom(2, 32),
  })
  for (const [seed, tier] of ['portable', 'avx2', 'avx512', 'amx'].entries()) {
    process.env['TINYLLM_CPU'] = tier
    const [[some, schedule] = [[], {}]] = fc.sample(
      fc.tuple(fc.array(requests, { minLength: 4, maxLength: 6 }), options),
      { numRuns: 1, seed },
    )
    const other = await load(engine.info.path, { contextLength: 256, ...schedule })
      .catch((error: unknown) => {
        // This machine has none of that kind.
        if (!TinyLlmError.is(error) || error.code !== 'ERR_TINYLLM_CPU') throw error
      })
      .finally(() => delete process.env['TINYLLM_CPU'])
    if (other === undefined) continue
    const running = some.map((request) => Promise.all(other.streamChoices(request, 2).map((one) => one.final())))
    for (const [i, results] of (await Promise.all(running)).entries()) {
      const request = some[i] as GenerateRequest
      for (const [choiceIndex, result] of results.entries()) {
        const alone = await engine.generate({ ...request, seed: Number(request.seed) + choiceIndex })
        const cachedTokens = expect.any(Number) as number
        expect(result).toEqual({ ...alone, usage: { ...alone.usage, cachedTokens } })
      }
    }
    await other.close()
  }
})

test('fast prefill: the same in any batch and any chunk, with a cold and a warm cache; or a clear error', async () => {
  const options = { contextLength: 512, prefill: 'fast' } as const
  const { fastPrefill } = JSON.parse(cpuReport()) as { fastPrefill: string | null }
  process.env['TINYLLM_CPU'] = 'portable'
  const refused = load(engine.info.path, options).finally(() => delete process.env['TINYLLM_CPU'])
  await expect(refused).rejects.toMatchObject({ code: 'ERR_TINYLLM_CPU', message: expect.stringMatching(/bf16 AMX/) })
  if (fastPrefill !== null) {
    await expect(load(engine.info.path, options)).rejects.toThrow(fastPrefill)
    return
  }
  const story = 'Once upon a time a fox who lived at the edge of a forest met a heron. '
  const requests: GenerateRequest[] = [
    { prompt: story.repeat(12), maxTokens: 12, logprobs: 1 },
    { prompt: `${story.repeat(4)}The heron said:`, maxTokens: 12, temperature: 1, seed: 3, logprobs: 1 },
    { prompt: 'Name: ', grammar: regex('the one and only [a-z]{1,8}'), maxTokens: 12, logprobs: 1 },
  ]
  const answers = []
  for (const schedule of [{}, { prefillChunk: 7 }, { prefillChunk: 50, threads: 1 }]) {
    const other = await load(engine.info.path, { ...options, ...schedule })
    expect(other.info.forward).toBe('packed (amx), prefill fast')
    // Cold and one after the other, or all at once; then warm.
    const cold =
      schedule.prefillChunk === 7 ? await Promise.all(requests.map((request) => other.generate(request))) : []
    if (cold.length === 0) for (const request of requests) cold.push(await other.generate(request))
    const warm = await Promise.all(requests.map((request) => other.generate(request)))
    await other.close()
    answers.push(...[cold, warm].map((results) => results.map(({ tokens, logprobs }) => ({ tokens, logprobs }))))
  }
  for (const answer of answers) expect(answer).toEqual(answers[0])
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
