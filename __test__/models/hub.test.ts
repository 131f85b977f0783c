import { fork } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, readFile, rm, truncate, utimes, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { AbortError, ModelLoadError } from '../../src/errors.js'
import { listModels, type ModelEntry, pullModel, type ResolveOptions, resolveModel } from '../../src/models/index.js'
import { type FakeHub, sha256Of, startFakeHub } from './fake_hub.js'

const bytes = Buffer.alloc(300_000, 'a model, more or less; ')
const entry: ModelEntry = {
  name: 'little',
  description: 'made up',
  license: 'none',
  file: 'little.gguf',
  size: bytes.length,
  sha256: sha256Of(bytes),
  repo: 'someone/little',
}

let cacheDir: string
let hub: FakeHub
let storage: FakeHub
let options: ResolveOptions
const saved = { ...process.env }

beforeEach(async () => {
  cacheDir = await mkdtemp(path.join(tmpdir(), 'tinyllm-hub-'))
  hub = await startFakeHub({
    'someone/little/little.gguf': bytes,
    'someone/many/m-Q4_K_M.gguf': bytes,
    'someone/many/m-Q8_0.gguf': Buffer.from('eight bits'),
    'someone/many/README.md': Buffer.from('read me'),
  })
  storage = await startFakeHub({ 'someone/little/little.gguf': bytes })
  process.env.HF_ENDPOINT = hub.url
  delete process.env.HF_TOKEN
  delete process.env.HF_HUB_OFFLINE
  options = { cacheDir, manifest: [entry] }
})

afterEach(async () => {
  await Promise.all([hub.close(), storage.close()])
  await rm(cacheDir, { recursive: true, force: true })
  process.env = { ...saved }
})

const filesLeft = async (): Promise<string[]> => (await readdir(path.join(cacheDir, 'little')).catch(() => [])).sort()
const downloads = (from: FakeHub): string[] =>
  from.seen.filter(({ method }) => method === 'GET').map(({ range }) => range ?? 'whole')

