/**
 * What the loop asks of a model, wherever it runs.
 *
 * A backend is a value: its settings say how a request is made, and a request with other settings is made by a clone. So
 * a structured phase built from the same backend keeps its own schema and its own budget.
 */
import { isRecord, type JsonSchema, type RouteTool } from './catalogue.js'
import type { RouteSchema } from './schema.js'

/** The name a route schema goes by in `response_format`. */
export const ROUTE_SCHEMA_NAME = 'tool_route'

/** A turn of the conversation, in the shape chat APIs take. */
export type AgentMessage =
  | { role: 'system' | 'user'; content: string }
  | { role: 'assistant'; content: string | null; tool_calls?: AgentToolCall[] }
  | { role: 'tool'; content: string; tool_call_id: string }

/** A call as an assistant turn carries it; `arguments` is JSON text. */
export interface AgentToolCall {
  id: string
  type: 'function'
  function: { name: string; arguments: string }
}

/** How a backend makes its requests. */
export interface SettingsValues {
  /** The schema every reply has to satisfy. */
  jsonSchema?: RouteSchema | JsonSchema | undefined
  /** The schema's name on the wire. */
  jsonSchemaName?: string | undefined
  /** The most tokens a reply may have, its end token included. */
  maxTokens?: number | undefined
  /** 0 is greedy. */
  temperature?: number | undefined
}

/** Settings as an immutable value. */
export class BackendSettings implements SettingsValues {
  readonly jsonSchema: RouteSchema | JsonSchema | undefined
  readonly jsonSchemaName: string | undefined
  readonly maxTokens: number | undefined
  readonly temperature: number | undefined

  constructor(values: SettingsValues = {}) {
    this.jsonSchema = values.jsonSchema
    this.jsonSchemaName = values.jsonSchemaName
    this.maxTokens = values.maxTokens
    this.temperature = values.temperature
  }

  /** The same settings with some of them changed. */
  clone(changes: SettingsValues = {}): BackendSettings {
    return new BackendSettings({ ...this, ...changes })
  }
}

/** One request for one reply. */
export interface CompletionRequest {
  messages: readonly AgentMessage[]
  /** Tools for the backend's own tool calling; absent when the settings carry a schema. */
  tools?: readonly RouteTool[]
  seed?: number
  /** Overrides the settings' temperature. */
  temperature?: number
  signal?: AbortSignal
  /** Called with each piece of the reply's text as it arrives. */
  onText?: (piece: string) => void
}

/** One reply. */
export interface Completion {
  text: string
  toolCalls: AgentToolCall[]
  /** The reply ended because its budget did, not because the model was done. */
  cut: boolean
  usage?: { promptTokens: number; completionTokens: number }
}

/** Something that answers chat requests. */
export interface Backend {
  readonly settings: BackendSettings
  clone(changes?: { settings?: BackendSettings }): Backend
  complete(request: CompletionRequest): Promise<Completion>
}

/** The parts of a backend that routing needs, for backends of a host's own. */
export interface RoutableBackend<Self = unknown> {
  readonly settings: SettingsValues & { clone(changes: SettingsValues): unknown }
  clone(changes: { settings: never }): Self
}

/**
 * A clone of a backend that carries a route schema (under the name `tool_route`) and a completion cap. The original and
 * its settings are untouched.
 */
export function routedBackend<B extends RoutableBackend<B>>(
  backend: B,
  schema: RouteSchema | JsonSchema,
  maxTokens: number,
): B {
  const settings = backend.settings.clone({ jsonSchema: schema, jsonSchemaName: ROUTE_SCHEMA_NAME, maxTokens })
  return backend.clone({ settings: settings as never })
}

/**
 * The cap of a routing request: `max`, or the backend's own budget where that is lower. A routing cap only ever lowers a
 * budget.
 */
export function routingCap(
  backend: { readonly settings: { readonly maxTokens?: number | null | undefined } },
  max: number,
): number {
  const own = backend.settings.maxTokens
  return own === undefined || own === null ? max : Math.min(own, max)
}

/**
 * Whether routing works on a value: it has `settings` with `jsonSchema`, `jsonSchemaName`, `maxTokens` and `clone`, and a
 * `clone` of its own.
 */
export function canRoute(backend: unknown): boolean {
  if (!isRecord(backend) || typeof backend.clone !== 'function') return false
  const settings = backend.settings
  return (
    isRecord(settings) &&
    'jsonSchema' in settings &&
    'jsonSchemaName' in settings &&
    'maxTokens' in settings &&
    typeof settings.clone === 'function'
  )
}
