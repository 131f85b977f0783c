/** Shows a pull on a terminal as a bar, elsewhere (logs, CI) as a line at its start and one at its end. */
import { SingleBar } from 'cli-progress'
import type { PullProgress } from '../models/index.js'
import { formatBytes, type Terminal } from './terminal.js'

const sources = { path: 'a file', cache: 'the cache', hub: 'the hub', mirror: 'the package mirror' } as const

export interface PullDisplay {
  readonly onProgress: (progress: PullProgress) => void
  /** Takes the bar away; to be called however the pull ends. */
  readonly stop: () => void
}

export function showPull({ stderr }: Terminal): PullDisplay {
  const isLive = stderr.isTTY === true && !process.env.CI
  let announced: string | undefined
  let bar: SingleBar | undefined

  const onProgress = ({ name, source, phase, received, total }: PullProgress): void => {
    const title = phase === 'wait' ? 'wait' : source
    if (announced !== title) {
      // A source that failed is followed by another: its bar starts anew.
      bar?.stop()
      bar = undefined
      announced = title
      stderr.write(
        phase === 'wait'
          ? `another process is pulling ${name}; waiting for it\n`
          : `pulling ${name} (${formatBytes(total)}) from ${sources[source]}\n`,
      )
      if (isLive && phase === 'download') {
        bar = new SingleBar({
          format: '{bar} {percentage}% {received} of {size}, {eta_formatted} left',
          stream: stderr as NodeJS.WriteStream,
          hideCursor: true,
          barsize: 30,
        })
        bar.start(total, received, { received: formatBytes(received), size: formatBytes(total) })
      }
    }
    bar?.update(received, { received: formatBytes(received) })
    if (phase === 'download' && received === total && !bar) stderr.write(`pulled ${name}\n`)
  }
  return { onProgress, stop: () => bar?.stop() }
}
