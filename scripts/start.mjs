/** `npm start`: sets everything up, then serves; arguments go to `tinyllm serve` (`npm start -- --port 9000`). */
import { createRequire } from 'node:module'
import path from 'node:path'
import { root, setUp } from './setup.mjs'

const parent = process.ppid
setUp()

// `npm start` runs this in a shell. A SIGTERM sent to npm ends that shell, which tells nobody: its end is the signal.
if (process.env.npm_lifecycle_event) {
  const watch = setInterval(() => {
    if (process.ppid === parent) return
    clearInterval(watch)
    process.kill(process.pid, 'SIGTERM')
  }, 250)
  watch.unref()
}

// In this process, so that a signal sent to it reaches the server.
const launcher = path.join(root, 'bin', 'tinyllm.js')
process.argv.splice(1, 1, launcher, 'serve')
createRequire(import.meta.url)(launcher)
