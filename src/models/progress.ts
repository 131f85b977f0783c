/** What a pull tells about itself while it runs. */

/** Where a model file came from. */
export type ModelSource = 'path' | 'cache' | 'hub' | 'mirror'

/** One report of a pull. */
export interface PullProgress {
  /** The model's name. */
  readonly name: string
  readonly source: ModelSource
  /** `wait`: another process is pulling the same file. */
  readonly phase: 'wait' | 'download'
  /** Bytes so far, those of an earlier, resumed pull included. */
  readonly received: number
  /** Bytes of the whole file. */
  readonly total: number
}

/** Told the number of bytes done so far. */
export type ProgressReport = (done: number) => void
