/**
 * Microseconds per token through the public API, over a forward pass that costs nothing. Prints JSON.
 *
 * A reader that is slower than the engine finds many tokens at once; as long as the forward pass costs nothing that is
 * so all the time. So there is a second measurement, with a pause in every step, where every token travels alone; there
 * the time of the processors is what counts.
 */
import { jsonSchema, load } from '../../dist/index.mjs'

const options = { contextLength: 8192, kvBytes: 2 ** 28 }
const engine = await load(process.argv[2], options)
process.env.TINYLLM_FREE_FORWARD_US = '1000'
const paced = await load(process.argv[2], options)
if (engine.info.forward !== 'free') throw new Error(`this is no addon for measuring: ${engine.info.forward}`)

const schema = {
  type: 'array',
  minItems: 400,
  items: {
    type: 'object',
    properties: { name: { type: 'string', maxLength: 12 }, n: { type: 'integer' } },
    required: ['name', 'n'],
  },
}
const requests = {
  greedy: {},
  'sampled, top_p 0.95': { temperature: 1, topP: 0.95, seed: 1 },
  'under a schema': { temperature: 1, seed: 1, grammar: jsonSchema(schema) },
}

/** Generates so many tokens in so many sequences at once; gives microseconds per token. */
async function run(engine, sequences, maxTokens, members) {
  const cpu = process.cpuUsage()
  const start = performance.now()
  const all = Array.from({ length: sequences }, (_, i) =>
    engine.generate({ prompt: Uint32Array.of(1 + i, 2, 3), ignoreEos: true, ...members, maxTokens }),
  )
  const tokens = (await Promise.all(all)).reduce((sum, { usage }) => sum + usage.completionTokens, 0)
  const us = ((performance.now() - start) * 1000) / tokens
  const { user, system } = process.cpuUsage(cpu)
  return { us, cpuUs: (user + system) / tokens }
}

/** The median of five rounds after one that does not count. */
async function measure(...work) {
  await run(...work)
  const rounds = []
  for (let round = 0; round < 5; round++) rounds.push(await run(...work))
  return rounds.sort((a, b) => a.cpuUs - b.cpuUs)[2]
}

const results = []
for (const sequences of [1, 8, 32]) {
  for (const [request, members] of Object.entries(requests)) {
    results.push({
      sequences,
      request,
      ...(await measure(engine, sequences, Math.ceil(8192 / sequences) - 8, members)),
      alone: (await measure(paced, sequences, 200, members)).cpuUs,
    })
  }
}
await engine.close()
await paced.close()
console.log(JSON.stringify(results))
