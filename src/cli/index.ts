/** The entry of `bin/tinyllm.js`. */
import { runCli } from './program.js'
import { EXIT } from './failure.js'

const stop = new AbortController()
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    // The second time is meant: whatever is still being waited for, end now.
    if (stop.signal.aborted) process.exit(EXIT.interrupted)
    stop.abort()
  })
}
// `tinyllm models | head`: the reader has had enough.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(EXIT.ok)
  throw error
})

const { stdin, stdout, stderr } = process
void runCli(process.argv.slice(2), { stdin, stdout, stderr, signal: stop.signal }).then((code) => {
  process.exitCode = code
  // Standard input that was read from keeps the process alive when it is a terminal or a pipe.
  stdin.unref?.()
})
