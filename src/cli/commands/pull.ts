/** `tinyllm pull`: a model into the cache; its path on standard output. */
import type { Command } from 'commander'
import { DEFAULT_MODEL } from '../../models/index.js'
import { locateModel } from '../model.js'
import { addSourceOptions } from '../options.js'
import { type Terminal, write } from '../terminal.js'

export function addPull(program: Command, terminal: Terminal): void {
  const command = program
    .command('pull')
    .description('put a model into the cache (or verify the one there) and print its path')
    .argument('[model]', 'a name, or hf:owner/repo[:quant]', DEFAULT_MODEL)
  addSourceOptions(command).action(async (name: string, options: { offline?: boolean; manifest?: string }) => {
    const { path } = await locateModel(name, { ...options, verify: true }, terminal)
    await write(terminal.stdout, `${path}\n`)
  })
}
