/**
 * The engine: a model in this process. {@link load} starts one; {@link Engine.generate} and {@link Engine.stream}
 * make text with it. Inference runs on the engine's own thread and never blocks the event loop.
 */
import { chat, type ChatOptions, type ChatResult, type ChatStream, streamChat } from './chat/chat.js'
import { runTools, type RunToolsOptions, type RunToolsResult } from './chat/run_tools.js'
import type { RunnableTool, ToolDefinition } from './chat/tools.js'
import { type Conversation, type ConversationOptions, LiveConversation } from './conversation.js'
import { AbortError, EngineClosedError, InvalidRequestError, TokenizerError } from './errors.js'
import { RunningGeneration } from './generation.js'
import type { Grammar } from './grammar.js'
import { resolveModel } from './models/index.js'
import type { PullProgress } from './models/index.js'
import { loadEngine, unwrap, type NativeEngine, type NativeGeneration, type NativeRequest } from './native.js'
import { choiceSeed, toIds, toNativeLoadOptions, toNativeRequest } from './request.js'

export interface LoadOptions {
  /** Positions kept for one sequence, prompt and answer together. Default: what the model was trained for, at most 8192. */
  readonly contextLength?: number
  /** Where the model runs. Only `cpu` for now. Default: `cpu`. */
  readonly device?: 'cpu'
  /**
   * `packed`: weights stay quantised, on kernels for this CPU (`TINYLLM_CPU` forces a tier); files with a weight type
   * that has no kernel take the reference path (`info.forward` says so). `reference`: full precision, slow. Default:
   * `packed`.
   */
  readonly forward?: 'packed' | 'reference'
  /**
   * `fast`: prompts are computed with bfloat16 products, several times as fast, on CPUs with AMX-BF16 (`npx tinyllm
   * inspect --cpu`); elsewhere, with a lower tier forced and with `forward: 'reference'` loading fails with
   * `ERR_TINYLLM_CPU`. Answers then depend on which tokens were the prompt's, too, and only pages of prompts are
   * remembered: a conversation's earlier answers are computed again, as part of its prompt. Default: `exact`.
   */
  readonly prefill?: 'exact' | 'fast'
  /** Threads of the forward pass. Default: the machine's cores. */
  readonly threads?: number
  /** Sequences that make progress at the same time. Default: 32. */
  readonly parallel?: number
  /** Requests that may wait beyond those; one more is refused with `ERR_TINYLLM_OVERLOADED`. Default: 256. */
  readonly maxQueue?: number
  /** Bound on the compiled grammars kept for reuse, in bytes. Default: 256 MiB. */
  readonly grammarCacheBytes?: number
  /** Bytes of keys and values kept, for running and for remembered prompts together. Default: 1 GiB. */
  readonly kvBytes?: number
  /** Prompt tokens computed per step. Default: as many as hold up other generations by some 50 ms. */
  readonly prefillChunk?: number
  /** Called while the model is downloaded. */
  readonly onProgress?: (progress: PullProgress) => void
  /** Ends the download; the load itself (about a second) is not interrupted. */
  readonly signal?: AbortSignal
}

/** A chat message, as the model's template takes it. */
export interface ChatMessage {
  readonly role: string
  readonly content?: string | null | readonly { readonly type: 'text'; readonly text: string }[]
  readonly [member: string]: unknown
}

export interface GenerateRequest<T = unknown> {
  /** The text to go on from, or its token ids. Either this or `messages`. */
  readonly prompt?: string | Uint32Array | readonly number[]
  /** A conversation, rendered by the model's chat template. Either this or `prompt`. */
  readonly messages?: readonly ChatMessage[]
  /** What the answer may be. Default: anything. */
  readonly grammar?: Grammar<T>
  /** Bound on the tokens sampled, the end token included. Default: what is left of the context. */
  readonly maxTokens?: number
  /** 0 is greedy. Range 0 to 100. Default: 0. */
  readonly temperature?: number
  /** Keep the k likeliest tokens; 0 keeps all. Default: 0. */
  readonly topK?: number
  /** Keep the likeliest tokens that hold this much of the mass. Range (0, 1]. Default: 1. */
  readonly topP?: number
  /** Drop tokens less likely than this share of the likeliest. Range [0, 1]. Default: 0. */
  readonly minP?: number
  /** Divides (or multiplies, when negative) the logits of tokens seen before. Range (0, 100]. Default: 1. */
  readonly repetitionPenalty?: number
  /** Taken once from the logits of tokens already in the answer. Range -2 to 2. Default: 0. */
  readonly presencePenalty?: number
  /** Taken from the logits once per time the token is in the answer. Range -2 to 2. Default: 0. */
  readonly frequencyPenalty?: number
  /** Same seed, same answer. 0 to 2^64 - 1. Default: drawn from the system. */
  readonly seed?: number | bigint
  /** The answer ends before any of these (at most 16, none empty). */
  readonly stop?: string | readonly string[]
  /** Report log-probabilities, with this many alternatives per token. Range 0 to 20. Default: none. */
  readonly logprobs?: number
  /**
   * With `logprobs` and a grammar: also report the probability that the grammar's mask took away. Slower: nothing is
   * left out of the computation. Default: false.
   */
  readonly removedMass?: boolean
  /** Added to the logits of tokens, by id. Range -100 to 100. */
  readonly logitBias?: Readonly<Record<number, number>>
  /** Go on after end-of-generation tokens. Default: false. */
  readonly ignoreEos?: boolean
  /** Whether control strings (`<|im_start|>`) in `prompt` are control tokens. Default: true. */
  readonly promptSpecial?: boolean
  /** With a grammar and `maxTokens`: steer so that the answer is complete when the budget is spent. Default: false. */
  readonly closeWithinBudget?: boolean
  /**
   * When prompt and `maxTokens` together do not fit the context: `error` refuses the request, `truncate` generates what
   * fits. Default: `error`.
   */
  readonly contextOverflow?: 'error' | 'truncate'
  readonly signal?: AbortSignal
}

