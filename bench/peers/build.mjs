// Builds llama_peer against the prebuilt libraries that the npm package node-llama-cpp installs; the headers come from
// the source bundle in the same package. Needs git and g++.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import path from 'node:path'

const here = path.dirname(fileURLToPath(import.meta.url))
const sh = (command, args, options = {}) => execFileSync(command, args, { cwd: here, stdio: 'inherit', ...options })

/** Makes the program if it is not there yet, and says where it and its libraries are. */
export function buildPeer() {
  const platform = `${process.platform === 'win32' ? 'win' : process.platform === 'darwin' ? 'mac' : 'linux'}-${process.arch}`
  if (!existsSync(path.join(here, 'node_modules/node-llama-cpp'))) sh('npm', ['ci'])
  const bins = path.join(here, 'node_modules/@node-llama-cpp', platform, 'bins', platform)
  if (!existsSync(bins)) throw new Error(`node-llama-cpp has no prebuilt libraries for ${platform}`)
  const program = path.join(here, 'build/llama_peer')
  if (!existsSync(program)) {
    const source = path.join(here, 'build/llama.cpp')
    rmSync(path.join(here, 'build'), { recursive: true, force: true })
    sh('git', [
      '-c',
      'init.defaultBranch=main',
      '-c',
      'advice.detachedHead=false',
      'clone',
      '--quiet',
      'node_modules/node-llama-cpp/llama/gitRelease.bundle',
      source,
    ])
    const libraries = readdirSync(bins).filter((name) =>
      /^lib(llama|ggml|ggml-base)(\.v[\d.]+)?\.(so|dylib)$/.test(name),
    )
    sh('g++', [
      ...['-O2', '-std=c++17', '-o', program, 'llama_peer.cpp'],
      ...['-I', path.join(source, 'include'), '-I', path.join(source, 'ggml/include')],
      ...libraries.map((name) => path.join(bins, name)),
      ...[`-Wl,-rpath,${bins}`],
    ])
  }
  return { program, bins }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(buildPeer())
