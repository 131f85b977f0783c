/** Microseconds per token through the public API, over a forward pass that costs nothing. Prints JSON. */
import { jsonSchema, load } from '../../dist/index.mjs'

const engine = await load(process.argv[2], { contextLength: 8192, kvBytes: 2 ** 28 })
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

const results = []
for (const sequences of [1, 8, 32]) {
  for (const [request, members] of Object.entries(requests)) {
    const perSequence = Math.ceil(8192 / sequences)
    const run = async () => {
      const all = Array.from({ length: sequences }, (_, i) =>
        engine.generate({
          prompt: Uint32Array.of(1 + i, 2, 3),
          ignoreEos: true,
          ...members,
          maxTokens: perSequence - 8,
        }),
      )
      return (await Promise.all(all)).reduce((sum, { usage }) => sum + usage.completionTokens, 0)
    }
    await run()
    const rounds = []
    for (let round = 0; round < 5; round++) {
      const cpu = process.cpuUsage()
      const start = performance.now()
      const tokens = await run()
      const us = ((performance.now() - start) * 1000) / tokens
      const { user, system } = process.cpuUsage(cpu)
      rounds.push({ us, cpuUs: (user + system) / tokens })
    }
    rounds.sort((a, b) => a.us - b.us)
    results.push({ sequences, request, ...rounds[2] })
  }
}
await engine.close()
console.log(JSON.stringify(results))
