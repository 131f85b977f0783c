/**
 * `npm run pack:check`: the package as a user gets it. Packs the root and this platform's package, installs both in an
 * empty folder where there is no Rust, imports them as ESM and as CommonJS, runs the command, and generates a word
 * where the default model is in the cache.
 */
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { root, setUp } from './setup.mjs'

setUp()

const shell = process.platform === 'win32'
/** Runs a command and returns its output; its failure ends the check. */
function output(folder, command, args, env = process.env) {
  const { status, stdout, stderr } = spawnSync(command, args, { cwd: folder, env, encoding: 'utf8', shell })
  if (status === 0) return stdout
  throw new Error(`${command} ${args.join(' ')} ended with ${status}:\n${stdout}${stderr}`)
}

const binary = readdirSync(root).find((name) => /^tinyllm\..+\.node$/.test(name))
const platform = binary.split('.')[1]
const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'))
const tarballs = path.join(root, 'target', 'pack')
rmSync(tarballs, { recursive: true, force: true })
const staged = path.join(tarballs, platform)
mkdirSync(tarballs, { recursive: true })
cpSync(path.join(root, 'npm', platform), staged, { recursive: true })
cpSync(path.join(root, binary), path.join(staged, binary))

const pack = (folder) => {
  const [packed] = JSON.parse(
    output(folder, 'npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', tarballs]),
  )
  const mebibytes = (packed.size / 1024 / 1024).toFixed(1)
  console.log(`packed ${packed.filename}: ${packed.files.length} files, ${mebibytes} MiB`)
  return { file: path.join(tarballs, packed.filename), contents: packed.files.map((file) => file.path) }
}
const main = pack(root)
const native = pack(staged)

const unwanted = main.contents.filter(
  (name) => !/^(bin|dist)\/|^(binding\.(js|d\.ts)|package\.json|[A-Z]+(\.md)?)$/.test(name),
)
if (unwanted.length > 0) throw new Error(`the package holds ${unwanted.join(', ')}`)

const node = (file) => path.join(root, 'node_modules', ...file.split('/'))
// node10 knows no "exports", and no Node that this package supports resolves that way.
output(root, process.execPath, [
  node('@arethetypeswrong/cli/dist/index.js'),
  main.file,
  '--profile',
  'node16',
  '--no-emoji',
])
console.log('types resolve from ESM, CommonJS and bundlers')
console.log(output(root, process.execPath, [node('publint/src/cli.js'), main.file, '--strict']).trim())

/** The PATH without the folders that hold Rust's tools. */
const withoutRust = process.env.PATH.split(path.delimiter).filter((folder) => !existsSync(path.join(folder, 'cargo')))
const env = { ...process.env, PATH: withoutRust.join(path.delimiter), NAPI_RS_ENFORCE_VERSION_CHECK: '1' }
const folder = mkdtempSync(path.join(tmpdir(), 'tinyllm-pack-'))
try {
  writeFileSync(path.join(folder, 'package.json'), '{ "private": true }')
  const quiet = ['--no-audit', '--no-fund', '--loglevel=error']
  output(folder, 'npm', ['install', '--ignore-scripts', ...quiet, main.file, native.file], env)

  // What must be a function, by entry.
  const entries = {
    'tinyllm-engine': ['load', 'regex', 'choice', 'jsonSchema', 'TinyLlmError'],
    'tinyllm-engine/routing': [],
    'tinyllm-engine/server': ['createServer'],
  }
  const check = (from, module) =>
    `if (Object.keys(${module}).length === 0) throw new Error('${from} exports nothing')
for (const name of ${JSON.stringify(entries[from])}) if (typeof ${module}[name] !== 'function') throw new Error('no ' + name)
`
  const modules = Object.keys(entries).map((from) => [from, from === 'tinyllm-engine' ? 'main' : path.basename(from)])
  const esm = modules.map(([from, name]) => `import * as ${name} from '${from}'\n${check(from, name)}`).join('')
  const cjs = modules.map(([from, name]) => `const ${name} = require('${from}')\n${check(from, name)}`).join('')
  // Each format has its own classes; the brand makes an error of one an error of the other.
  const both = `${cjs}import('tinyllm-engine').then((other) => {
  const error = new other.InvalidRequestError('x')
  if (!(error instanceof main.TinyLlmError) || !main.TinyLlmError.is(error)) throw new Error('errors are not shared')
})\n`
  for (const [name, source] of Object.entries({ 'esm.mjs': esm, 'cjs.cjs': cjs, 'both.cjs': both })) {
    writeFileSync(path.join(folder, name), source)
    output(folder, process.execPath, [name], env)
    console.log(`${name.split('.')[0]} imports work`)
  }

  const tinyllm = (...args) => output(folder, 'npx', ['--no-install', 'tinyllm', ...args], env).trim()
  if (tinyllm('--version') !== version) throw new Error('npx tinyllm --version says something else')
  console.log(`npx tinyllm --version: ${version}`)
  const [model] = JSON.parse(tinyllm('models', '--json'))
  if (model.cached) {
    const answer = tinyllm('generate', 'Is the sky blue? Answer yes or no.', '--regex', '(yes|no)', '--offline')
    if (!/^(yes|no)$/.test(answer)) throw new Error(`the installed package answers ${JSON.stringify(answer)}`)
    console.log(`npx tinyllm generate --regex "(yes|no)": ${answer}`)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}
