/** The tiny random model: its file is written by a binary of crates/testkit. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

const root = join(__dirname, '..', '..')

/** Writes the model's file and returns its path. The same seed gives the same bytes. */
export function tinyModel(seed = 1): string {
  const path = join(root, 'target', `tiny-random-${seed}.gguf`)
  // The tests in Rust are built for the target by name; naming it here too finds what they compiled.
  const [, target = ''] = /^host: (.+)$/m.exec(execFileSync('rustc', ['-vV'], { encoding: 'utf8' })) ?? []
  const cargo = ['run', '--release', '--quiet', '--target', target, '-p', 'tinyllm-testkit', '--bin', 'tiny-model']
  execFileSync('cargo', [...cargo, '--', path, '--seed', String(seed)], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  return path
}
