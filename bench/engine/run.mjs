/**
 * `npm run bench:engine`: what the engine itself costs per token (scheduler, masks, sampler, text, border, façade),
 * with a forward pass that costs nothing; what memory grows by over thousands of short requests; and how long the event
 * loop is kept waiting while the real model generates. RESULTS.md has the numbers of the day.
 *
 * Builds an addon with the feature `free-forward` beside the ordinary one and runs each measurement in a process of its
 * own. `--json` prints the numbers alone; `--model PATH` names the file (default: the default model of the cache).
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { cpus } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

const root = path.join(import.meta.dirname ?? path.dirname(fileURLToPath(import.meta.url)), '..', '..')
const { values } = parseArgs({ options: { json: { type: 'boolean' }, model: { type: 'string' } } })
const model = values.model ?? 'smollm2-135m-instruct'
const out = path.join(root, 'target', 'bench-engine')

const napi = path.join(root, 'node_modules', '@napi-rs', 'cli', 'dist', 'cli.js')
const build = ['build', '--release', '--manifest-path', 'crates/node/Cargo.toml', '-p', 'tinyllm-node']
const quiet = { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] }
execFileSync(process.execPath, [napi, ...build, '--output-dir', out, '--features', 'free-forward'], quiet)
if (!existsSync(path.join(root, 'dist', 'index.mjs'))) execFileSync('npx', ['tsdown'], quiet)

function measure(script, env = {}) {
  const file = path.join(root, 'bench', 'engine', script)
  const { stdout, status } = spawnSync(process.execPath, ['--expose-gc', file, model], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  })
  if (status !== 0) process.exit(status ?? 1)
  return JSON.parse(stdout)
}

const free = { NAPI_RS_NATIVE_LIBRARY_PATH: path.join(out, 'tinyllm.node') }
const results = {
  cpu: cpus()[0]?.model ?? 'unknown',
  cost: measure('cost.mjs', free),
  memory: measure('memory.mjs', free),
  eventLoop: measure('event_loop.mjs'),
}

if (values.json) {
  console.log(JSON.stringify(results))
} else {
  console.log(`The engine's own cost per token, on ${results.cpu}\n`)
  console.log(
    '| sequences | request | µs per token | CPU µs per token | CPU µs, every token alone |\n|---|---|---|---|---|',
  )
  for (const { sequences, request, us, cpuUs, alone } of results.cost) {
    console.log(`| ${sequences} | ${request} | ${us.toFixed(1)} | ${cpuUs.toFixed(1)} | ${alone.toFixed(1)} |`)
  }
  const { requests, rounds, perRequest } = results.memory
  const mib = rounds.map((bytes) => (bytes / 2 ** 20).toFixed(0)).join(', ')
  console.log(`\nMemory over ${requests} short requests, MiB: ${mib}; ${perRequest.toFixed(0)} bytes per request`)
  const { idle, busy } = results.eventLoop
  console.log('\n| event loop delay, ms | median | p99 | max |\n|---|---|---|---|')
  for (const [name, { p50, p99, max }] of Object.entries({ idle, generating: busy })) {
    console.log(`| ${name} | ${p50.toFixed(2)} | ${p99.toFixed(2)} | ${max.toFixed(2)} |`)
  }
}
