/**
 * Chats with tools in process: the steps of the server without the server. Messages are OpenAI's, so an answer's
 * `message` can be appended to the conversation as it is.
 */
import type { GenerateRequest, TokenLogprob, Usage } from '../engine.js'
import { GrammarError, InvalidRequestError } from '../errors.js'
import { jsonSchema, type StandardSchema } from '../grammar.js'
import { fullProfile } from '../openai/profile.js'
import { ToolError } from '../openai/tool_error.js'
import { newId } from '../openai/wire.js'
import { messageJson, type FinishReason, type ToolCall, type ToolEvent, type WireMessage } from '../tools/events.js'
import { parseToolRequest, type ToolRequest } from '../tools/request.js'
import { answerPieces, prepareChat, type Answer, type PreparedChat, type TextEngine } from './answer.js'
import { parametersText, typedCall, type ToolDefinition, type TypedCall } from './tools.js'

/** A message of a conversation, as OpenAI has it. */
export interface Message {
  readonly role: 'system' | 'developer' | 'user' | 'assistant' | 'tool'
  readonly content?: string | null | readonly { readonly type: 'text'; readonly text: string }[]
  readonly tool_calls?: WireMessage['tool_calls']
  readonly tool_call_id?: string
}

export type ChatToolChoice<Name extends string = string> =
  | 'auto'
  | 'none'
  | 'required'
  /** Exactly one call of this tool. */
  | { readonly name: Name }
  /** Only some of the tools, which the model is still told about. */
  | { readonly allowed: readonly Name[]; readonly mode: 'auto' | 'required' }

export type ChatResponseFormat =
  | 'text'
  /** Any JSON object, nested at most three levels. */
  | 'json'
  /** JSON under a schema, given as in `jsonSchema()`. */
  | { readonly schema: StandardSchema | Readonly<Record<string, unknown>> | string }

export interface ChatOptions<T extends ToolDefinition = ToolDefinition> extends Omit<
  GenerateRequest,
  'prompt' | 'messages' | 'grammar' | 'ignoreEos' | 'promptSpecial' | 'contextOverflow'
> {
  readonly messages: readonly Message[]
  /** Functions the model may call. */
  readonly tools?: readonly T[]
  /** Default: `auto` with tools, `none` without. */
  readonly toolChoice?: ChatToolChoice<T['name']>
  /** What an answer that is no call is. Default: `text`. */
  readonly responseFormat?: ChatResponseFormat
  /** Allow up to four calls in an answer. Default: true. */
  readonly parallelToolCalls?: boolean
}

export interface ChatResult<T extends ToolDefinition = ToolDefinition> {
  /** The text around the calls; null when there is none. */
  readonly content: string | null
  /** The complete calls. */
  readonly calls: readonly TypedCall<T>[]
  /** A last call whose arguments the token budget cut; it is not among `calls`. */
  readonly cutCall?: ToolCall
  /** The answer as a message of the conversation. */
  readonly message: WireMessage
  readonly finishReason: FinishReason
  readonly usage: Usage
  readonly logprobs?: readonly TokenLogprob[]
}

/** Answers a conversation. */
export async function chat<const T extends ToolDefinition>(
  engine: TextEngine,
  options: ChatOptions<T>,
): Promise<ChatResult<T>> {
  return await streamChat(engine, options).final()
}

/** A running answer. It can be iterated once; leaving the loop early stops it. */
export interface ChatStream<T extends ToolDefinition = ToolDefinition> extends AsyncIterable<ToolEvent> {
  /** The whole answer. Events nobody iterates over are drained. */
  final(): Promise<ChatResult<T>>
}

/** Answers a conversation, event by event: content, the start of a call, fragments of its arguments. */
export function streamChat<const T extends ToolDefinition>(engine: TextEngine, options: ChatOptions<T>): ChatStream<T> {
  let answered: Answer | null = null
  let failure: unknown = new InvalidRequestError('the stream was left before its end')
  const events = (async function* (): AsyncGenerator<ToolEvent, void, void> {
    try {
      const pieces = answerPieces(engine, await prepare(engine, options), signalOf(options))
      try {
        for (;;) {
          const next = await pieces.next()
          if (next.done === true) {
            answered = next.value
            return
          }
          yield* next.value.events
        }
      } finally {
        await pieces.return(undefined as never)
      }
    } catch (error) {
      failure = error
      throw error
    }
  })()
  return {
    [Symbol.asyncIterator]: () => events,
    async final() {
      for await (const event of events) void event
      if (answered === null) throw failure
      return await resultOf(answered, options.tools ?? [])
    },
  }
}

