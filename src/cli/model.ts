/** From the options of a command to a model's file or to a running engine. */
import type { Engine, LoadOptions } from '../engine.js'
import { pullModel, readManifest, type ResolvedModel, resolveModel, type ResolveOptions } from '../models/index.js'
import type { ModelOptions } from './options.js'
import { showPull } from './progress.js'
import type { Terminal } from './terminal.js'

type SourceOptions = Pick<ModelOptions, 'offline' | 'manifest'>

/** What `--offline` and `--manifest` mean to the model store. */
export async function sourceOptions({ offline, manifest }: SourceOptions): Promise<ResolveOptions> {
  return { offline, ...(manifest !== undefined && { manifest: await readManifest(manifest) }) }
}

/** Finds a model's file, pulling it where it must, with the pull shown. */
export async function locateModel(
  name: string,
  options: SourceOptions & { readonly verify?: boolean },
  terminal: Terminal,
): Promise<ResolvedModel> {
  const display = showPull(terminal)
  try {
    const resolve = options.verify ? pullModel : resolveModel
    const { signal } = terminal
    return await resolve(name, { ...(await sourceOptions(options)), onProgress: display.onProgress, signal })
  } finally {
    display.stop()
  }
}

/** Loads the model that the options name. */
export async function openEngine(
  options: ModelOptions,
  terminal: Terminal,
  more: Pick<LoadOptions, 'parallel'> = {},
): Promise<{ engine: Engine; name: string }> {
  const { path, name, source } = await locateModel(options.model, options, terminal)
  // Only now: pulling and listing models needs no addon.
  const { load } = await import('../engine.js')
  // By its name, by which the engine and so the API then know it; a name of --manifest means nothing to the engine.
  const engine = await load(source === 'path' || options.manifest !== undefined ? path : options.model, {
    ...more,
    ...(options.ctxSize !== undefined && { contextLength: options.ctxSize }),
    ...(options.threads !== undefined && { threads: options.threads }),
    ...(options.prefill !== undefined && { prefill: options.prefill }),
    signal: terminal.signal,
  })
  const { forward } = engine.info
  if (forward.startsWith('reference')) terminal.stderr.write(`${name} runs slowly, by the ${forward}\n`)
  return { engine, name }
}
