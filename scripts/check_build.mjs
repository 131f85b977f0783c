/**
 * `npm run check:build`: the addon and the tests share what they compile. A dependency whose features differ between
 * the two builds would be compiled twice, and everything above it, which with candle takes minutes.
 */
import { spawnSync } from 'node:child_process'
import { hostTarget, root } from './setup.mjs'

/** The library files cargo names for the crates of one build, by package. */
function artefacts(args) {
  const { status, stdout, stderr } = spawnSync('cargo', [...args, '--message-format=json'], {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 1 << 28,
  })
  if (status !== 0) throw new Error(`cargo ${args.join(' ')} failed:\n${stderr}`)
  const files = new Map()
  for (const line of stdout.split('\n')) {
    if (!line.startsWith('{')) continue
    const { reason, package_id: id, target, filenames } = JSON.parse(line)
    if (reason !== 'compiler-artifact' || !target.kind.includes('lib')) continue
    // Those for the target; what runs at build time (macros and their dependencies) lies in another folder.
    const libraries = filenames.filter((name) => name.endsWith('.rlib') && name.includes(hostTarget()))
    files.set(id, new Set([...(files.get(id) ?? []), ...libraries]))
  }
  return files
}

// The commands of `npm run build:native` (napi adds the target) and of `npm test`.
const target = ['--release', '--target', hostTarget()]
const addon = artefacts(['build', '-p', 'tinyllm-node', ...target])
const tests = artefacts(['test', '--workspace', '--no-run', ...target])
const failures = []
let shared = 0
for (const [id, files] of addon) {
  const name = /([^/#]+)#?[^#]*$/.exec(id)?.[0] ?? id
  const others = tests.get(id)
  // napi and what it needs: the addon's own crate has no Rust tests.
  if (others === undefined) continue
  shared += 1
  for (const file of files)
    if (!others.has(file)) failures.push(`${name} is compiled once for the addon and again for the tests`)
  if (/candle/.test(id) && others.size > 1) failures.push(`${name} is compiled ${others.size} times for the tests`)
}
const { stdout } = spawnSync('cargo', ['tree', '--workspace', '-d', '--depth', '0'], { cwd: root, encoding: 'utf8' })
for (const line of new Set(stdout.split('\n'))) {
  if (/^(candle|gemm|tokenizers|napi)\S* v/.test(line)) failures.push(`two versions of ${line} are in the lock file`)
}
if (![...tests.keys()].some((id) => id.includes('candle-core'))) failures.push('the tests compile no candle-core')
for (const failure of failures) console.error(failure)
if (failures.length === 0) console.log(`the addon and the tests share ${shared} compiled libraries`)
process.exit(failures.length === 0 ? 0 : 1)