async function prepare(engine: TextEngine, options: ChatOptions): Promise<PreparedChat> {
  const unknown = Object.entries(options).find(([name, value]) => value !== undefined && !MEMBERS.has(name))?.[0]
  if (unknown !== undefined) {
    throw new InvalidRequestError(`${unknown} is not a member of a chat request`, { details: { param: unknown } })
  }
  try {
    const plan = {
      messages: options.messages,
      tools: readTools(options),
      sampling: samplingOf(options),
      maxTokens: options.maxTokens ?? null,
      logprobs: options.logprobs ?? null,
      removedMass: options.removedMass ?? false,
      closeWithinBudget: options.closeWithinBudget ?? false,
    }
    return await prepareChat(engine, plan, newId('chatcmpl'))
  } catch (error) {
    throw error instanceof ToolError ? inProcess(error) : error
  }
}

const SAMPLING = [
  'temperature',
  'topK',
  'topP',
  'minP',
  'repetitionPenalty',
  'presencePenalty',
  'frequencyPenalty',
  'seed',
  'stop',
  'logitBias',
] as const satisfies readonly (keyof ChatOptions)[]

const MEMBERS: ReadonlySet<string> = new Set<keyof ChatOptions>([
  ...SAMPLING,
  'messages',
  'tools',
  'toolChoice',
  'responseFormat',
  'parallelToolCalls',
  'maxTokens',
  'logprobs',
  'removedMass',
  'closeWithinBudget',
  'signal',
])

function samplingOf(options: ChatOptions): Pick<ChatOptions, (typeof SAMPLING)[number]> {
  return Object.fromEntries(SAMPLING.flatMap((name) => (options[name] === undefined ? [] : [[name, options[name]]])))
}

/** The tool fields through the same reader as a server's, from the text they would have there. */
function readTools({ tools = [], toolChoice, responseFormat, parallelToolCalls }: ChatOptions): ToolRequest {
  const declared = tools.map(({ name, description, parameters }) => {
    const schema = parameters === undefined ? 'null' : parametersText(parameters)
    const head = JSON.stringify({ name, description: description ?? null }).slice(0, -1)
    return `{"type":"function","function":${head},"parameters":${schema}}}`
  })
  const fields = [
    `"tools":[${declared.join(',')}]`,
    `"tool_choice":${JSON.stringify(wireChoice(toolChoice))}`,
    `"response_format":${wireFormat(responseFormat)}`,
    `"parallel_tool_calls":${JSON.stringify(parallelToolCalls ?? null)}`,
  ]
  return parseToolRequest(`{${fields.join(',')}}`, fullProfile)
}

function wireChoice(choice: ChatToolChoice | undefined): unknown {
  if (choice === undefined || typeof choice === 'string') return choice ?? null
  const named = (name: string) => ({ type: 'function', function: { name } })
  if ('name' in choice) return named(choice.name)
  return { type: 'allowed_tools', allowed_tools: { mode: choice.mode, tools: choice.allowed.map(named) } }
}

function wireFormat(format: ChatResponseFormat = 'text'): string {
  if (format === 'text') return '{"type":"text"}'
  if (format === 'json') return '{"type":"json_object"}'
  const { description } = jsonSchema(format.schema as Record<string, unknown>)
  const schema = description.type === 'schema' ? description.schema : 'null'
  return `{"type":"json_schema","json_schema":{"schema":${schema}}}`
}

/** A refusal in a program's terms instead of HTTP's. */
function inProcess(error: ToolError): InvalidRequestError | GrammarError {
  const options = { cause: error, ...(error.param === null ? {} : { details: { param: error.param } }) }
  return error.status === 422
    ? new GrammarError('ERR_TINYLLM_GRAMMAR', error.message, options)
    : new InvalidRequestError(error.message, options)
}

function signalOf({ signal }: ChatOptions): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal }
}

async function resultOf<T extends ToolDefinition>(answer: Answer, tools: readonly T[]): Promise<ChatResult<T>> {
  const { content, calls, finishReason, usage, logprobs } = answer
  const complete = calls.filter((call) => call.truncated !== true)
  const cutCall = calls.find((call) => call.truncated === true)
  return {
    content,
    calls: await Promise.all(complete.map((call) => typedCall(call, tools))),
    message: messageJson(content ?? (calls.length === 0 ? '' : null), calls),
    finishReason,
    usage,
    ...(cutCall === undefined ? {} : { cutCall }),
    ...(logprobs === null ? {} : { logprobs }),
  }
}
