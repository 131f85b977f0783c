/** Many requests at once, by chance: everybody gets what they would get alone, and nothing is left behind. */
import fc from 'fast-check'
import {
  type Engine,
  type GenerateRequest,
  type GenerateResult,
  jsonSchema,
  type LoadOptions,
  regex,
} from '../../src/index.js'
import { loadTiny } from './tiny.js'

const grammars = [
  undefined,
  regex('(alpha|beta|[0-9]{1,8})(,(alpha|beta|[0-9]{1,8})){2,6}'),
  jsonSchema({
    type: 'object',
    properties: { name: { type: 'string', maxLength: 8 }, n: { type: 'integer' } },
    required: ['name', 'n'],
  }),
]

/** Prompts with shared beginnings of several lengths, so that pages are found, shared in part, and not found. */
const requests: fc.Arbitrary<GenerateRequest> = fc
  .record({
    prefix: fc.constantFrom(0, 20, 32, 64, 75),
    tail: fc.array(fc.integer({ min: 0, max: 255 }), { minLength: 1, maxLength: 40 }),
    warm: fc.boolean(),
    seed: fc.integer({ min: 0, max: 2 ** 40 }),
    maxTokens: fc.integer({ min: 1, max: 40 }),
    grammar: fc.constantFrom(...grammars),
    stop: fc.constantFrom([], ['a'], ['a', '9,']),
    logprobs: fc.constantFrom(undefined, 0, 2),
  })
  .map(({ prefix, tail, warm, grammar, logprobs, ...rest }) => ({
    ...rest,
    prompt: [...Array.from({ length: prefix }, (_, i) => (i * 11) % 256), ...tail],
    ...(warm ? { temperature: 1.5, topP: 0.9, repetitionPenalty: 1.2 } : {}),
    ...(grammar === undefined ? {} : { grammar }),
    ...(logprobs === undefined ? {} : { logprobs }),
  }))

const schedules: fc.Arbitrary<LoadOptions> = fc.record(
  {
    prefillChunk: fc.constantFrom(1, 7, 64, 512),
    parallel: fc.integer({ min: 1, max: 6 }),
    threads: fc.constantFrom(1, 2),
    // From the least there can be, so that sequences have to give way, to plenty.
    kvBytes: fc.constantFrom(0, 1 << 20, 1 << 26),
  },
  { requiredKeys: [] },
)

/** All but how much was found in the cache, which is the others' doing. */
function comparable({ usage, ...rest }: GenerateResult): unknown {
  return { ...rest, usage: { ...usage, cachedTokens: 0 } }
}

/** Waits until the engine has put everything away; checks that no page is lost then. */
async function expectNothingLeft(engine: Engine): Promise<void> {
  for (;;) {
    const stats = engine.stats()
    const ended = stats.finished + stats.cancelled + stats.failed
    if (stats.requests === ended && stats.running === 0 && stats.waiting === 0) {
      expect(stats.pagesUsed).toBe(stats.pagesCached)
      return
    }
    await new Promise((resolve) => setImmediate(resolve))
  }
}

const contextLength = 256
let alone: Engine

beforeAll(async () => {
  alone = await loadTiny({ contextLength })
}, 600_000)

afterAll(async () => {
  await alone.close()
})

test('random schedules: bit for bit the same as alone', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.tuple(requests, fc.integer({ min: 1, max: 3 })), { minLength: 1, maxLength: 10 }),
      schedules,
      fc.constantFrom(undefined, 'portable'),
      async (families, options, tier) => {
        if (tier !== undefined) process.env['TINYLLM_CPU'] = tier
        const engine = await loadTiny({ contextLength, ...options }).finally(() => delete process.env['TINYLLM_CPU'])
        const running = families.map(([request, count]) =>
          Promise.all(engine.streamChoices(request, count).map((choice) => choice.final())),
        )
        for (const [i, [request]] of families.entries()) {
          for (const [choice, result] of (await (running[i] as Promise<GenerateResult[]>)).entries()) {
            const seed = Number(request.seed) + choice
            expect(comparable(result)).toEqual(comparable(await alone.generate({ ...request, seed })))
          }
        }
        await expectNothingLeft(engine)
        await engine.close()
      },
    ),
    { numRuns: 25 },
  )
})

/** Ways to end a generation, each after some chunks. */
const exits = ['finish', 'break', 'cancel', 'abort', 'drop'] as const

async function leave(engine: Engine, request: GenerateRequest, exit: (typeof exits)[number], chunks: number) {
  const controller = new AbortController()
  const generation = engine.stream({ ...request, signal: controller.signal })
  if (exit === 'drop') return
  let seen = 0
  try {
    for await (const _ of generation) {
      if (seen++ < chunks) continue
      if (exit === 'break') break
      if (exit === 'cancel') generation.cancel()
      if (exit === 'abort') controller.abort()
    }
  } catch (error) {
    expect(error).toMatchObject({ code: 'ERR_TINYLLM_ABORTED' })
  }
}

test('storms of cancellations lose no page and no request', async () => {
  const engine = await loadTiny({ contextLength, parallel: 8, maxQueue: 1000, kvBytes: 1 << 20 })
  const random = fc.sample(fc.tuple(requests, fc.constantFrom(...exits), fc.nat(4)), { numRuns: 400, seed: 7 })
  await Promise.all(random.map(([request, exit, chunks]) => leave(engine, { ...request, maxTokens: 60 }, exit, chunks)))
  // A generation that nobody reads ends when its outbox and the context are full, or with the engine.
  for (let more = 0; more < 3; more++) {
    const again = random.slice(0, 50).map(([request]) => engine.generate(request))
    await Promise.all(again)
  }
  await expectNothingLeft(engine)
  const { requests: all, finished, cancelled, failed } = engine.stats()
  expect([all, finished + cancelled, failed]).toEqual([550, 550, 0])
  await engine.close()
})

test('closing in the middle of a storm ends everybody', async () => {
  const engine = await loadTiny({ contextLength, parallel: 4, maxQueue: 1000 })
  const random = fc.sample(requests, { numRuns: 200, seed: 9 })
  const ended = Promise.allSettled(random.map((request) => engine.generate(request)))
  await engine.generate(random[0] as GenerateRequest)
  await engine.close()
  for (const result of await ended) {
    if (result.status === 'rejected') expect(result.reason).toMatchObject({ code: 'ERR_TINYLLM_ENGINE_CLOSED' })
  }
  const stats = engine.stats()
  expect([stats.running, stats.waiting]).toEqual([0, 0])
})
