/** A terminal in memory. */
import { PassThrough, Readable, Writable } from 'node:stream'
import { runCli } from '../../src/cli/program.js'
import type { Terminal } from '../../src/cli/terminal.js'

export interface Ran {
  readonly code: number
  readonly out: string
  readonly err: string
}

export interface FakeTerminal extends Terminal {
  readonly stdin: PassThrough & { isTTY?: boolean }
  written(): { out: string; err: string }
  /** Resolves as soon as standard output holds `text`. */
  saw(text: string | RegExp): Promise<void>
  interrupt(): void
}

export function fakeTerminal({ isTTY = false }: { isTTY?: boolean } = {}): FakeTerminal {
  const text = { out: '', err: '' }
  const waiting = new Set<() => void>()
  const sink = (key: 'out' | 'err'): Writable & { isTTY?: boolean } =>
    Object.assign(
      new Writable({
        write(chunk: Buffer, _encoding, done) {
          text[key] += chunk.toString()
          for (const look of [...waiting]) look()
          done()
        },
      }),
      { isTTY },
    )
  const stop = new AbortController()
  return {
    stdin: Object.assign(new PassThrough(), { isTTY }),
    stdout: sink('out'),
    stderr: sink('err'),
    signal: stop.signal,
    written: () => ({ ...text }),
    saw: (wanted) =>
      new Promise((resolve) => {
        const look = (): void => {
          if (typeof wanted === 'string' ? !text.out.includes(wanted) : !wanted.test(text.out)) return
          waiting.delete(look)
          resolve()
        }
        waiting.add(look)
        look()
      }),
    interrupt: () => stop.abort(),
  }
}

/** Runs one command line to its end. */
export async function run(args: readonly string[], input?: string): Promise<Ran> {
  const terminal = fakeTerminal()
  if (input !== undefined) Readable.from([input]).pipe(terminal.stdin)
  const code = await runCli(args, terminal)
  return { code, ...terminal.written() }
}