export interface TokenAlternative {
  readonly id: number
  /** The token's bytes as text; a byte that is no character alone shows as U+FFFD. */
  readonly text: string
  readonly bytes: Uint8Array
  readonly logprob: number
}

export interface TokenLogprob extends TokenAlternative {
  /** The likeliest tokens at this place, likeliest first; as many as `logprobs` asked for. */
  readonly top: readonly TokenAlternative[]
  /** The probability of the tokens that the grammar did not allow here; when `removedMass` asked for it. */
  readonly removedMass?: number
}

export interface Usage {
  readonly promptTokens: number
  /** Every token that was sampled: the end token and those of a stop string are counted. */
  readonly completionTokens: number
  readonly totalTokens: number
  /** Prompt tokens that were found computed already. */
  readonly cachedTokens: number
}

export interface GenerateResult<T = unknown> {
  readonly text: string
  /** The parsed answer, when the grammar says how to parse it and the answer is complete. */
  readonly value?: T
  /** The answer's token ids, without the end token and the tokens of a stop string. */
  readonly tokens: Uint32Array
  /** `stop`: an end token, a stop string or a finished grammar; `length`: `maxTokens` or the context was used up. */
  readonly finishReason: 'stop' | 'length'
  /** With a grammar: whether the text is a whole string of it. */
  readonly complete?: boolean
  readonly usage: Usage
  readonly logprobs?: readonly TokenLogprob[]
}

/** What became ready since the last chunk. */
export interface Chunk {
  /** Token ids; a token comes with the last of its bytes. */
  readonly tokens: Uint32Array
  /** Whole characters; text that may be the start of a stop string is held back. */
  readonly text: string
  /** The bytes of `text`. */
  readonly bytes: Uint8Array
  /** One per token, when the request asked for them. */
  readonly logprobs?: readonly TokenLogprob[]
}

/** A running generation. It can be iterated once; leaving the loop early cancels it. */
export interface Generation<T = unknown> extends AsyncIterable<Chunk> {
  /** The whole result. Chunks nobody iterates over are drained. */
  final(): Promise<GenerateResult<T>>
  /** Stops it; an iteration under way ends with an AbortError. */
  cancel(): void
}

export interface RenderChatRequest {
  readonly messages?: readonly ChatMessage[]
  /** Instead of `messages`: their JSON text, when key order and digits matter. */
  readonly messagesJson?: string
  readonly tools?: readonly unknown[]
  readonly toolsJson?: string
  /** Whether the answer's opening is appended. Default: true. */
  readonly addGenerationPrompt?: boolean
}

export interface RenderedChat {
  readonly text: string
  /** `special`: written by the template, may hold control tokens; otherwise somebody's text, never read as control. */
  readonly segments: readonly { readonly text: string; readonly special: boolean }[]
  readonly ids: Uint32Array
}

export interface EngineInfo {
  /** The name the model was loaded by. */
  readonly name: string
  readonly path: string
  /** `general.architecture` of the file. */
  readonly architecture: string
  /** How logits are computed: `packed (avx2)`, `packed (amx), prefill fast`, or `reference: ` and why. */
  readonly forward: string
  readonly vocabSize: number
  /** Positions for one sequence in this engine. */
  readonly contextLength: number
  /** Positions the model was trained for. */
  readonly trainedContextLength: number
  readonly hasChatTemplate: boolean
  readonly bosTokenId?: number
  /** Every token that ends a generation. */
  readonly endTokenIds: readonly number[]
}

