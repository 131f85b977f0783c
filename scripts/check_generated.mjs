/**
 * `npm run check:generated`: what is generated and committed is what its generators make now: the binding's loader and
 * types (made by the build, which comes first), the platform packages in npm/, and a lock file without addresses.
 */
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { root, run } from './setup.mjs'

const failures = []

const diff = spawnSync('git', ['diff', '--stat', '--', 'binding.js', 'binding.d.ts'], { cwd: root, encoding: 'utf8' })
if (diff.status !== 0 || diff.stdout !== '')
  failures.push(`the build makes another binding:\n${diff.stdout}${diff.stderr}`)

const fresh = path.join(root, 'target', 'npm')
rmSync(fresh, { recursive: true, force: true })
if (!run('npx', ['--no-install', 'napi', 'create-npm-dirs', '--npm-dir', fresh]))
  failures.push('napi create-npm-dirs failed')

/** The files below a folder, by their names in it. */
function read(folder) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  const names = entries.map((entry) => path.relative(folder, path.join(entry.parentPath ?? entry.path, entry.name)))
  return new Map(names.sort().map((name) => [name, readFileSync(path.join(folder, name), 'utf8')]))
}
const made = read(fresh)
const committed = read(path.join(root, 'npm'))
// The one file there that is written by hand.
committed.delete('README.md')
for (const name of new Set([...made.keys(), ...committed.keys()])) {
  if (name.endsWith('.node')) continue
  if (made.get(name) !== committed.get(name)) failures.push(`npm/${name} differs: run "npx napi create-npm-dirs"`)
}

if (readFileSync(path.join(root, 'package-lock.json'), 'utf8').includes('"resolved": "http'))
  failures.push('package-lock.json records download addresses: write it anew with the .npmrc of this repository')

for (const failure of failures) console.error(failure)
process.exit(failures.length === 0 ? 0 : 1)
