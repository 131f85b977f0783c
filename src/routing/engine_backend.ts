/** The engine of this process as a backend. */
import { streamChat, type Message } from '../chat/index.js'
import type { ChatMessage, Engine } from '../engine.js'
import { jsonSchema } from '../grammar.js'
import {
  BackendSettings,
  type AgentToolCall,
  type Backend,
  type Completion,
  type CompletionRequest,
  type SettingsValues,
} from './backend.js'
import type { JsonSchema } from './catalogue.js'
import { compilable } from './grammar.js'

/** Options of `engineBackend`. */
export interface EngineBackendOptions {
  settings?: SettingsValues
  /**
   * Type: characters. Default: none. Bounds every string that a schema leaves unbounded, so that one rambling argument
   * cannot use up the budget of a whole action.
   */
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
    return this.settings.jsonSchema === undefined ? await this.#chat(request) : await this.#constrained(request)
  }

  #sampling(request: CompletionRequest) {
    const { maxTokens } = this.settings
    const temperature = request.temperature ?? this.settings.temperature
    return {
      ...(maxTokens === undefined ? {} : { maxTokens }),
      ...(temperature === undefined ? {} : { temperature }),
      ...(request.seed === undefined ? {} : { seed: request.seed }),
      ...(request.signal === undefined ? {} : { signal: request.signal }),
    }
  }

  async #constrained(request: CompletionRequest): Promise<Completion> {
    const { maxStringLength } = this.#options
    const schema = compilable((this.settings.jsonSchema ?? {}) as JsonSchema)
    const generation = this.#engine.stream({
      ...this.#sampling(request),
      messages: request.messages as readonly ChatMessage[],
      grammar: jsonSchema(schema, maxStringLength === undefined ? {} : { maxStringLength }),
    })
    for await (const { text } of generation) if (text !== '') request.onText?.(text)
    const { text, finishReason, usage } = await generation.final()
    return { text, toolCalls: [], cut: finishReason === 'length', usage }
  }

  async #chat(request: CompletionRequest): Promise<Completion> {
    const stream = streamChat(this.#engine, {
      ...this.#sampling(request),
      messages: request.messages as readonly Message[],
      tools: (request.tools ?? []).map(({ function: { name, description, parameters } }) => ({
        name,
        ...(typeof description === 'string' ? { description } : {}),
        ...(parameters === undefined || parameters === null ? {} : { parameters }),
      })),
    })
    for await (const event of stream) if (event.type === 'content') request.onText?.(event.text)
    const { content, message, cutCall, finishReason, usage } = await stream.final()
    // A call that was cut cannot be made; what is left of it must not look like one.
    const calls = (message.tool_calls ?? []).filter(({ id }) => id !== cutCall?.id)
    return {
      text: content ?? '',
      toolCalls: calls.map(({ id, function: { name, arguments: args } }): AgentToolCall => {
        return { id, type: 'function', function: { name, arguments: args } }
      }),
      cut: finishReason === 'length',
      usage,
    }
  }
}
