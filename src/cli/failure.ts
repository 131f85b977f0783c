/** How a command fails: one line that says what was wrong, and an exit code. */
import { TinyLlmError } from '../errors.js'

/** Exit codes: a failure, a wrong command line, an interruption (128 + SIGINT). */
export const EXIT = { ok: 0, failure: 1, usage: 2, interrupted: 130 } as const

/** The line for an error that reached the top. With DEBUG set, the stack as well. */
export function describeFailure(error: unknown, debug: boolean = Boolean(process.env.DEBUG)): string {
  if (debug && error instanceof Error) return `${error.stack ?? error.message}\n`
  const message = error instanceof Error ? error.message : String(error)
  const at = TinyLlmError.is(error) ? where(error) : ''
  return `tinyllm: ${message.replaceAll(/\s*\n\s*/g, ' ')}${at}\n`
}

function where({ message, details }: TinyLlmError): string {
  const { position, pointer } = details
  if (pointer !== undefined && !message.includes(pointer)) return ` (at ${pointer || 'the root'})`
  if (position !== undefined && !message.includes(String(position))) return ` (at ${position})`
  return ''
}
