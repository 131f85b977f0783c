/** `npm start`: sets everything up, then serves; arguments go to `tinyllm serve` (`npm start -- --port 9000`). */
import { createRequire } from 'node:module'
import path from 'node:path'
import { root, setUp } from './setup.mjs'

setUp()

// In this process, so that a signal sent to it reaches the server.
const launcher = path.join(root, 'bin', 'tinyllm.js')
process.argv.splice(1, 1, launcher, 'serve')
createRequire(import.meta.url)(launcher)
