/**
 * `node bench/load.mjs [MODEL]`: how long `load()` takes until the first token, and what memory it holds, by the
 * operating system's accounting (Linux). Each run is a process of its own, the file in the page cache from the first
 * run on; the median of five is told. Memory is `RssAnon` and `RssFile` of `/proc/self/status`: before the package is
 * imported, after `load()`, after the first token and after a prompt of 512 tokens. The mapped model file counts as
 * `RssFile` and can be dropped by the system at any time.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** Megabytes (10^6 bytes) of the process. */
function memory() {
  const status = readFileSync('/proc/self/status', 'utf8')
  const megabytes = (name) => Number(new RegExp(String.raw`^${name}:\s*(\d+) kB`, 'm').exec(status)[1]) * 1.024e-3
  return { anon: megabytes('RssAnon'), file: megabytes('RssFile') }
}

async function once(model) {
  const idle = memory()
  const start = performance.now()
  const { load } = await import('../dist/index.mjs')
  const imported = performance.now()
  const engine = await load(model, { threads: 2 })
  const loaded = { ms: performance.now() - imported, ...memory() }
  const ids = (count) => Uint32Array.from({ length: count }, (_, i) => 1000 + ((i * 7919) % 20_000))
  await engine.generate({ prompt: ids(5), maxTokens: 1, ignoreEos: true })
  const first = { ms: performance.now() - imported, ...memory() }
  await engine.generate({ prompt: ids(512), maxTokens: 1, ignoreEos: true })
  const prompt = memory()
  console.log(JSON.stringify({ importMs: imported - start, idle, loaded, first, prompt, info: engine.info }))
  await engine.close()
}

const RUNS = 5
const [model = 'smollm2-135m-instruct', child] = process.argv.slice(2)
if (child === 'once') {
  await once(model)
} else {
  const self = fileURLToPath(import.meta.url)
  const runs = Array.from({ length: RUNS + 1 }, () => {
    const { status, stdout } = spawnSync(process.execPath, [self, model, 'once'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    if (status !== 0) process.exit(1)
    return JSON.parse(stdout)
  }).slice(1)
  const median = (of) => runs.map(of).toSorted((a, b) => a - b)[RUNS >> 1]
  const above = (stage) =>
    `anonymous memory ${median((run) => run[stage].anon - run.idle.anon).toFixed(0)} MB above an idle Node` +
    `, ${median((run) => run[stage].file - run.idle.file).toFixed(0)} MB of files`
  const ms = (of) => `${median(of).toFixed(0)} ms`
  console.log(`${runs[0].info.name}, ${runs[0].info.forward}: import ${ms((run) => run.importMs)}`)
  console.log(`load() ${ms((run) => run.loaded.ms)}: ${above('loaded')}`)
  console.log(`first token after ${ms((run) => run.first.ms)}: ${above('first')}`)
  console.log(`after a prompt of 512 tokens: ${above('prompt')}`)
}
