/** `tinyllm models`: the models with names, and what is in the cache. */
import type { Command } from 'commander'
import { DEFAULT_MODEL, listModels } from '../../models/index.js'
import { sourceOptions } from '../model.js'
import { formatBytes, formatTable, type Terminal, write } from '../terminal.js'

interface ModelsOptions {
  readonly json?: boolean
  readonly manifest?: string
}

export function addModels(program: Command, terminal: Terminal): void {
  program
    .command('models')
    .description('list the models with names and those in the cache')
    .option('--json', 'as JSON')
    .option('--manifest <file>', 'more models with names, a JSON file')
    .action(async ({ json, manifest }: ModelsOptions) => {
      const models = await listModels(await sourceOptions({ ...(manifest !== undefined && { manifest }) }))
      const rows = models.map(({ name, size, cached, license, description }) => [
        name === DEFAULT_MODEL ? `${name} (default)` : name,
        formatBytes(size),
        cached ? 'cached' : '-',
        license ?? '-',
        description ?? '',
      ])
      const text = json
        ? `${JSON.stringify(models, undefined, 2)}\n`
        : formatTable([['NAME', 'SIZE', 'STATE', 'LICENSE', ''], ...rows])
      await write(terminal.stdout, text)
    })
}
