import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { version } from '../../package.json'
import { describeFailure } from '../../src/cli/failure.js'
import { readGrammar } from '../../src/cli/grammar_options.js'
import { formatBytes, formatTable } from '../../src/cli/terminal.js'
import { GrammarError } from '../../src/errors.js'
import { type FakeHub, sha256Of, startFakeHub } from '../models/fake_hub.js'
import { run } from './terminal.js'

const bytes = Buffer.alloc(5000, 'weights')
let folder: string
let hub: FakeHub
let manifest: string
const saved = { ...process.env }

beforeEach(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'tinyllm-cli-'))
  hub = await startFakeHub({ 'someone/little/little.gguf': bytes })
  manifest = path.join(folder, 'models.json')
  const entry = { name: 'little', description: 'made up', license: 'MIT', file: 'little.gguf', repo: 'someone/little' }
  await writeFile(manifest, JSON.stringify({ models: [{ ...entry, size: bytes.length, sha256: sha256Of(bytes) }] }))
  process.env.HF_ENDPOINT = hub.url
  process.env.TINYLLM_CACHE = path.join(folder, 'cache')
})

afterEach(async () => {
  process.env = { ...saved }
  await hub.close()
  await rm(folder, { recursive: true })
})

test('the version is the package’s', async () => {
  expect(await run(['--version'])).toEqual({ code: 0, out: `${version}\n`, err: '' })
})

test('every command explains itself', async () => {
  const { code, out } = await run(['--help'])
  expect(code).toBe(0)
  for (const command of ['serve', 'generate', 'route', 'chat', 'pull', 'models', 'inspect', 'grammar']) {
    expect(out).toContain(`  ${command} `)
    expect((await run([command, '--help'])).out).toContain(`Usage: tinyllm ${command}`)
  }
})

describe('a wrong command line is one line and exit code 2', () => {
  test.each([
    [['serv'], /unknown command 'serv'/],
    [['serve', '--port', '99999'], /Give a whole number from 0 to 65535/],
    [['serve', '--profile', 'other'], /Allowed choices are/],
    [['generate', 'hello', '--temperature', 'hot'], /Give a number from 0 to 100/],
    [['generate', 'hello', '--seed', '-1'], /Give a whole number from 0 to 18446744073709551615/],
    [['generate', 'hello', '--max-tokens', '1.5'], /Give a whole number/],
    [['grammar', '--unknown'], /unknown option '--unknown'/],
  ])('%j', async (args, message) => {
    const { code, out, err } = await run(args)
    expect(code).toBe(2)
    expect(out).toBe('')
    expect(err).toMatch(/^tinyllm: /)
    expect(err).toMatch(message)
    expect(err).not.toMatch(/^\s+at /m)
  })
})

describe('a failure is one line and exit code 1', () => {
  test.each([
    [['pull', 'no-such-model'], /^tinyllm: there is no model "no-such-model"/],
    [['generate', 'hello', '--model', './missing.gguf'], /the model file \.\/missing\.gguf does not exist/],
    [['generate', 'hello', '--regex', 'a', '--choice', 'b'], /only one of --regex, --choice/],
    [['generate', 'hello', '--schema', 'missing.json'], /the schema missing\.json cannot be read/],
    [['grammar'], /one of --regex, --choice, --schema and --json-object is needed/],
    [['grammar', '--regex', 'a', '--general'], /--general goes with --schema/],
    [['models', '--manifest', 'missing.json'], /the model manifest missing\.json cannot be read/],
    [['inspect', 'missing.gguf'], /missing\.gguf does not exist/],
  ])('%j', async (args, message) => {
    const { code, out, err } = await run(args)
    expect({ code, out }).toEqual({ code: 1, out: '' })
    expect(err).toMatch(message)
    expect(err.trim().split('\n')).toHaveLength(1)
  })

  test('with DEBUG the stack is shown', () => {
    const error = new GrammarError('ERR_TINYLLM_GRAMMAR', 'no such class', { details: { position: 7 } })
    expect(describeFailure(error, false)).toBe('tinyllm: no such class (at 7)\n')
    expect(describeFailure(error, true)).toContain('command_line.test')
  })
})

test('pull prints the path alone on standard output, and the next pull verifies it', async () => {
  const file = path.join(folder, 'cache', 'little', 'little.gguf')
  const first = await run(['pull', 'little', '--manifest', manifest])
  expect(first).toMatchObject({ code: 0, out: `${file}\n` })
  expect(first.err).toBe('pulling little (4.9 KiB) from the hub\npulled little\n')
  expect(await run(['pull', 'little', '--manifest', manifest, '--offline'])).toEqual({
    code: 0,
    out: `${file}\n`,
    err: '',
  })
  await writeFile(file, 'x')
  expect(await run(['pull', 'little', '--manifest', manifest, '--offline'])).toMatchObject({
    code: 1,
    err: expect.stringContaining('is damaged'),
  })
})

test('models lists what has a name and whether it is here', async () => {
  await run(['pull', 'little', '--manifest', manifest])
  const { out } = await run(['models', '--manifest', manifest])
  expect(out).toMatch(/^NAME +SIZE +STATE +LICENSE\n/)
  expect(out).toMatch(/^little +4\.9 KiB +cached +MIT +made up$/m)
  expect(out).toMatch(/^smollm2-135m-instruct \(default\) +93\.8 MiB +- +Apache-2\.0/m)
  const listed = JSON.parse((await run(['models', '--json'])).out) as { name: string; cached: boolean }[]
  expect(listed.map(({ name, cached }) => [name, cached])).toEqual([
    ['smollm2-135m-instruct', false],
    ['qwen2.5-coder-0.5b-instruct', false],
  ])
})

describe('grammar options', () => {
  test('become descriptions; schemas are strict unless --general', async () => {
    const descriptionOf = async (options: Parameters<typeof readGrammar>[0]): Promise<unknown> =>
      (await readGrammar(options))?.description
    expect(await descriptionOf({})).toBeUndefined()
    expect(await descriptionOf({ regex: '(yes|no)' })).toEqual({ type: 'regex', pattern: '(yes|no)' })
    expect(await descriptionOf({ choice: ['a', 'b,c'] })).toEqual({ type: 'choice', choices: ['a', 'b,c'] })
    expect(await descriptionOf({ jsonObject: 2 })).toEqual({ type: 'json_object', depth: 2, finite: false })
    const schema = '{ "type": "boolean" }'
    const compact = { type: 'schema', schema, whitespace: 'compact' }
    expect(await descriptionOf({ schema })).toEqual({ ...compact, subset: 'strict' })
    const file = path.join(folder, 'schema.json')
    await writeFile(file, schema)
    expect(await descriptionOf({ schema: file, general: true })).toEqual({ ...compact, subset: 'general' })
  })
})

test('bytes and tables are readable', () => {
  expect([0, 1023, 1024, 98_362_432, 2 ** 41].map(formatBytes)).toEqual([
    '0 B',
    '1023 B',
    '1.0 KiB',
    '93.8 MiB',
    '2.0 TiB',
  ])
  expect(
    formatTable([
      ['a', 'bb'],
      ['ccc', 'd', ''],
    ]),
  ).toBe('a    bb\nccc  d\n')
})