/** Counters since the load; `running`, `waiting` and the pages say how it is now. */
export interface EngineStats {
  readonly requests: number
  readonly finished: number
  readonly cancelled: number
  readonly failed: number
  /** Forward steps, and the token positions computed in them. */
  readonly steps: number
  readonly forwardTokens: number
  readonly promptTokens: number
  /** Prompt tokens found computed already. */
  readonly cachedTokens: number
  readonly completionTokens: number
  /** Tokens that were the only ones the grammar allowed, and cost no sampling. */
  readonly forcedTokens: number
  /** Times that it took long to find out what a grammar allows, so that it was done while the layers ran. */
  readonly lateMasks: number
  /** Times a sequence gave its pages up for another. */
  readonly preemptions: number
  /** Pages the prefix cache gave up. */
  readonly evictions: number
  readonly running: number
  readonly waiting: number
  /** Pages of keys and values, 32 positions each. */
  readonly pagesUsed: number
  readonly pagesCached: number
  readonly pagesTotal: number
  /** Compiled grammars kept for reuse, and their bytes. */
  readonly grammars: number
  readonly grammarBytes: number
}

/** How a generation went, for metrics. */
export interface GenerationEvent {
  readonly outcome: 'stop' | 'length' | 'cancelled' | 'failed'
  /** Absent when it was cancelled or failed. */
  readonly usage?: Usage
  /** From submission to the first chunk; absent when none came. */
  readonly firstChunkMs?: number
  /** From submission to the end. */
  readonly totalMs: number
}

export interface Engine extends AsyncDisposable {
  readonly info: EngineInfo
  generate<T = unknown>(request: GenerateRequest<T>): Promise<GenerateResult<T>>
  stream<T = unknown>(request: GenerateRequest<T>): Generation<T>
  /**
   * Several answers to one request at the same time (1 to 128); its prompt is computed once. Answer `i` is the one that
   * the request alone gets with its seed plus `i` (modulo 2^63 from the second on); without a seed each draws its own.
   * All are accepted or none, and each takes one of the engine's places, of which there are `parallel` plus `maxQueue`.
   */
  streamChoices<T = unknown>(request: GenerateRequest<T>, count: number): Generation<T>[]
  /** `special`: whether control strings become control tokens. Default: false. */
  tokenize(text: string, options?: { readonly special?: boolean }): Uint32Array
  detokenize(ids: Uint32Array | readonly number[]): string
  renderChat(request: RenderChatRequest): Promise<RenderedChat>
  /** Answers a conversation, with tools and typed calls. */
  chat<const T extends ToolDefinition>(options: ChatOptions<T>): Promise<ChatResult<T>>
  /** The same, event by event: content, the start of a call, fragments of its arguments. */
  streamChat<const T extends ToolDefinition>(options: ChatOptions<T>): ChatStream<T>
  /** Answers, runs what is called, tells the results, until an answer calls nothing. */
  runTools<const T extends RunnableTool>(options: RunToolsOptions<T>): Promise<RunToolsResult<T>>
  /** A conversation that keeps its history; what was computed for it is found again. */
  createChat(options?: ConversationOptions): Conversation
  stats(): EngineStats
  /**
   * Calls back at the end of every generation. Gives the function that ends this. What a listener throws harms no
   * generation and no other listener: it is thrown again on the next tick, as an uncaught exception of the process.
   */
  onGeneration(listener: (event: GenerationEvent) => void): () => void
  /** Stops intake, cancels what runs, frees the model. May be called again. */
  close(): Promise<void>
}

/** Characters from which a prompt is tokenized off this thread: some milliseconds' worth. */
const LONG_PROMPT = 8192

/** Answers to one request at most. */
const MAX_CHOICES = 128

/** The time `close()` waits for the step under way. */
const CLOSE_DEADLINE_MS = 30_000

/** Loads a model: a path to a GGUF file, or a name that `tinyllm models` knows. */
export async function load(model: string, options: LoadOptions = {}): Promise<Engine> {
  if (typeof model !== 'string' || model === '') {
    throw new InvalidRequestError('load() takes the path or the name of a model', { details: { param: 'model' } })
  }
  const { onProgress, signal, ...rest } = options
  const native = toNativeLoadOptions(rest)
  if (signal?.aborted) throw new AbortError(undefined, { cause: signal.reason })
  const { path, name } = await resolveModel(model, { onProgress, signal })
  const engine = new LoadedEngine(await loadEngine(path, native), name)
  if (signal?.aborted) {
    await engine.close()
    throw new AbortError(undefined, { cause: signal.reason })
  }
  return engine
}

class LoadedEngine implements Engine {
  readonly info: EngineInfo
  readonly #native: NativeEngine
  readonly #listeners = new Set<{ readonly listener: (event: GenerationEvent) => void }>()
  #closing: Promise<void> | undefined

