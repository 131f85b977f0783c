// The forward pass against llama.cpp: decode at three depths, prefill, batched decode. One command:
//
//   npm run bench:forward [-- --model NAME_OR_PATH] [--json] [--rounds N] [--prefill fast]
//                            [--cpu avx2 --peer-backend haswell] [--only decode16,prefill512]
//
// Ours runs through the public Node API; the peer is llama.cpp in node-llama-cpp's prebuilt libraries, through its C API
// and without sampling (bench/peers). Same file, two threads each. Machines are noisy, so the two alternate within each
// round, a ratio is the median over the rounds' pairs, and no figure of one run should be compared with another run's.
// With `--prefill fast` everything runs on an engine loaded that way.
// Before anything is timed, greedy continuations are held against the golden ones of an independent f32 implementation.
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { createInterface } from 'node:readline'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { buildPeer } from './peers/build.mjs'

const { values: options } = parseArgs({
  options: {
    model: { type: 'string', default: 'smollm2-135m-instruct' },
    json: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '5' },
    prefill: { type: 'string', default: 'exact' },
    cpu: { type: 'string' },
    'peer-backend': { type: 'string' },
    only: { type: 'string' },
  },
})
const THREADS = 2
const DECODE_STEPS = 32
const BATCH_DEPTH = 128
const rounds = Number(options.rounds)
// The tier is chosen when the addon loads the model.
if (options.cpu !== undefined) process.env.TINYLLM_CPU = options.cpu

const MEASURES = [
  ['decode16', 'decode', 16],
  ['decode512', 'decode', 512],
  ['decode2048', 'decode', 2048],
  ['prefill512', 'prefill', 512],
  ['batch8', 'batch', 8],
  ['batch16', 'batch', 16],
  ['batch32', 'batch', 32],
]
const only = options.only?.split(',') ?? MEASURES.map(([name]) => name)
const unknown = only.find((name) => !MEASURES.some(([known]) => known === name))
if (unknown !== undefined) throw new Error(`--only: no measure is called ${unknown}`)
const measures = MEASURES.filter(([name]) => only.includes(name))

const { load } = await import('../dist/index.mjs')
const engine = await load(options.model, {
  threads: THREADS,
  contextLength: 4096,
  parallel: 32,
  prefill: options.prefill,
})

/** Prompts differ from run to run, so that no prefix is found computed already. */
let salt = 0
function prompt(length) {
  salt += 1
  const ids = new Uint32Array(length)
  for (let i = 0; i < length; i += 1) ids[i] = 1000 + ((i * 7919 + salt * 104_729) % 40_000)
  return ids
}

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]
const seconds = () => performance.now() / 1000

/** Arrival times of each token of one generation. */
async function arrivals(length, maxTokens) {
  const times = []
  for await (const chunk of engine.stream({ prompt: prompt(length), maxTokens, ignoreEos: true })) {
    const now = seconds()
    for (let i = 0; i < chunk.tokens.length; i += 1) times.push(now)
  }
  return times
}

const ours = {
  async decode(depth) {
    const times = await arrivals(depth, DECODE_STEPS + 1)
    return (times.length - 1) / (times.at(-1) - times[0])
  },
  async prefill(length) {
    const start = seconds()
    await arrivals(length, 1)
    return length / (seconds() - start)
  },
  async batch(rows) {
    const all = await Promise.all(Array.from({ length: rows }, () => arrivals(BATCH_DEPTH, DECODE_STEPS * 3)))
    // Counted while every sequence is decoding: after the last one has started, before the first one ends.
    const from = Math.max(...all.map((times) => times[0]))
    const to = Math.min(...all.map((times) => times.at(-1)))
    return all.flat().filter((time) => time > from && time <= to).length / (to - from)
  },
}

const { program, bins } = buildPeer()
const backend =
  options['peer-backend'] === undefined ? bins : path.join(bins, `libggml-cpu-${options['peer-backend']}.so`)
const child = spawn(program, [backend, engine.info.path, String(THREADS)], { stdio: ['pipe', 'pipe', 'inherit'] })
const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
const answer = async () => {
  const { value, done } = await lines.next()
  if (done) throw new Error('the peer ended early')
  return JSON.parse(value)
}
await answer()
async function ask(line) {
  child.stdin.write(`${line}\n`)
  return await answer()
}
const sum = (values) => values.reduce((total, value) => total + value, 0)
const peer = {
  async decode(depth) {
    const { seconds } = await ask(`decode ${depth} ${DECODE_STEPS}`)
    return seconds.length / sum(seconds)
  },
  async prefill(length) {
    const { seconds } = await ask(`prefill ${length}`)
    return length / seconds[0]
  },
  async batch(rows) {
    const { seconds } = await ask(`batch ${rows} ${DECODE_STEPS}`)
    return (rows * seconds.length) / sum(seconds)
  },
}

/**
 * The likeliest token at every position of the golden continuations, given the golden tokens before it. Quantised
 * activations may turn a near tie over; how near it was is told, and a clear choice turned over ends the benchmark.
 */
async function checkOutputs() {
  const golden = JSON.parse(readFileSync(new URL('../fixtures/golden/logits.json', import.meta.url), 'utf8'))
  const cases = golden.models[engine.info.name]
  if (cases === undefined) return 'outputs not checked: there are no golden continuations for this model'
  let [positions, differing, widest] = [0, 0, 0]
  for (const { ids, greedy, greedy_gaps: gaps } of cases) {
    for (const [i, expected] of greedy.entries()) {
      const prompt = [...ids, ...greedy.slice(0, i)]
      const { tokens } = await engine.generate({ prompt, maxTokens: 1, ignoreEos: true })
      positions += 1
      if (tokens[0] === expected) continue
      differing += 1
      widest = Math.max(widest, gaps[i])
      if (gaps[i] > 0.5) throw new Error(`token ${i} is ${tokens[0]}, the reference has ${expected} by ${gaps[i]}`)
    }
  }
  const ties = differing === 0 ? '' : `; the others are ties up to ${widest.toFixed(2)} in the logits`
  return `the likeliest token equals the reference's at ${positions - differing} of ${positions} positions${ties}`
}

const checked = await checkOutputs()
const result = {
  cpu: cpus()[0].model,
  tier: engine.info.forward,
  model: engine.info.name,
  ratios: {},
  ours: {},
  peer: {},
}
for (const [name, kind, size] of measures) {
  const pairs = []
  // The first pair warms up.
  for (let round = 0; round <= rounds; round += 1) pairs.push([await ours[kind](size), await peer[kind](size)])
  const counted = pairs.slice(1)
  result.ratios[name] = median(counted.map(([a, b]) => a / b))
  result.ours[name] = median(counted.map(([a]) => a))
  result.peer[name] = median(counted.map(([, b]) => b))
}
child.stdin.end()
await engine.close()

if (options.json) {
  console.log(JSON.stringify(result))
} else {
  const digits = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(0))
  console.log(`${result.model} on ${result.cpu}, ${result.tier}, ${THREADS} threads; medians of ${rounds} pairs`)
  console.log(`(${checked})\n`)
  console.log('| tokens/s | ours | llama.cpp | ratio |\n|---|--:|--:|--:|')
  for (const [name] of measures) {
    console.log(
      `| ${name} | ${digits(result.ours[name])} | ${digits(result.peer[name])} | ${digits(result.ratios[name])}× |`,
    )
  }
}
