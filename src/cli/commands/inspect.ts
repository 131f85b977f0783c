/** `tinyllm inspect FILE`: what a GGUF file says of itself. */
import type { Command } from 'commander'
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

export function addInspect(program: Command, terminal: Terminal): void {
  const command = program
    .command('inspect')
    .description('show the header of a GGUF file')
    .argument('<file>', 'a GGUF file, or a model in the cache')
    .option('--json', 'the whole header as JSON')
  addSourceOptions(command).action(
    async (name: string, options: { json?: boolean; offline?: boolean; manifest?: string }) => {
      const { path } = await locateModel(name, options, terminal)
      const [{ inspectGguf }, { stat }] = await Promise.all([import('../../native.js'), import('node:fs/promises')])
      const header = await inspectGguf(path)
      const text = options.json ? `${header}\n` : describe(path, (await stat(path)).size, JSON.parse(header) as Header)
      await write(terminal.stdout, text)
    },
  )
}
