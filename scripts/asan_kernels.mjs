/**
 * `node scripts/asan_kernels.mjs`: the kernels' tests under AddressSanitizer, which sees a read or write beyond a
 * buffer that no test would notice. Needs a nightly toolchain (`rustup toolchain install nightly`), on x86-64 Linux.
 */
import { spawnSync } from 'node:child_process'
import { hostTarget, root } from './setup.mjs'

const target = hostTarget()
const args = [
  '+nightly',
  'test',
  '--release',
  '-p',
  'tinyllm-kernels',
  '--lib',
  '--target',
  target,
  '--target-dir',
  'target/asan',
]
const { status } = spawnSync('cargo', args, {
  cwd: root,
  stdio: 'inherit',
  env: { ...process.env, RUSTFLAGS: '-Zsanitizer=address' },
})
process.exit(status ?? 1)
