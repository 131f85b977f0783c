/** The engine of this process as a backend. */
import type { Engine, ChatMessage } from '../engine.js'
import { grammar } from '../grammar.js'
import { chat } from '../chat/index.js'
import {
  BackendSettings,
  type Backend,
  type Completion,
  type CompletionRequest,
  type SettingsValues,
} from './backend.js'
import { compilable } from './grammar.js'
import type { RouteSchema } from './schema.js'

/** Options of `engineBackend`. */
export interface EngineBackendOptions {
  settings?: SettingsValues
  /** Type: characters. Default: none. Bounds every string a schema leaves unbounded. */
  maxStringLength?: number
}

/** Makes a backend out of a loaded engine. The engine stays the caller's to close. */
export function engineBackend(engine: Engine, options: EngineBackendOptions = {}): Backend {
  return new EngineBackend(engine, options, new BackendSettings(options.settings))
}

class EngineBackend implements Backend {
  readonly settings: BackendSettings
  readonly #engine: Engine
  readonly #options: EngineBackendOptions

  constructor(engine: Engine, options: EngineBackendOptions, settings: BackendSettings) {
    this.#engine = engine
    this.#options = options
    this.settings = settings
  }

  clone(changes: { settings?: BackendSettings } = {}): Backend {
    return new EngineBackend(this.#engine, this.#options, changes.settings ?? this.settings)
  }

  async complete(request: CompletionRequest): Promise<Completion> {
    throw new Error('unreachable')
  }
}
