/**
 * Everything a clone needs before it can run: dependencies, the addon, the TypeScript build. Node built-ins only, since
 * it runs before node_modules exists. Each step is skipped when its inputs are those of its last run.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)))

/** Ends the process with a message for a person. */
function stop(message) {
  console.error(`\n${message}`)
  process.exit(1)
}

/** Runs a command in the repository, its output shown; true when it succeeded. */
export function run(command, args, options = {}) {
  // npm is a .cmd file on Windows, which only a shell can start.
  const shell = process.platform === 'win32' && (command === 'npm' || command === 'npx')
  return (
    spawnSync(command, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'], shell, ...options }).status === 0
  )
}

/** The version a tool prints, as numbers; undefined when there is no such tool. */
function versionOf(command) {
  const { status, stdout } = spawnSync(command, ['--version'], { encoding: 'utf8' })
  return status === 0 ? /(\d+)\.(\d+)/.exec(stdout)?.slice(1).map(Number) : undefined
}

const isAtLeast = ([major, minor], [wantedMajor, wantedMinor]) =>
  major > wantedMajor || (major === wantedMajor && minor >= wantedMinor)

function checkNode() {
  const wanted = /(\d+)\.(\d+)/.exec(readJson('package.json').engines.node).slice(1).map(Number)
  if (!isAtLeast(process.versions.node.split('.').map(Number), wanted))
    stop(
      `Node.js ${wanted.join('.')} or newer is needed; this is ${process.versions.node}. Get it from https://nodejs.org.`,
    )
}

function checkRust() {
  // Where rustup puts them, though this shell may be older than the installation.
  const bin = path.join(process.env.CARGO_HOME ?? path.join(homedir(), '.cargo'), 'bin')
  if (existsSync(bin)) process.env.PATH = `${process.env.PATH}${path.delimiter}${bin}`
  const wanted = /^rust-version = "(\d+)\.(\d+)/m.exec(readText('Cargo.toml')).slice(1).map(Number)
  const how = 'Install Rust from https://rustup.rs, open a new terminal and run the same command again.'
  for (const tool of ['cargo', 'rustc']) {
    const version = versionOf(tool)
    if (!version) stop(`Rust is missing: the addon is built from source, and there is no ${tool} here.\n${how}`)
    if (!isAtLeast(version, wanted))
      stop(`Rust ${wanted.join('.')} or newer is needed; ${tool} is ${version.join('.')}. Run: rustup update stable`)
  }
  if (process.platform !== 'win32' && !versionOf('cc'))
    stop(
      'A linker is missing: Rust needs cc.\n' +
        (process.platform === 'darwin'
          ? 'Run: xcode-select --install'
          : 'Install your system’s C compiler (Debian and Ubuntu: apt-get install build-essential).'),
    )
}

/**
 * The triple of this machine. napi builds the addon with an explicit `--target`, which has a folder of its own in
 * target/; cargo commands that are to share what was compiled for it must name the target too.
 */
export function hostTarget() {
  return /^host: (.+)$/m.exec(spawnSync('rustc', ['-vV'], { encoding: 'utf8' }).stdout)[1]
}

const readText = (file) => readFileSync(path.join(root, file), 'utf8')
const readJson = (file) => JSON.parse(readText(file))

/** Whether node_modules holds what the lock file says; npm keeps its own record of what it installed. */
function isInstalled() {
  const record = 'node_modules/.package-lock.json'
  if (!existsSync(path.join(root, record))) return false
  const installed = readJson(record).packages
  return Object.entries(readJson('package-lock.json').packages).every(
    ([name, { version, optional }]) =>
      name === '' || installed[name]?.version === version || (optional && !installed[name]),
  )
}

/** A hash of files' names and bytes, folders included whole. */
function hashInputs(inputs, extra = '') {
  const hash = createHash('sha256').update(extra)
  const add = (file) => {
    const full = path.join(root, file)
    const entries = existsSync(full) ? readdirSync(full, { withFileTypes: true, recursive: true }) : []
    const files = entries
      .filter((entry) => entry.isFile())
      .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name))
    for (const name of files.sort()) hash.update(path.relative(root, name)).update('\0').update(readFileSync(name))
  }
  for (const input of inputs) {
    if (path.extname(input))
      hash
        .update(input)
        .update('\0')
        .update(existsSync(path.join(root, input)) ? readText(input) : '')
    else add(input)
  }
  return hash.digest('hex')
}

/** Runs a build step unless it was run on the same inputs and its products are there. */
function step(name, title, inputs, isBuilt, extra) {
  // In target/, so that removing the build products removes the stamps.
  const stamp = path.join(root, 'target', 'setup', name)
  const inputsHash = () => hashInputs(inputs, extra)
  if (isBuilt() && existsSync(stamp) && readFileSync(stamp, 'utf8') === inputsHash()) return
  console.log(`▸ ${title}`)
  if (!run('npm', ['run', '--silent', name])) stop(`"npm run ${name}" failed; its output above says why.`)
  mkdirSync(path.dirname(stamp), { recursive: true })
  // Hashed after the step: it may have written some of its inputs anew, as the addon's build does with the lock file.
  writeFileSync(stamp, inputsHash())
}

/** Checks the tools, installs the dependencies and builds what is not built. */
export function setUp() {
  checkNode()
  checkRust()
  if (!isInstalled()) {
    console.log('▸ Installing dependencies')
    if (!run('npm', ['ci', '--include=dev', '--no-audit', '--no-fund']))
      stop('"npm ci" failed; its output above says why.')
  }
  const rust = spawnSync('rustc', ['-V'], { encoding: 'utf8' }).stdout
  const hasAddon = () => readdirSync(root).some((name) => /^tinyllm\..+\.node$/.test(name))
  step(
    'build:native',
    'Building the addon (a few minutes the first time)',
    ['Cargo.toml', 'Cargo.lock', 'crates', 'binding.js', 'binding.d.ts'],
    hasAddon,
    rust + process.arch,
  )
  const hasDist = () => existsSync(path.join(root, 'dist', 'cli', 'index.cjs'))
  const sources = ['src', 'binding.d.ts', 'tsdown.config.ts', 'tsconfig.json', 'package.json', 'package-lock.json']
  step('build:ts', 'Building the TypeScript', sources, hasDist)
}
