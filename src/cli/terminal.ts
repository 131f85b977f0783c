/** What the commands read from and write to; tests hand in streams of their own. */
import type { Readable, Writable } from 'node:stream'

export interface Terminal {
  readonly stdin: Readable & { isTTY?: boolean }
  readonly stdout: Writable & { isTTY?: boolean; columns?: number }
  readonly stderr: Writable & { isTTY?: boolean; columns?: number }
  /** Aborted by Ctrl-C and by SIGTERM. */
  readonly signal: AbortSignal
}

/** Writes and waits until there is room again, so that a slow reader slows the writer down. */
export function write(stream: Writable, text: string): Promise<void> {
  return new Promise((resolve) => {
    if (stream.write(text)) resolve()
    else stream.once('drain', resolve)
  })
}

/** Everything on standard input, as text. */
export async function readAll(stream: Readable): Promise<string> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(Buffer.from(chunk as Buffer | string))
  return Buffer.concat(chunks).toString('utf8')
}

/** Bytes as a person reads them: `93.8 MiB`. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let value = bytes
  let unit = 0
  for (; value >= 1024 && unit < units.length - 1; unit += 1) value /= 1024
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`
}

/** Rows as text, each column as wide as its widest cell. */
export function formatTable(rows: readonly (readonly string[])[]): string {
  const widths: number[] = []
  for (const row of rows) row.forEach((cell, i) => (widths[i] = Math.max(widths[i] ?? 0, cell.length)))
  const lines = rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join('  ')
      .trimEnd(),
  )
  return lines.map((line) => `${line}\n`).join('')
}
