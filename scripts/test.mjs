/**
 * `npm test`: sets everything up, pulls the models the tests use, runs the Rust and the TypeScript tests and ends with
 * the sum of both, as `N passed, N failed`. Arguments go to jest, and then only jest runs (`npm test -- __test__/cli`).
 */
import { spawn, spawnSync } from 'node:child_process'
import { readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { hostTarget, root, run, setUp } from './setup.mjs'

const jestArguments = process.argv.slice(2)

setUp()

/** The models of the tests. The second comes from a manifest of its own: its mirror is for tests only. */
const models = {
  TINYLLM_TEST_SMOLLM2: ['smollm2-135m-instruct'],
  TINYLLM_TEST_QWEN: ['qwen2.5-coder-0.5b-instruct', '--manifest', path.join(root, 'fixtures', 'models.json')],
}
console.log('▸ Getting the models')
const env = { ...process.env }
for (const [variable, args] of Object.entries(models)) {
  const pull = [path.join(root, 'bin', 'tinyllm.js'), 'pull', ...args]
  const { status, stdout } = spawnSync(process.execPath, pull, {
    stdio: ['ignore', 'pipe', 'inherit'],
    encoding: 'utf8',
  })
  if (status !== 0) process.exit(1)
  env[variable] = stdout.trim().split('\n').at(-1)
}

/** Runs `cargo test` and counts what its test binaries report. */
function testRust() {
  return new Promise((resolve) => {
    const color = process.stdout.isTTY ? 'always' : 'never'
    const args = ['test', '--release', '--workspace', '--target', hostTarget(), '--no-fail-fast', '--color', color]
    const child = spawn('cargo', args, { cwd: root, env, stdio: ['ignore', 'pipe', 'inherit'] })
    let output = ''
    child.stdout.on('data', (chunk) => {
      process.stdout.write(chunk)
      output += chunk
    })
    child.on('error', () => resolve({ passed: 0, failed: 1 }))
    child.on('close', (code) => {
      const counts = { passed: 0, failed: 0 }
      for (const [, passed, failed] of output.matchAll(/test result: \S+ (\d+) passed; (\d+) failed/g)) {
        counts.passed += Number(passed)
        counts.failed += Number(failed)
      }
      // What did not compile, or crashed before it could count, has failed too.
      if (code !== 0 && counts.failed === 0) counts.failed = 1
      resolve(counts)
    })
  })
}

/** Runs jest and reads its own count. */
function testTypeScript() {
  const report = path.join(root, 'target', 'setup', 'jest.json')
  rmSync(report, { force: true })
  const jest = path.join(root, 'node_modules', 'jest', 'bin', 'jest.js')
  const ok = run(process.execPath, [jest, '--json', '--outputFile', report, ...jestArguments], {
    env,
    // The report goes to its file; --json would print it once more.
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  try {
    const { numPassedTests, numFailedTests, numRuntimeErrorTestSuites } = JSON.parse(readFileSync(report, 'utf8'))
    const failed = numFailedTests + numRuntimeErrorTestSuites
    return { passed: numPassedTests, failed: failed === 0 && !ok ? 1 : failed }
  } catch {
    return { passed: 0, failed: 1 }
  }
}

const counts = []
if (jestArguments.length === 0) {
  console.log('▸ Testing the Rust crates')
  counts.push({ title: 'Rust', ...(await testRust()) })
}
console.log('▸ Testing the package')
counts.push({ title: 'TypeScript', ...testTypeScript() })

console.log()
for (const { title, passed, failed } of counts) console.log(`${title}: ${passed} tests passed, ${failed} failed`)
const sum = (key) => counts.reduce((total, count) => total + count[key], 0)
console.log(`${sum('passed')} passed, ${sum('failed')} failed`)
process.exit(sum('failed') === 0 ? 0 : 1)
