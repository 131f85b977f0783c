/** The façade over the tiny random model: requests, streams, cancellation, counting, closing. */
import {
  AbortError,
  type Chunk,
  ContextLengthError,
  type Engine,
  EngineClosedError,
  type GenerateRequest,
  type GenerationEvent,
  InvalidRequestError,
  ModelLoadError,
  OverloadedError,
  regex,
  TinyLlmError,
} from '../../src/index.js'
import { load } from '../../src/index.js'
import { loadTiny, tinyPath } from './tiny.js'

let engine: Engine

beforeAll(async () => {
  engine = await loadTiny()
})

afterAll(async () => {
  await engine.close()
})

/** A long greedy generation that does not end by itself. */
const long: GenerateRequest = { prompt: 'abc', ignoreEos: true, maxTokens: 200 }

async function failure(work: Promise<unknown>): Promise<TinyLlmError> {
  try {
    await work
  } catch (error) {
    if (TinyLlmError.is(error)) return error
    throw error
  }
  throw new Error('it did not fail')
}

/** Turns of the event loop until the engine's thread, which tells its counters last, has done so. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve))
}

describe('a request', () => {
  const wrong: [string, Record<string, unknown>][] = [
    ['prompt', {}],
    ['prompt', { prompt: 'a', messages: [] }],
    ['prompt', { prompt: 5 }],
    ['prompt', { prompt: [] }],
    ['prompt', { prompt: '' }],
    ['prompt', { prompt: [1.5] }],
    ['prompt', { prompt: [-1] }],
    ['prompt', { prompt: [1e6] }],
    ['messages', { messages: 'hello' }],
    ['maxTokens', { maxTokens: 0 }],
    ['maxTokens', { maxTokens: '5' }],
    ['temperature', { temperature: -1 }],
    ['temperature', { temperature: NaN }],
    ['temperature', { temperature: null }],
    ['topK', { topK: 1.5 }],
    ['topP', { topP: 0 }],
    ['minP', { minP: 1.1 }],
    ['repetitionPenalty', { repetitionPenalty: 0 }],
    ['presencePenalty', { presencePenalty: 3 }],
    ['frequencyPenalty', { frequencyPenalty: -3 }],
    ['seed', { seed: -1 }],
    ['seed', { seed: 0.5 }],
    ['seed', { seed: 2n ** 64n }],
    ['stop', { stop: [''] }],
    ['stop', { stop: Array.from({ length: 17 }, () => 'x') }],
    ['logprobs', { logprobs: 21 }],
    ['logitBias[7]', { logitBias: { 7: 101 } }],
    ['logitBias', { logitBias: { 999999: 1 } }],
    ['logitBias["x"]', { logitBias: { x: 1 } }],
    ['ignoreEos', { ignoreEos: 1 }],
    ['promptSpecial', { promptSpecial: 'no' }],
    ['closeWithinBudget', { closeWithinBudget: 0 }],
    ['contextOverflow', { contextOverflow: 'shift' }],
    ['grammar', { grammar: 'yes|no' }],
    ['signal', { signal: {} }],
    ['signal', { signal: null }],
    ['max_tokens', { max_tokens: 5 }],
  ]
  test.each(wrong)('with a wrong %s is refused by that name: %p', async (param, members) => {
    const request = ('prompt' in members || 'messages' in members || param === 'prompt'
      ? members
      : { prompt: 'a', ...members }) as unknown as GenerateRequest
    const error = await failure(engine.generate(request))
    expect(error).toBeInstanceOf(InvalidRequestError)
    expect(error.details.param).toBe(param)
  })

  test('takes its prompt as text or as ids, with control strings or without', async () => {
    const text = '<|im_start|>abc'
    const special = engine.tokenize(text, { special: true })
    const plain = engine.tokenize(text)
    expect(plain.length).toBeGreaterThan(special.length)
    const run = async (request: GenerateRequest) => (await engine.generate({ ...request, maxTokens: 8 })).tokens
    const expected = await run({ prompt: special })
    expect(await run({ prompt: text })).toEqual(expected)
    expect(await run({ prompt: [...special] })).toEqual(expected)
    expect(await run({ prompt: text, promptSpecial: false })).toEqual(await run({ prompt: plain }))
  })

  test('that does not fit the context is refused, or cut when asked', async () => {
    const { contextLength } = engine.info
    const prompt = new Uint32Array(contextLength - 3).fill(5)
    const error = await failure(engine.generate({ prompt, maxTokens: 4 }))
    expect(error).toBeInstanceOf(ContextLengthError)
    expect(error.details).toMatchObject({ param: 'maxTokens', limit: contextLength, actual: contextLength + 1 })
    const cut = await engine.generate({ prompt, maxTokens: 4, contextOverflow: 'truncate', ignoreEos: true })
    expect(cut).toMatchObject({ finishReason: 'length', usage: { completionTokens: 3 } })
    const full = await failure(engine.generate({ prompt: new Uint32Array(contextLength).fill(5) }))
    expect(full).toBeInstanceOf(ContextLengthError)
  })
})

describe('a result', () => {
  test('is the same for the same seed, whole and streamed', async () => {
    const request: GenerateRequest = {
      prompt: 'abc',
      temperature: 1.2,
      topP: 0.95,
      seed: 11,
      maxTokens: 40,
      logprobs: 3,
    }
    const first = await engine.generate(request)
    expect(await engine.generate({ ...request, seed: 11n })).toEqual(
      expect.objectContaining({ text: first.text, tokens: first.tokens, logprobs: first.logprobs }),
    )
    const chunks: Chunk[] = []
    const generation = engine.stream(request)
    for await (const chunk of generation) chunks.push(chunk)
    const final = await generation.final()
    expect(chunks.map((c) => c.text).join('')).toBe(first.text)
    expect(chunks.flatMap((c) => [...c.tokens])).toEqual([...first.tokens])
    expect(chunks.flatMap((c) => c.logprobs ?? [])).toEqual(first.logprobs)
    expect(final.tokens).toEqual(first.tokens)
    expect((await engine.generate({ ...request, seed: 12 })).tokens).not.toEqual(first.tokens)
  })

  test('has log-probabilities aligned with its tokens', async () => {
    const { tokens, logprobs = [] } = await engine.generate({
      prompt: 'abc',
      maxTokens: 10,
      logprobs: 4,
      ignoreEos: true,
    })
    expect(logprobs.map((l) => l.id)).toEqual([...tokens])
    for (const { id, logprob, top, bytes, text } of logprobs) {
      expect(top).toHaveLength(4)
      expect(top[0]).toMatchObject({ id, logprob })
      expect(Buffer.from(bytes).toString()).toBe(text)
      expect(top.map((t) => t.logprob)).toEqual(top.map((t) => t.logprob).sort((a, b) => b - a))
    }
    expect((await engine.generate({ prompt: 'abc', maxTokens: 3, ignoreEos: true })).logprobs).toBeUndefined()
    const bare = await engine.generate({ prompt: 'abc', maxTokens: 3, logprobs: 0, ignoreEos: true })
    expect(bare.logprobs?.map((l) => l.top)).toEqual([[], [], []])
  })

  test('counts what was sampled, and the text is that of its tokens', async () => {
    const { text, tokens, usage, finishReason } = await engine.generate({ ...long, maxTokens: 30 })
    expect(finishReason).toBe('length')
    expect(usage).toMatchObject({ promptTokens: 3, completionTokens: 30, totalTokens: 33 })
    expect(tokens).toHaveLength(30)
    const ends = new Set(engine.info.endTokenIds)
    expect(text).toBe(engine.detokenize(tokens.filter((id) => !ends.has(id) && !isControl(id))))
  })

  test('ends before a stop string', async () => {
    const whole = await engine.generate(long)
    const stop = /[A-Za-z]{3}/.exec(whole.text)?.[0] ?? ''
    const cut = await engine.generate({ ...long, stop })
    expect(cut).toMatchObject({ text: whole.text.slice(0, whole.text.indexOf(stop)), finishReason: 'stop' })
  })

  test('is bent by a logit bias', async () => {
    const [id] = engine.tokenize('z')
    const { text } = await engine.generate({ prompt: 'abc', maxTokens: 5, logitBias: { [id as number]: 100 } })
    expect(text).toBe('zzzzz')
  })

  test('does not depend on what else runs', async () => {
    const requests = Array.from({ length: 12 }, (_, i): GenerateRequest => ({
      prompt: 'shared beginning of some length, longer than a page of positions '.slice(0, 20 + 5 * i),
      temperature: i % 2,
      seed: i,
      maxTokens: 20 + i,
      ...(i % 3 === 0 ? { grammar: regex('(one|two|[0-9]{3})( (one|two|[0-9]{3})){3}') } : {}),
    }))
    const together = await Promise.all(requests.map((request) => engine.generate(request)))
    const fresh = await loadTiny({ prefillChunk: 7, parallel: 1 })
    for (const [i, request] of requests.entries()) {
      const alone = await fresh.generate(request)
      expect(together[i]).toEqual({ ...alone, usage: { ...alone.usage, cachedTokens: expect.any(Number) } })
    }
    await fresh.close()
  })
})

function isControl(id: number): boolean {
  return engine.detokenize([id]).startsWith('<|')
}

describe('a stream', () => {
  test('can be iterated once', async () => {
    const generation = engine.stream({ prompt: 'a', maxTokens: 2 })
    for await (const _ of generation);
    expect(() => generation[Symbol.asyncIterator]()).toThrow(InvalidRequestError)
    expect((await generation.final()).usage.completionTokens).toBeLessThanOrEqual(2)
  })

  test('is cancelled by leaving the loop', async () => {
    const before = engine.stats()
    const generation = engine.stream(long)
    for await (const _ of generation) break
    expect(await failure(generation.final())).toBeInstanceOf(AbortError)
    await engine.generate({ prompt: 'a', maxTokens: 1 })
    // A model this small may have been done before the loop was left.
    await until(() => {
      const after = engine.stats()
      return after.cancelled + after.finished - before.cancelled - before.finished === 2
    })
  })

  test('fails where it is consumed when its request is wrong', async () => {
    const generation = engine.stream({ prompt: 'a', maxTokens: -1 })
    await expect(generation[Symbol.asyncIterator]().next()).rejects.toThrow(InvalidRequestError)
    await expect(generation.final()).rejects.toThrow(InvalidRequestError)
  })
})

describe('a signal', () => {
  test('that was aborted before stops the request before it starts', async () => {
    const requests = engine.stats().requests
    const error = await failure(engine.generate({ ...long, signal: AbortSignal.abort('reason') }))
    expect(error).toBeInstanceOf(AbortError)
    expect(error).toMatchObject({ name: 'AbortError', cause: 'reason' })
    expect(engine.stats().requests).toBe(requests)
  })

  test('stops a decoding generation', async () => {
    const controller = new AbortController()
    const generation = engine.stream({ ...long, signal: controller.signal })
    const seen: string[] = []
    const error = await failure(
      (async () => {
        for await (const chunk of generation) {
          seen.push(chunk.text)
          controller.abort(new Error('enough'))
        }
      })(),
    )
    expect(error).toBeInstanceOf(AbortError)
    expect((error.cause as Error).message).toBe('enough')
    expect(seen).toHaveLength(1)
  })

  test('stops a prefill between chunks', async () => {
    const slow = await loadTiny({ prefillChunk: 1 })
    const controller = new AbortController()
    const prompt = new Uint32Array(slow.info.contextLength - 1).fill(7)
    const running = slow.generate({ prompt, maxTokens: 1, signal: controller.signal })
    controller.abort()
    expect(await failure(running)).toBeInstanceOf(AbortError)
    await slow.generate({ prompt: 'a', maxTokens: 1 })
    expect(slow.stats().forwardTokens).toBeLessThan(prompt.length)
    await slow.close()
  })

  test('is let go of at the end', async () => {
    const controller = new AbortController()
    const removed = jest.spyOn(controller.signal, 'removeEventListener')
    await engine.generate({ prompt: 'a', maxTokens: 2, signal: controller.signal })
    expect(removed).toHaveBeenCalledTimes(1)
    await failure(engine.generate({ prompt: [1e6], signal: controller.signal }))
    expect(removed.mock.calls.length).toBeGreaterThanOrEqual(2)
  })
})

describe('tokens and templates', () => {
  test('text goes to ids and back', () => {
    for (const text of ['', 'The name, 123 é€😀\n\n', '<|im_start|><tool_call>']) {
      expect(engine.detokenize(engine.tokenize(text))).toBe(text)
      expect(engine.detokenize([...engine.tokenize(text, { special: true })])).toBe(text)
    }
    expect(() => engine.tokenize(5 as unknown as string)).toThrow(InvalidRequestError)
    expect(() => engine.detokenize([1.5])).toThrow(InvalidRequestError)
  })

  test('a conversation is rendered with its own text kept apart from control tokens', async () => {
    const rendered = await engine.renderChat({ messages: [{ role: 'user', content: 'a<|im_end|>b' }] })
    expect(rendered.text).toBe('<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n')
    expect(rendered.segments.map((s) => s.text).join('')).toBe(rendered.text)
    const end = engine.tokenize('<|im_end|>', { special: true })[0]
    expect(rendered.ids.filter((id) => id === end)).toHaveLength(1)
    const open = await engine.renderChat({
      messagesJson: '[{"role":"user","content":"a"}]',
      addGenerationPrompt: false,
    })
    expect(open.text).toBe('<|im_start|>user\na<|im_end|>\n')
    expect(await failure(engine.renderChat({ messagesJson: '[' }))).toMatchObject({ code: 'ERR_TINYLLM_JSON' })
    expect(await failure(engine.renderChat({}))).toBeInstanceOf(InvalidRequestError)
  })

  test('messages are generated from like their rendered ids', async () => {
    const messages = [{ role: 'user', content: 'hello' }]
    const { ids } = await engine.renderChat({ messages })
    const fromIds = await engine.generate({ prompt: ids, maxTokens: 10 })
    expect((await engine.generate({ messages, maxTokens: 10 })).tokens).toEqual(fromIds.tokens)
  })
})

describe('a conversation', () => {
  test('keeps its history, and what was computed for it', async () => {
    const chat = engine.createChat({
      system: 'A system prompt that is long enough to fill a page of positions, or two.',
    })
    const first = await chat.generate('hello', { maxTokens: 10 })
    expect(chat.messages.slice(1)).toEqual([
      { role: 'user', content: 'hello' },
      { role: 'assistant', content: first.text },
    ])
    const second = await chat.stream('more', { maxTokens: 4 }).final()
    expect(second.usage.cachedTokens).toBeGreaterThan(first.usage.promptTokens - 32)
    expect(chat.messages).toHaveLength(5)
  })

  test('forgets a turn that was not finished, and takes one at a time', async () => {
    const chat = engine.createChat()
    const generation = chat.stream('hello', { ...longTurn })
    expect(() => chat.stream('again')).toThrow(InvalidRequestError)
    for await (const _ of generation) break
    expect(chat.messages).toEqual([])
    await chat.generate('again', { maxTokens: 2 })
    expect(chat.messages).toHaveLength(2)
  })

  test('goes on after a turn that was cancelled before anybody listened', async () => {
    const chat = engine.createChat()
    const cancelled = chat.stream('hello', { ...longTurn })
    cancelled.cancel()
    const next = chat.stream('again', { maxTokens: 2 })
    // The end of the first turn, told late, is not the end of the second.
    expect(await failure(cancelled.final())).toBeInstanceOf(AbortError)
    expect(() => chat.stream('at once')).toThrow(InvalidRequestError)
    await next.final()
    expect(chat.messages.map(({ content }) => content)[0]).toBe('again')
  })
  const longTurn = { ignoreEos: true, maxTokens: 100 }
})

describe('an engine', () => {
  test('says what it loaded', () => {
    expect(engine.info).toMatchObject({ path: tinyPath(), architecture: 'llama', hasChatTemplate: true })
    expect(engine.info.endTokenIds.length).toBeGreaterThan(0)
  })

  test('refuses wrong options and files by name', async () => {
    expect(await failure(load(''))).toBeInstanceOf(InvalidRequestError)
    expect((await failure(loadTiny({ contextLength: 1 }))).details.param).toBe('contextLength')
    expect((await failure(loadTiny({ contextLength: 1e9 }))).details.param).toBe('contextLength')
    expect((await failure(loadTiny({ unknown: 1 } as never))).details.param).toBe('unknown')
    expect((await failure(loadTiny({ prefill: 'quick' as 'fast' }))).details.param).toBe('prefill')
    expect(await failure(loadTiny({ prefill: 'fast', forward: 'reference' }))).toMatchObject({
      code: 'ERR_TINYLLM_CPU',
      message: 'prefill "fast" needs bf16 AMX tiles: the forward pass is the reference (asked for)',
    })
    expect(await failure(loadTiny({ device: 'cuda' as 'cpu' }))).toBeInstanceOf(ModelLoadError)
    expect(await failure(load(__filename))).toBeInstanceOf(ModelLoadError)
    expect(await failure(load(tinyPath(), { signal: AbortSignal.abort() }))).toBeInstanceOf(AbortError)
  })

  test('refuses a request too many, and takes the next when there is room', async () => {
    const small = await loadTiny({ parallel: 1, maxQueue: 1 })
    const running = [small.stream(long), small.stream(long)]
    expect(await failure(small.generate(long))).toBeInstanceOf(OverloadedError)
    for (const generation of running) generation.cancel()
    for (const generation of running) await failure(generation.final())
    await small.close()
  })

  test('counts what it does and tells at the end of every generation', async () => {
    const events: GenerationEvent[] = []
    const off = engine.onGeneration((event) => events.push(event))
    const before = engine.stats()
    const { usage } = await engine.generate({ prompt: 'xyz', maxTokens: 5, ignoreEos: true })
    for await (const _ of engine.stream(long)) break
    await failure(engine.generate({ prompt: [1e6] }))
    off()
    await engine.generate({ prompt: 'xyz', maxTokens: 1 })
    expect(events.map((e) => e.outcome)).toEqual(['length', 'cancelled', 'failed'])
    expect(events[0]).toMatchObject({ usage, totalMs: expect.any(Number), firstChunkMs: expect.any(Number) })
    const after = engine.stats()
    expect(after.requests - before.requests).toBe(3)
    await until(() => engine.stats().completionTokens - before.completionTokens >= 6)
  })

  test('a listener that throws harms no generation and no listener, and is heard of', async () => {
    const told: string[] = []
    const offs = [1, 2].map((n) =>
      engine.onGeneration(({ outcome }) => {
        told.push(outcome)
        throw new Error(`listener ${n}`)
      }),
    )
    const thrown = jest.spyOn(process, 'nextTick').mockImplementation(() => undefined)
    try {
      expect((await engine.generate({ prompt: 'xyz', maxTokens: 2, ignoreEos: true })).tokens).toHaveLength(2)
      expect(told).toEqual(['length', 'length'])
      const again = thrown.mock.calls.map(([callback]) => callback as () => void)
      for (const [i, callback] of again.entries()) expect(callback).toThrow(`listener ${i + 1}`)
      expect(again).toHaveLength(2)
    } finally {
      thrown.mockRestore()
      for (const off of offs) off()
    }
  })

  test('never computes a prompt twice in one generation', async () => {
    const fresh = await loadTiny()
    await fresh.generate({ prompt: new Uint32Array(50).fill(9), maxTokens: 20, ignoreEos: true })
    expect(fresh.stats().forwardTokens).toBe(50 + 19)
    await fresh.close()
  })

  test('lives beside another in the same process', async () => {
    const other = await loadTiny()
    const [a, b] = await Promise.all([engine.generate(long), other.generate(long)])
    expect(a.tokens).toEqual(b.tokens)
    await other.close()
    expect((await engine.generate(long)).tokens).toEqual(a.tokens)
  })

  test('ends its generations when it is closed, which may be done twice', async () => {
    const closing = await loadTiny()
    const generation = closing.stream(long)
    const ended = failure(generation.final())
    await Promise.all([closing.close(), closing.close()])
    expect(await ended).toBeInstanceOf(EngineClosedError)
    expect(await failure(closing.generate(long))).toBeInstanceOf(EngineClosedError)
    expect(() => closing.tokenize('a')).toThrow(EngineClosedError)
    await closing[Symbol.asyncDispose]()
  })
})