  constructor(native: NativeEngine, name: string) {
    this.#native = native
    this.info = Object.freeze({ name, ...native.info })
  }

  async generate<T>(request: GenerateRequest<T>): Promise<GenerateResult<T>> {
    return this.stream(request).final()
  }

  stream<T>(request: GenerateRequest<T>): Generation<T> {
    const start = async (): Promise<NativeGeneration> => {
      const native = await this.#prepare(request)
      return unwrap(this.#open().submit(native))
    }
    return new RunningGeneration<T>(request, start, this.#report)
  }

  streamChoices<T>(request: GenerateRequest<T>, count: number): Generation<T>[] {
    if (!Number.isInteger(count) || count < 1 || count > MAX_CHOICES) {
      throw new InvalidRequestError(`count must be an integer from 1 to ${MAX_CHOICES}`, {
        details: { param: 'count' },
      })
    }
    const choices = Array.from({ length: count }, (_, choice) => choice)
    const submit = async (): Promise<NativeGeneration[]> => {
      const native = await this.#prepare(request)
      const { seed } = native
      const seeds = seed === undefined ? undefined : choices.map((choice) => choiceSeed(seed, choice))
      return unwrap(this.#open().submitChoices(native, count, seeds))
    }
    let submitted: Promise<NativeGeneration[]> | undefined
    return choices.map((choice) => {
      const start = async (): Promise<NativeGeneration> => {
        const natives = await (submitted ??= submit())
        return natives[choice] as NativeGeneration
      }
      return new RunningGeneration<T>(request, start, this.#report)
    })
  }

  /** The request as the native part takes it, its conversation rendered and a long text tokenized. */
  async #prepare(request: GenerateRequest): Promise<NativeRequest> {
    this.#open()
    const native = toNativeRequest(request)
    if (request.messages !== undefined) {
      const { ids } = await this.renderChat({ messages: request.messages })
      native.prompt = ids
    } else if (native.promptText !== undefined && native.promptText.length > LONG_PROMPT) {
      native.prompt = unwrap(await this.#open().encodePrompt(native.promptText, native.promptSpecial ?? true))
    }
    return native
  }

  tokenize(text: string, options: { readonly special?: boolean } = {}): Uint32Array {
    if (typeof text !== 'string') throw new InvalidRequestError('tokenize() takes a string')
    return unwrap(this.#open().tokenize(text, options.special ?? false))
  }

  detokenize(ids: Uint32Array | readonly number[]): string {
    const native = this.#open()
    const checked = toIds(ids, 'ids')
    const { vocabSize } = this.info
    const unknown = checked.find((id) => id >= vocabSize)
    if (unknown !== undefined) {
      throw new TokenizerError(
        'ERR_TINYLLM_TOKENIZER',
        `token id ${unknown} is not in the vocabulary of ${vocabSize} tokens`,
        { details: { param: 'ids' } },
      )
    }
    return native.detokenize(checked)
  }

  async renderChat(request: RenderChatRequest): Promise<RenderedChat> {
    const messages = request.messagesJson ?? jsonText(request.messages, 'messages')
    const tools = request.toolsJson ?? (request.tools === undefined ? undefined : jsonText(request.tools, 'tools'))
    return unwrap(await this.#open().renderChat(messages, tools, request.addGenerationPrompt ?? true))
  }

  chat<const T extends ToolDefinition>(options: ChatOptions<T>): Promise<ChatResult<T>> {
    return chat(this, options)
  }

  streamChat<const T extends ToolDefinition>(options: ChatOptions<T>): ChatStream<T> {
    return streamChat(this, options)
  }

  runTools<const T extends RunnableTool>(options: RunToolsOptions<T>): Promise<RunToolsResult<T>> {
    return runTools(this, options)
  }

  createChat(options: ConversationOptions = {}): Conversation {
    return new LiveConversation(this, options)
  }

  stats(): EngineStats {
    return this.#native.stats()
  }

  onGeneration(listener: (event: GenerationEvent) => void): () => void {
    const entry = { listener }
    this.#listeners.add(entry)
    return () => void this.#listeners.delete(entry)
  }

  readonly #report = (event: GenerationEvent): void => {
    for (const { listener } of this.#listeners) {
      try {
        listener(event)
      } catch (error) {
        process.nextTick(() => {
          throw error
        })
      }
    }
  }

  close(): Promise<void> {
    this.#closing ??= this.#native.close(CLOSE_DEADLINE_MS).then(() => undefined)
    return this.#closing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  #open(): NativeEngine {
    if (this.#closing !== undefined) throw new EngineClosedError()
    return this.#native
  }
}

function jsonText(value: unknown, param: string): string {
  if (!Array.isArray(value)) throw new InvalidRequestError(`${param} must be an array`, { details: { param } })
  return JSON.stringify(value)
}