describe('a pull from the hub', () => {
  test('lands in the cache under its own name, and the next one needs no network', async () => {
    const seen: number[] = []
    const first = await resolveModel('little', { ...options, onProgress: ({ received }) => seen.push(received) })
    expect(first).toEqual({ path: path.join(cacheDir, 'little', 'little.gguf'), name: 'little', source: 'hub' })
    expect(await readFile(first.path)).toEqual(bytes)
    expect(seen.at(-1)).toBe(bytes.length)
    expect(seen).toEqual([...seen].sort((a, b) => a - b))
    expect(await filesLeft()).toEqual(['little.gguf', 'little.gguf.json'])
    const requests = hub.seen.length
    expect(await resolveModel('LITTLE', options)).toEqual({ ...first, source: 'cache' })
    expect(hub.seen).toHaveLength(requests)
  })

  test('goes on after each cut where it stopped', async () => {
    hub.behaviour.cuts = [1000, 50_000]
    expect(await readFile((await resolveModel('little', options)).path)).toEqual(bytes)
    expect(downloads(hub)).toEqual(['whole', 'bytes=1000-', 'bytes=51000-'])
  })

  test('goes on in the next call after an abort, and leaves no file under the final name', async () => {
    const abort = new AbortController()
    hub.behaviour.cuts = [2000]
    const onProgress = ({ received }: { received: number }): void => {
      if (received > 0) abort.abort()
    }
    const pull = resolveModel('little', { ...options, signal: abort.signal, onProgress })
    await expect(pull).rejects.toThrow(AbortError)
    expect(await filesLeft()).toEqual([`little.gguf.${entry.sha256.slice(0, 16)}.partial`])
    hub.seen.length = 0
    await resolveModel('little', options)
    expect(downloads(hub)).toEqual(['bytes=2000-'])
  })

  test('is whole though the server knows no ranges', async () => {
    hub.behaviour.cuts = [7000]
    hub.behaviour.noRanges = true
    expect(await readFile((await resolveModel('little', options)).path)).toEqual(bytes)
  })

  test('refuses a damaged partial file, and the next pull starts anew', async () => {
    await resolveModel('little', options)
    await rm(path.join(cacheDir, 'little', 'little.gguf'))
    await writeFile(path.join(cacheDir, 'little', `little.gguf.${entry.sha256.slice(0, 16)}.partial`), 'not its bytes')
    await expect(resolveModel('little', options)).rejects.toThrow(/has SHA-256 .*, not the expected/)
    expect(await filesLeft()).toEqual(['little.gguf.json'])
    expect((await resolveModel('little', options)).source).toBe('hub')
  })

  test('refuses bytes that do not match the pinned hash, whatever the hub announces', async () => {
    const other = { ...entry, sha256: sha256Of(Buffer.from('something else')) }
    hub.behaviour.silent = true
    await expect(resolveModel('little', { ...options, manifest: [other] })).rejects.toMatchObject({
      code: 'ERR_TINYLLM_MODEL_LOAD',
      message: expect.stringMatching(/has SHA-256 .*, not the expected/),
    })
    expect(await filesLeft()).toEqual([])
  })

  test('does not start when the hub announces another file than the pinned one', async () => {
    hub.behaviour.announced = '0'.repeat(64)
    await expect(resolveModel('little', options)).rejects.toThrow(/is now another file/)
    expect(downloads(hub)).toEqual([])
  })

  test.each([
    [401, undefined, /private or gated: set HF_TOKEN/],
    [403, 'Access to this model is restricted', /gated: accept its conditions.*\(Access to this model is restricted\)/],
    [404, undefined, /someone\/little\/little\.gguf does not exist/],
    [429, undefined, /slow down/],
  ])('says what a %i means', async (status, message, expected) => {
    hub.behaviour.status = status
    if (message) hub.behaviour.message = message
    const failure = resolveModel('little', options)
    await expect(failure).rejects.toThrow(ModelLoadError)
    await expect(failure).rejects.toThrow(expected)
  })

  test('says so when the token is refused', async () => {
    process.env.HF_TOKEN = 'hf_wrong'
    hub.behaviour.status = 401
    await expect(resolveModel('little', options)).rejects.toThrow(/HF_TOKEN was refused/)
  })

  test('sends the token to the hub and never to the host it redirects to', async () => {
    process.env.HF_TOKEN = 'hf_secret'
    hub.behaviour.storage = storage.url
    storage.behaviour.cuts = [1234]
    expect(await readFile((await resolveModel('little', options)).path)).toEqual(bytes)
    expect(downloads(storage)).toEqual(['whole', 'bytes=1234-'])
    expect(new Set(hub.seen.map(({ authorization }) => authorization))).toEqual(new Set(['Bearer hf_secret']))
    expect(new Set(storage.seen.map(({ authorization }) => authorization))).toEqual(new Set([undefined]))
  })

  test('names the host that cannot be reached', async () => {
    const server = createServer().listen(0, '127.0.0.1')
    await new Promise((resolve) => server.once('listening', resolve))
    const { port } = server.address() as { port: number }
    await new Promise((resolve) => server.close(resolve))
    process.env.HF_ENDPOINT = `http://127.0.0.1:${port}`
    await expect(resolveModel('little', options)).rejects.toThrow(`the hub (127.0.0.1:${port})`)
  })

  test('happens once when two processes want the same file', async () => {
    let open = (): void => {}
    hub.behaviour.gate = new Promise((resolve) => {
      open = resolve
    })
    const child = (): Promise<string> =>
      new Promise((resolve, reject) => {
        const process_ = fork(path.join(__dirname, 'pull_in_child.cjs'), [cacheDir, JSON.stringify(entry)], {
          // Jest's process.env is a copy that children do not get by themselves.
          env: { ...process.env },
        })
        process_.on('message', (message) => {
          // The second comes to the lock while the first is held at the gate.
          if (message === 'waiting') open()
          else resolve(String(message))
        })
        process_.once('exit', (code) => reject(new Error(`the child ended with ${code}`)))
      })
    const sources = await Promise.all([child(), child()])
    expect(sources.sort()).toEqual(['cache', 'hub'])
    expect(downloads(hub)).toEqual(['whole'])
  })
})

