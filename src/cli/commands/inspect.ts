/** `tinyllm inspect FILE`: what a GGUF file says of itself; `tinyllm inspect --cpu`: which kernels run here. */
import { stat } from 'node:fs/promises'
import type { Command } from 'commander'
import { InvalidRequestError } from '../../errors.js'
import { locateModel } from '../model.js'
import { addSourceOptions } from '../options.js'
import { formatBytes, formatTable, type Terminal, write } from '../terminal.js'

/** The header as `inspectGguf` gives it; arrays in the metadata are described there, not copied. */
interface Header {
  readonly version: number
  readonly metadata: Record<string, unknown>
  readonly tensors: readonly { readonly name: string; readonly type: string; readonly shape: readonly number[] }[]
}

/** Characters of a metadata value that are shown; chat templates are long. */
const SHOWN = 80

function shorten(value: unknown): string {
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value)
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}… (${text.length} characters)` : text
}

function describe(file: string, size: number, { version, metadata, tensors }: Header): string {
  const types = new Map<string, number>()
  for (const { type } of tensors) types.set(type, (types.get(type) ?? 0) + 1)
  const parameters = tensors.reduce((sum, { shape }) => sum + shape.reduce((product, n) => product * n, 1), 0)
  const summary = formatTable([
    ['file', file],
    ['size', formatBytes(size)],
    ['GGUF version', String(version)],
    ['tensors', `${tensors.length} (${[...types].map(([type, count]) => `${count} × ${type}`).join(', ')})`],
    ['parameters', `${(parameters / 1e6).toFixed(1)} million`],
  ])
  const rows = Object.entries(metadata).map(([key, value]) => [`  ${key}`, shorten(value)])
  const shapes = tensors.map(({ name, type, shape }) => [`  ${name}`, type, shape.join(' × ')])
  return `${summary}\nmetadata\n${formatTable(rows)}\ntensors\n${formatTable(shapes)}`
}

/** The report as `cpuReport` gives it. */
interface CpuReport {
  readonly tier: string
  /** Whether `TINYLLM_CPU` chose it. */
  readonly forced: boolean
  /** What keeps `prefill: 'fast'` from running with this tier, or null. */
  readonly fastPrefill: string | null
  readonly architecture: string
  /** In ascending order of preference: what keeps a tier from running on this CPU, or null. */
  readonly tiers: Readonly<Record<string, string | null>>
}

function describeCpu({ tier, forced, fastPrefill, architecture, tiers }: CpuReport): string {
  const why = forced ? 'asked for by TINYLLM_CPU' : 'the best that runs here'
  const rows = Object.entries(tiers).map(([name, lack]) => [
    `  ${name}`,
    lack === null ? 'runs here' : `not here: ${lack}`,
  ])
  return `${formatTable([
    ['kernels', `${tier} (${why})`],
    ['fast prefill', fastPrefill === null ? 'runs here' : `not here: ${fastPrefill}`],
    ['architecture', architecture],
  ])}\ntiers\n${formatTable(rows)}`
}

interface InspectOptions {
  readonly cpu?: boolean
  readonly json?: boolean
  readonly offline?: boolean
  readonly manifest?: string
}

export function addInspect(program: Command, terminal: Terminal): void {
  const command = program
    .command('inspect')
    .description('show the header of a GGUF file, or which kernels this CPU runs')
    .argument('[file]', 'a GGUF file, or a model with a name')
    .option('--cpu', 'which kernels run on this CPU, and why')
    .option('--json', 'the whole of it as JSON')
  addSourceOptions(command).action(async (name: string | undefined, options: InspectOptions) => {
    if ((name === undefined) !== (options.cpu ?? false))
      throw new InvalidRequestError('inspect takes a model file, or --cpu')
    const path = name === undefined ? undefined : (await locateModel(name, options, terminal)).path
    const native = await import('../../native.js')
    const json = path === undefined ? native.cpuReport() : await native.inspectGguf(path)
    let text = `${json}\n`
    if (!options.json) {
      const value: unknown = JSON.parse(json)
      text =
        path === undefined ? describeCpu(value as CpuReport) : describe(path, (await stat(path)).size, value as Header)
    }
    await write(terminal.stdout, text)
  })
}
