/** The addon in processes and threads of its own: how they end, and what they leave behind. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { tinyPath } from './tiny.js'

const binding = path.join(__dirname, '..', '..', 'binding.js')

/** Runs a script in a child process; `native` and `file` are there. Gives what it printed and how it ended. */
async function child(script: string, flags: string[] = []): Promise<{ out: string; code: number | null }> {
  const prelude = `
    const native = require(${JSON.stringify(binding)})
    const file = ${JSON.stringify(tinyPath())}
    const loaded = async () => (await native.loadEngine(file, {})).ok
    const endless = { prompt: Uint32Array.of(5), ignoreEos: true }
  `
  const process_ = spawn(process.execPath, [...flags, '-e', `${prelude}\n;(async () => {${script}})()`], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let out = ''
  process_.stdout.setEncoding('utf8').on('data', (text: string) => (out += text))
  const [code] = (await once(process_, 'close')) as [number | null]
  return { out, code }
}

test('a process ends with an engine that nobody closed', async () => {
  expect(await child(`await loaded(); console.log('done')`)).toEqual({ out: 'done\n', code: 0 })
})

test('a process ends when it exits in the middle of a generation', async () => {
  const script = `
    const engine = await loaded()
    const generation = engine.submit(endless).ok
    await generation.nextBatch()
    console.log('exit')
    process.exit(3)
  `
  expect(await child(script)).toEqual({ out: 'exit\n', code: 3 })
})

test('a generation that nobody reads does not keep a process', async () => {
  const script = `
    globalThis.engine = await loaded()
    globalThis.generation = engine.submit(endless).ok
    console.log('left')
  `
  expect(await child(script)).toEqual({ out: 'left\n', code: 0 })
})

test('it works in worker threads, several at once, and they can be ended', async () => {
  const script = `
    const { Worker } = require('node:worker_threads')
    const code = \`
      const { parentPort, workerData } = require('node:worker_threads')
      const native = require(workerData.binding)
      ;(async () => {
        const engine = (await native.loadEngine(workerData.file, {})).ok
        const request = { prompt: Uint32Array.of(5, 6), maxTokens: 5, ignoreEos: true }
        const generation = engine.submit(request).ok
        let tokens = []
        for (let batch; (batch = (await generation.nextBatch()).ok); ) tokens.push(...batch.tokens)
        parentPort.postMessage(tokens.join())
        engine.submit({ ...request, maxTokens: undefined })
        setInterval(() => {}, 1000)
      })()
    \`
    const workerData = { binding: ${JSON.stringify(binding)}, file }
    const workers = [1, 2].map(() => new Worker(code, { eval: true, workerData }))
    const said = await Promise.all(workers.map((w) => new Promise((resolve) => w.once('message', resolve))))
    await Promise.all(workers.map((w) => w.terminate()))
    const engine = await loaded()
    const generation = engine.submit({ prompt: Uint32Array.of(5, 6), maxTokens: 5, ignoreEos: true }).ok
    let tokens = []
    for (let batch; (batch = (await generation.nextBatch()).ok); ) tokens.push(...batch.tokens)
    console.log(said[0] === said[1] && said[1] === tokens.join(), tokens.length)
  `
  expect(await child(script)).toEqual({ out: 'true 5\n', code: 0 })
})

test('a dropped generation is cancelled and a dropped engine is freed, by the garbage collector', async () => {
  const script = `
    const turn = () => new Promise((resolve) => setImmediate(resolve))
    let engine = await loaded()
    const before = engine.stats().cancelled
    let generation = engine.submit(endless).ok
    await generation.nextBatch()
    generation = undefined
    for (let i = 0; i < 2000 && engine.stats().cancelled === before; i++) { gc(); await turn() }
    const cancelled = engine.stats().cancelled - before
    const gone = new WeakRef(engine)
    // deref() keeps its target to the end of the turn, so collecting comes first in each.
    engine = undefined
    for (let i = 0; i < 2000 && gone.deref() !== undefined; i++) { await turn(); gc() }
    console.log(cancelled, gone.deref() === undefined)
  `
  expect(await child(script, ['--expose-gc'])).toEqual({ out: '1 true\n', code: 0 })
})

test('many short requests leave no memory behind', async () => {
  const script = `
    const engine = await loaded()
    const round = async (count) => {
      for (let i = 0; i < count; i++) {
        const generation = engine.submit({ prompt: Uint32Array.of(i % 250, 5), maxTokens: 2, ignoreEos: true }).ok
        while ((await generation.nextBatch()).ok);
      }
      gc()
      return process.memoryUsage().rss
    }
    await round(1500)
    const before = await round(1500)
    const after = await round(3000)
    const stats = engine.stats()
    console.log((after - before) / 2 ** 20 < 16, stats.pagesUsed <= stats.pagesCached)
  `
  expect(await child(script, ['--expose-gc'])).toEqual({ out: 'true true\n', code: 0 })
})
