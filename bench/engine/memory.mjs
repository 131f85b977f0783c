/**
 * Memory after thousands of short requests of all kinds, over a forward pass that costs nothing. Prints JSON: resident
 * bytes after each round, and the growth per request over the rounds after the first. Run with `--expose-gc`.
 */
import { jsonSchema, load, regex } from '../../dist/index.mjs'

const ROUNDS = 6
const REQUESTS = 5000
const AT_ONCE = 50

// What is kept for reuse is small here, so that it is full before the first round ends.
const engine = await load(process.argv[2], { contextLength: 1024, kvBytes: 2 ** 22, grammarCacheBytes: 2 ** 24 })
const schema = jsonSchema({
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, n: { type: 'integer' } },
  required: ['name', 'n'],
})

async function request(i) {
  const prompt = Uint32Array.from({ length: 20 + (i % 100) }, (_, at) => ((i * 31 + at * at) % 40_000) + 1)
  const base = { prompt, maxTokens: 12, ignoreEos: true }
  switch (i % 8) {
    case 0:
      return engine.generate({ ...base, grammar: schema, temperature: 1, seed: i })
    case 1:
      // A grammar nobody uses again.
      return engine.generate({ ...base, grammar: regex(`(${i}|[a-z]{3}){1,4}`), temperature: 1, seed: i })
    case 2: {
      for await (const _ of engine.stream(base)) break
      return
    }
    case 3: {
      const controller = new AbortController()
      const aborted = engine.generate({ ...base, maxTokens: 200, signal: controller.signal }).catch(() => undefined)
      setImmediate(() => controller.abort())
      return aborted
    }
    case 4:
      return engine.generate({ ...base, prompt: [1e9] }).catch(() => undefined)
    case 5:
      return Promise.all(engine.streamChoices({ ...base, temperature: 1, logprobs: 2 }, 3).map((c) => c.final()))
    case 6:
      return engine.generate({ ...base, stop: ['e'], temperature: 1, topP: 0.9 })
    default:
      return engine.generate(base)
  }
}

const rounds = []
let next = 0
for (let round = 0; round < ROUNDS; round++) {
  const end = (round + 1) * REQUESTS
  const worker = async () => {
    while (next < end) await request(next++)
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker))
  // Finalizers run in a turn of their own.
  for (let turn = 0; turn < 3; turn++) {
    globalThis.gc()
    await new Promise((resolve) => setImmediate(resolve))
  }
  rounds.push(process.memoryUsage().rss)
}
const { pagesUsed, pagesCached, pagesTotal, running, waiting } = engine.stats()
if (pagesUsed !== pagesCached || running + waiting > 0) throw new Error('pages or requests were left behind')
await engine.close()
const perRequest = (rounds[ROUNDS - 1] - rounds[0]) / ((ROUNDS - 1) * REQUESTS)
console.log(JSON.stringify({ requests: ROUNDS * REQUESTS, rounds, perRequest, pagesUsed, pagesTotal }))