describe('a file in the cache', () => {
  test('that was cut short is pulled again', async () => {
    const { path: file } = await resolveModel('little', options)
    await truncate(file, 1000)
    expect((await resolveModel('little', options)).source).toBe('hub')
    expect(await readFile(file)).toEqual(bytes)
  })

  test('that has a changed byte is pulled again', async () => {
    const { path: file } = await resolveModel('little', options)
    const damaged = Buffer.from(bytes)
    damaged[1234]! ^= 1
    await writeFile(file, damaged)
    await utimes(file, 1, 1)
    expect((await resolveModel('little', options)).source).toBe('hub')
    expect(await readFile(file)).toEqual(bytes)
  })

  test('that has a changed byte and its old time is found by pullModel', async () => {
    const { path: file } = await resolveModel('little', options)
    const { mtimeMs } = JSON.parse(await readFile(`${file}.json`, 'utf8')) as { mtimeMs: number }
    const damaged = Buffer.from(bytes)
    damaged[1234]! ^= 1
    await writeFile(file, damaged)
    await utimes(file, mtimeMs / 1000, mtimeMs / 1000)
    expect((await pullModel('little', options)).source).toBe('hub')
    expect(await readFile(file)).toEqual(bytes)
  })

  test('that somebody put there by hand is used once its hash is right', async () => {
    const { path: file } = await resolveModel('little', options)
    await rm(`${file}.json`)
    expect((await resolveModel('little', { ...options, offline: true })).source).toBe('cache')
    expect(existsSync(`${file}.json`)).toBe(true)
  })

  test('is used offline, and its absence or damage is an error that says so', async () => {
    const offline = { ...options, offline: true }
    await expect(resolveModel('little', offline)).rejects.toMatchObject({
      code: 'ERR_TINYLLM_MODEL_NOT_FOUND',
      message: expect.stringContaining('it is not in the cache'),
    })
    process.env.HF_HUB_OFFLINE = '1'
    await expect(resolveModel('little', options)).rejects.toThrow(/it is not in the cache/)
    expect(hub.seen).toEqual([])
    delete process.env.HF_HUB_OFFLINE
    const { path: file } = await resolveModel('little', options)
    expect((await resolveModel('little', offline)).source).toBe('cache')
    await truncate(file, 10)
    await expect(resolveModel('little', offline)).rejects.toThrow(/is damaged/)
  })

  test('whose puller died is pulled by the next process', async () => {
    const { path: file } = await resolveModel('little', options)
    await rm(file)
    // The greatest pid of a 32-bit system: nobody has it.
    const { hostname } = await import('node:os')
    await writeFile(`${file}.lock`, JSON.stringify({ pid: 2 ** 31 - 1, host: hostname(), token: 'x' }))
    expect((await resolveModel('little', options)).source).toBe('hub')
    expect(existsSync(`${file}.lock`)).toBe(false)
  })
})

describe('hf: names', () => {
  test('take the quantisation that is asked for, or the usual one', async () => {
    const usual = await resolveModel('hf:someone/many', options)
    expect(usual.path).toBe(path.join(cacheDir, 'hf', 'someone', 'many', 'm-Q4_K_M.gguf'))
    const eight = await resolveModel('hf:someone/many:q8_0', options)
    expect(await readFile(eight.path, 'utf8')).toBe('eight bits')
    const requests = hub.seen.length
    expect(await resolveModel('hf:someone/many:q8_0', options)).toEqual({ ...eight, source: 'cache' })
    expect(hub.seen).toHaveLength(requests)
    await hub.close()
    expect((await resolveModel('hf:someone/many', options)).source).toBe('cache')
    expect((await resolveModel('hf:someone/many', { ...options, offline: true })).source).toBe('cache')
    expect((await listModels(options)).filter(({ cached }) => cached).map(({ name }) => name)).toEqual([
      'hf:someone/many:m-Q4_K_M.gguf',
      'hf:someone/many:m-Q8_0.gguf',
    ])
  })

  test('are refused when the hub gives no hash to verify the file by', async () => {
    hub.behaviour.silent = true
    await expect(resolveModel('hf:someone/many', options)).rejects.toThrow(/no SHA-256/)
  })

  test('that the hub does not have are an error', async () => {
    await expect(resolveModel('hf:nobody/nothing', options)).rejects.toThrow(/nobody\/nothing does not exist/)
    await expect(resolveModel('hf:someone/many:Q2_K', options)).rejects.toThrow(/it has m-Q4_K_M\.gguf, m-Q8_0\.gguf/)
    await expect(resolveModel('hf:someone', options)).rejects.toThrow(/write hf:owner\/repo/)
  })
})
