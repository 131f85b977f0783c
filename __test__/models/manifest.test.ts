import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { cacheFolder } from '../../src/models/cache.js'
import { chooseFile, findEntry, MANIFEST, parseHubName, readManifest } from '../../src/models/manifest.js'
import { DEFAULT_MODEL, listModels, resolveModel } from '../../src/models/index.js'

test('the default model has a name, a pinned hash and two places to come from', () => {
  const entry = findEntry(DEFAULT_MODEL)
  expect(entry?.sha256).toMatch(/^[0-9a-f]{64}$/)
  expect(entry?.repo).toBeDefined()
  expect(entry?.mirror).toHaveLength(1)
})

describe('the cache folder', () => {
  test.each([
    ['linux', {}, '/home/me/.cache/tinyllm'],
    ['linux', { XDG_CACHE_HOME: '/xdg' }, '/xdg/tinyllm'],
    ['linux', { XDG_CACHE_HOME: 'relative' }, '/home/me/.cache/tinyllm'],
    ['darwin', { XDG_CACHE_HOME: '/xdg' }, '/home/me/Library/Caches/tinyllm'],
    ['win32', { LOCALAPPDATA: '/local' }, '/local/tinyllm'],
    ['win32', {}, '/home/me/AppData/Local/tinyllm'],
    ['darwin', { TINYLLM_CACHE: '/mine' }, '/mine'],
  ] as const)('on %s with %j is %s', (platform, env, expected) => {
    expect(cacheFolder(env, platform, '/home/me')).toBe(expected)
  })
})

describe('hub names', () => {
  test('are taken apart', () => {
    expect(parseHubName('smollm2')).toBeUndefined()
    expect(parseHubName('hf:Qwen/Qwen3-0.6B-GGUF')).toEqual({ repo: 'Qwen/Qwen3-0.6B-GGUF' })
    expect(parseHubName('hf:a/b:Q8_0')).toEqual({ repo: 'a/b', quant: 'Q8_0' })
    expect(parseHubName('hf:a/b:sub/c.gguf')).toEqual({ repo: 'a/b', quant: 'sub/c.gguf' })
  })

  test.each([
    'hf:',
    'hf:a',
    'hf:a/b/c',
    'hf:../b',
    'hf:a/..',
    'hf:a/b:../../c.gguf',
    'hf:a/b:',
    'hf:a b/c',
    'hf:a/b?x',
  ])('%j is refused, so that no name leaves the cache folder', (name) => {
    expect(() => parseHubName(name)).toThrow(/hf:owner\/repo/)
  })

  test('mean one file or an error that lists what there is', () => {
    const files = ['README.md', 'm-Q4_K_M.gguf', 'm-Q4_K_S.gguf', 'm.q8_0.gguf', 'mmproj-m-f16.gguf']
    expect(chooseFile({ repo: 'a/b' }, files)).toBe('m-Q4_K_M.gguf')
    expect(chooseFile({ repo: 'a/b', quant: 'q8_0' }, files)).toBe('m.q8_0.gguf')
    expect(chooseFile({ repo: 'a/b', quant: 'm-Q4_K_S.gguf' }, files)).toBe('m-Q4_K_S.gguf')
    expect(chooseFile({ repo: 'a/b' }, ['only-IQ2_XXS.gguf'])).toBe('only-IQ2_XXS.gguf')
    // Q4_K is neither Q4_K_M nor Q4_K_S, and F16 is no part of BF16.
    expect(() => chooseFile({ repo: 'a/b', quant: 'Q2_K' }, files)).toThrow(/has no Q2_K file; it has m-Q4_K_M/)
    expect(() => chooseFile({ repo: 'a/b', quant: 'F16' }, ['m-BF16.gguf'])).toThrow(/has no F16/)
    expect(() => chooseFile({ repo: 'a/b', quant: 'Q8_0' }, ['x-Q8_0.gguf', 'y-Q8_0.gguf'])).toThrow(/several files/)
    expect(() => chooseFile({ repo: 'a/b' }, ['m-Q4_0-00001-of-00002.gguf'])).toThrow(/several parts/)
    expect(() => chooseFile({ repo: 'a/b' }, ['model.safetensors'])).toThrow(/no GGUF file/)
  })
})

describe('a manifest of one’s own', () => {
  let folder: string
  beforeEach(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'tinyllm-manifest-'))
  })
  afterEach(() => rm(folder, { recursive: true }))

  const write = async (value: unknown): Promise<string> => {
    const file = path.join(folder, 'models.json')
    await writeFile(file, JSON.stringify(value))
    return file
  }

  test('has the form of the built-in one', async () => {
    expect(await readManifest(await write({ models: MANIFEST }))).toEqual(MANIFEST)
    const [entry] = await readManifest(path.join(__dirname, '../../fixtures/models.json'))
    expect(entry).toMatchObject({ ...findEntry('qwen2.5-coder-0.5b-instruct'), mirror: expect.any(Array) })
  })

  test.each([
    [{}, /no array "models"/],
    [{ models: [null] }, /no string "name"/],
    [{ models: [{ ...MANIFEST[0], size: '1' }] }, /no whole number "size"/],
    [{ models: [{ ...MANIFEST[0], sha256: 'abc' }] }, /malformed "sha256"/],
    [{ models: [{ ...MANIFEST[0], file: '../x.gguf' }] }, /path instead of a file/],
    [{ models: [{ ...MANIFEST[0], name: '..' }] }, /path instead of a file/],
  ])('%j is refused', async (value, message) => {
    await expect(readManifest(await write(value))).rejects.toThrow(message)
  })

  test('a path comes before a name, and a missing path or name is an error that says what there is', async () => {
    const file = path.join(folder, 'mine.gguf')
    await writeFile(file, '')
    expect(await resolveModel(file, { offline: true })).toEqual({ path: file, name: 'mine', source: 'path' })
    const missing = { code: 'ERR_TINYLLM_MODEL_NOT_FOUND', name: 'ModelLoadError' }
    await expect(resolveModel(`${file}x`)).rejects.toMatchObject(missing)
    await expect(resolveModel('gone.gguf')).rejects.toMatchObject(missing)
    await expect(resolveModel(folder)).rejects.toThrow(/is not a file/)
    await expect(resolveModel('gpt-5')).rejects.toThrow(/there is no model "gpt-5".*smollm2-135m-instruct/)
  })

  test('listed models say whether they are in the cache', async () => {
    const listed = await listModels({ cacheDir: folder })
    expect(listed.map(({ name, cached }) => [name, cached])).toEqual(MANIFEST.map(({ name }) => [name, false]))
  })
})
