/** Names of models, and how their files get here. */
export { cacheFolder } from './cache.js'
export { DEFAULT_MODEL, MANIFEST, type MirrorPart, type ModelEntry, readManifest } from './manifest.js'
export type { ModelSource, PullProgress } from './progress.js'
export {
  entryPath,
  type ListedModel,
  listModels,
  pullModel,
  type ResolvedModel,
  type ResolveOptions,
  resolveModel,
} from './resolve.js'
