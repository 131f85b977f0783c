/** How long the event loop is kept waiting while the real model prefills and decodes. Prints JSON. */
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { load } from '../../dist/index.mjs'

const engine = await load(process.argv[2], { contextLength: 2048 })

async function delay(work) {
  const histogram = monitorEventLoopDelay({ resolution: 1 })
  histogram.enable()
  await work()
  histogram.disable()
  const ms = (ns) => ns / 1e6
  return { p50: ms(histogram.percentile(50)), p99: ms(histogram.percentile(99)), max: ms(histogram.max) }
}

const prompt = 'A long text that goes on and on. '.repeat(120)
const generate = async () => {
  const all = [1, 2, 3, 4].map((seed) =>
    engine.generate({ prompt: `${seed} ${prompt}`, maxTokens: 100, temperature: 1, seed, ignoreEos: true }),
  )
  await Promise.all(all)
}
await generate()
const idle = await delay(() => new Promise((resolve) => setTimeout(resolve, 2000)))
const busy = await delay(generate)
await engine.close()
console.log(JSON.stringify({ idle, busy }))
