/** Engines over the tiny random model. */
import { load, type Engine, type LoadOptions } from '../../src/index.js'
import { tinyModel } from '../e2e/tiny_model.js'

let path: string | undefined

export function tinyPath(): string {
  path ??= tinyModel()
  return path
}

export function loadTiny(options: LoadOptions = {}): Promise<Engine> {
  return load(tinyPath(), options)
}
