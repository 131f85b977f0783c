/**
 * Tools of programs that use the engine directly: their types, and the calls that come back with typed arguments.
 */
import { jsonSchema, type GrammarDescription, type StandardSchema } from '../grammar.js'
import { InvalidRequestError } from '../errors.js'
import type { ToolCall } from '../tools/events.js'
import type { FromJsonSchema } from './json_schema_type.js'

/** Arguments' schema: a Standard Schema value (zod 4, …), a JSON Schema (`as const` for types), or its text. */
export type ToolParameters = StandardSchema | Readonly<Record<string, unknown>> | string

/** The type of the arguments that a schema describes. */
export type ArgumentsOf<P> =
  P extends StandardSchema<infer Output>
    ? Output
    : P extends string
      ? unknown
      : P extends Readonly<Record<string, unknown>>
        ? FromJsonSchema<P>
        : Record<string, never>

export interface ToolDefinition<
  Name extends string = string,
  P extends ToolParameters | undefined = ToolParameters | undefined,
> {
  /** 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`. */
  readonly name: Name
  /** What the model is told about it. */
  readonly description?: string
  /** Default: a function without parameters. */
  readonly parameters?: P
}

export interface ExecuteContext {
  /** The call's id. */
  readonly id: string
  readonly signal: AbortSignal
}

export interface RunnableTool<
  Name extends string = string,
  P extends ToolParameters | undefined = ToolParameters | undefined,
> extends ToolDefinition<Name, P> {
  /** Runs the function. A string is told to the model as it is, anything else as JSON. */
  // A method, so that tools of different arguments fit into one array.
  execute(args: ArgumentsOf<P>, context: ExecuteContext): unknown
}

/** Infers a tool's types: its name, and its arguments from its schema. */
export function tool<const Name extends string, const P extends ToolParameters | undefined = undefined>(
  definition: RunnableTool<Name, P>,
): RunnableTool<Name, P>
export function tool<const Name extends string, const P extends ToolParameters | undefined = undefined>(
  definition: ToolDefinition<Name, P>,
): ToolDefinition<Name, P>
export function tool(definition: ToolDefinition): ToolDefinition {
  return definition
}

/** A call of one of these tools, with the arguments its schema describes. */
export type TypedCall<T extends ToolDefinition> =
  T extends ToolDefinition<infer Name, infer P>
    ? {
        readonly id: string
        readonly name: Name
        readonly arguments: ArgumentsOf<P>
        /** The arguments as they were written. */
        readonly argumentsText: string
      }
    : never

/** The schema's JSON text. */
export function parametersText(parameters: ToolParameters): string {
  const { description } = parametersGrammar(parameters)
  return schemaText(description)
}

function parametersGrammar(parameters: ToolParameters) {
  return jsonSchema(parameters as Record<string, unknown>)
}

function schemaText(description: GrammarDescription): string {
  if (description.type !== 'schema') throw new InvalidRequestError('parameters must be a schema')
  return description.schema
}

/** A complete call with its arguments read, and validated where the schema can. */
export async function typedCall<T extends ToolDefinition>(call: ToolCall, tools: readonly T[]): Promise<TypedCall<T>> {
  const parameters = tools.find(({ name }) => name === call.name)?.parameters
  const read =
    parameters === undefined ? JSON.parse(call.arguments) : await parametersGrammar(parameters).parse?.(call.arguments)
  return { id: call.id, name: call.name, arguments: read, argumentsText: call.arguments } as TypedCall<T>
}
