/** The tiny random model: its file is written by a binary of crates/testkit. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

const root = join(__dirname, '..', '..')

/** Writes the model's file and returns its path. The same seed gives the same bytes. */
export function tinyModel(seed = 1): string {
  const path = join(root, 'target', `tiny-random-${seed}.gguf`)
  const args = [
    'run',
    '--release',
    '--quiet',
    '-p',
    'tinyllm-testkit',
    '--bin',
    'tiny-model',
    '--',
    path,
    '--seed',
    String(seed),
  ]
  execFileSync('cargo', args, { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] })
  return path
}
