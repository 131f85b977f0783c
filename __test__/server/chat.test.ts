import { GrammarError, OverloadedError } from '../../src/errors.js'
import { FakeEngine } from './fake_engine.js'
import { call, closeAll, events, json, serve, weather, type Loose } from './support.js'

afterEach(closeAll)

describe('a whole answer', () => {
  test('has the shape of a chat completion', async () => {
    const { chat } = await serve()
    const response = await chat({ model: 'fake-model' })
    expect(response.status).toBe(200)
    expect(await json(response)).toEqual({
      id: expect.stringMatching(/^chatcmpl-[0-9a-f]{16}$/),
      object: 'chat.completion',
      created: expect.any(Number),
      model: 'fake-model',
      choices: [
        { index: 0, message: { role: 'assistant', content: 'Hello there.' }, logprobs: null, finish_reason: 'stop' },
      ],
      usage: {
        prompt_tokens: 20,
        completion_tokens: 13,
        total_tokens: 33,
        prompt_tokens_details: { cached_tokens: 0 },
      },
    })
  })

  test('with a call has null content and an id made of the response id', async () => {
    const { chat } = await serve({ engine: new FakeEngine(() => call('{"city":"Paris"}')) })
    const { id, choices } = await json(await chat({ tools: [weather] }))
    expect(choices[0]).toEqual({
      index: 0,
      message: {
        role: 'assistant',
        content: null,
        tool_calls: [
          { id: `call_${id}_0`, type: 'function', function: { name: 'get_weather', arguments: '{"city":"Paris"}' } },
        ],
      },
      logprobs: null,
      finish_reason: 'tool_calls',
    })
  })

  test('under tool_choice none a call in the text is content', async () => {
    const { chat } = await serve({ engine: new FakeEngine(() => call('{}')) })
    const { choices } = await json(await chat({ tools: [weather], tool_choice: 'none' }))
    expect(choices[0].message).toEqual({ role: 'assistant', content: call('{}') })
    expect(choices[0].finish_reason).toBe('stop')
  })

  test('an empty answer has empty content', async () => {
    const { chat } = await serve({ engine: new FakeEngine(() => '') })
    for (const tools of [undefined, [weather]]) {
      expect((await json(await chat({ tools }))).choices[0].message).toEqual({ role: 'assistant', content: '' })
    }
  })

  test('a call that the budget cut is length in full, tool_calls in strict, and truncated in both', async () => {
    for (const [profile, reason] of [
      ['full', 'length'],
      ['openai-subset.v1', 'tool_calls'],
    ] as const) {
      const text = call('{"city":"Par').slice(0, -'}</tool_call>'.length)
      const { chat } = await serve({ profile, engine: new FakeEngine(() => ({ text, finishReason: 'length' })) })
      const { choices } = await json(await chat({ tools: [weather] }))
      expect(choices[0].finish_reason).toBe(reason)
      expect(choices[0].message.tool_calls[0]).toMatchObject({
        truncated: true,
        function: { arguments: '{"city":"Par' },
      })
      const streamed = await events(await chat({ tools: [weather], stream: true }))
      expect(streamed.at(-2)).toMatchObject({ choices: [{ delta: {}, finish_reason: reason, truncated: true }] })
    }
  })

  test('close_within_budget says whether the answer is whole', async () => {
    const response_format = { type: 'json_object' }
    for (const complete of [true, false]) {
      const { chat } = await serve({ engine: new FakeEngine(() => ({ text: '{', finishReason: 'length', complete })) })
      const request = { response_format, close_within_budget: true }
      expect((await json(await chat(request)))['choices'][0].closed).toBe(complete)
      expect((await events(await chat({ ...request, stream: true }))).at(-2)).toMatchObject({
        choices: [{ closed: complete }],
      })
      expect((await json(await chat({ response_format })))['choices'][0]).not.toHaveProperty('closed')
    }
  })

  test('log-probabilities are told when asked for', async () => {
    const { chat } = await serve({ engine: new FakeEngine(() => 'é') })
    const { choices } = await json(await chat({ logprobs: true, top_logprobs: 2 }))
    expect(choices[0].logprobs).toEqual({
      content: [
        {
          token: 'é',
          logprob: -0.5,
          bytes: [0xc3, 0xa9],
          top_logprobs: [
            { token: 'é', logprob: -0.5, bytes: [0xc3, 0xa9] },
            { token: 'é', logprob: -9999, bytes: [0xc3, 0xa9] },
          ],
        },
      ],
      refusal: null,
    })
  })

  test('the mass that a grammar removed is asked for with log-probabilities under a grammar', async () => {
    const { chat, engine } = await serve({ engine: new FakeEngine(() => call('{}')) })
    await chat({ logprobs: true, tools: [weather] })
    await chat({ logprobs: true })
    await chat({ tools: [weather] })
    expect(engine.asked.map(({ request }) => request.removedMass)).toEqual([true, undefined, undefined])
  })

  test('several choices have seeds and call ids of their own', async () => {
    const { chat, engine } = await serve({ engine: new FakeEngine(() => call('{}')) })
    const { id, choices, usage } = await json(await chat({ tools: [weather], n: 3, seed: 7 }))
    expect(choices.map((choice: Loose) => choice.message.tool_calls[0].id)).toEqual([
      `call_${id}_0`,
      `call_${id}_1_0`,
      `call_${id}_2_0`,
    ])
    expect(engine.asked.map(({ request }) => request.seed)).toEqual([7n, 8n, 9n])
    expect(usage.completion_tokens).toBe(3 * ([...call('{}')].length + 1))
  })
})

describe('what the engine is asked for', () => {
  test('temperature 1 and top_p 1 are the defaults', async () => {
    const { chat, engine } = await serve()
    await chat({})
    expect(engine.asked[0]?.request).toMatchObject({ temperature: 1, topP: 1 })
  })

  test('every field arrives', async () => {
    const { post, engine } = await serve()
    const fields =
      '"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":-1,"frequency_penalty":2,"seed":9223372036854775807,"stop":["a","b"],"logit_bias":{"5":-100},"max_tokens":9,"max_completion_tokens":7,"logprobs":true,"close_within_budget":true'
    expect((await post('/v1/chat/completions', `{"messages":[{"role":"user","content":"x"}],${fields}}`)).status).toBe(
      200,
    )
    expect(engine.asked[0]?.request).toMatchObject({
      temperature: 0.5,
      topP: 0.9,
      topK: 4,
      minP: 0.1,
      repetitionPenalty: 1.1,
      presencePenalty: -1,
      frequencyPenalty: 2,
      seed: 9223372036854775807n,
      stop: ['a', 'b'],
      logitBias: { 5: -100 },
      maxTokens: 7,
      logprobs: 0,
      closeWithinBudget: true,
    })
  })

  test('max_tokens reaches no further than the context', async () => {
    const { chat, engine } = await serve()
    await chat({ max_tokens: 1_000_000 })
    expect(engine.asked[0]?.request.maxTokens).toBe(4096 - 20)
  })

  test('the prompt tells the tools, whatever the choice, and opens the answer', async () => {
    const { chat, engine } = await serve()
    for (const tool_choice of ['auto', 'none', 'required']) {
      await chat({ tools: [weather], tool_choice })
      const prompt = engine.asked.at(-1)?.prompt
      expect(prompt).toMatch(/^\[system\][^]*"get_weather"[^]*\[user\]hi\n\[assistant\]$/)
    }
  })
})

describe('a stream', () => {
  test('begins with the role, ends with the reason and [DONE], and keeps id and created', async () => {
    const { chat } = await serve()
    const response = await chat({ stream: true })
    expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
    const all = await events(response)
    expect(all.at(-1)).toBe('[DONE]')
    const chunks = all.slice(0, -1) as Record<string, Loose>[]
    expect(new Set(chunks.map(({ id, created, object }) => `${id} ${created} ${object}`)).size).toBe(1)
    expect(chunks[0]?.['choices']).toEqual([
      { index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null },
    ])
    expect(chunks.at(-1)?.['choices']).toEqual([{ index: 0, delta: {}, logprobs: null, finish_reason: 'stop' }])
    expect(
      chunks
        .slice(1, -1)
        .map(({ choices }) => choices[0].delta.content)
        .join(''),
    ).toBe('Hello there.')
    for (const chunk of chunks) expect(chunk).not.toHaveProperty('usage')
  })

  test('tells the usage in one more chunk when asked', async () => {
    const { chat } = await serve()
    const chunks = (await events(await chat({ stream: true, stream_options: { include_usage: true } }))) as Record<
      string,
      Loose
    >[]
    expect(chunks.at(-2)).toMatchObject({
      choices: [],
      usage: { prompt_tokens: 20, completion_tokens: 13, total_tokens: 33 },
    })
    for (const chunk of chunks.slice(0, -2)) expect(chunk['usage']).toBeNull()
  })

  test('gives each call one start and then fragments, calls one after the other', async () => {
    const text = `Sure.${call('{"city":"Paris"}')}\n${call('{"city":"Rome"}')}`
    const { chat } = await serve({ engine: new FakeEngine(() => text, 4) })
    const all = await events(await chat({ tools: [weather], stream: true }))
    const chunks = all.slice(0, -1) as Record<string, Loose>[]
    const deltas = chunks.map(({ choices }) => choices[0].delta)
    const starts = deltas.flatMap(({ tool_calls = [] }) => tool_calls).filter((part: Loose) => 'id' in part)
    expect(starts).toEqual(
      [0, 1].map((index) => ({
        index,
        id: `call_${chunks[0]?.['id']}_${index}`,
        type: 'function',
        function: { name: 'get_weather', arguments: '' },
      })),
    )
    const rest = deltas.flatMap(({ tool_calls = [] }) => tool_calls).filter((part: Loose) => !('id' in part))
    for (const part of rest) expect(Object.keys(part)).toEqual(['index', 'function'])
    const joined = (index: number) =>
      rest
        .filter((part: Loose) => part.index === index)
        .map((part: Loose) => part.function.arguments)
        .join('')
    expect([joined(0), joined(1)]).toEqual(['{"city":"Paris"}', '{"city":"Rome"}'])
    expect(rest.map((part: Loose) => part.index)).toEqual(rest.map((part: Loose) => part.index).sort())
    expect(deltas.map(({ content = '' }) => content).join('')).toBe('Sure.')
    expect(chunks.at(-1)?.['choices'][0].finish_reason).toBe('tool_calls')
  })

  test('tells each log-probability once, with the first delta after its token', async () => {
    const { chat } = await serve({ engine: new FakeEngine(() => `a${call('{}')}b`, 2) })
    const all = (await events(await chat({ tools: [weather], stream: true, logprobs: true }))) as Record<
      string,
      Loose
    >[]
    const tokens = all.slice(0, -1).flatMap(({ choices }) => choices[0].logprobs?.content ?? [])
    expect(tokens.map(({ token }: Loose) => token).join('')).toBe(`a${call('{}')}b`)
  })

  test('of several choices says whose chunk it is', async () => {
    let asked = 0
    const { chat } = await serve({ engine: new FakeEngine(() => `answer ${asked++}`) })
    const all = (await events(await chat({ stream: true, n: 2 }))) as Record<string, Loose>[]
    const text = (index: number) =>
      all
        .slice(0, -1)
        .flatMap(({ choices }) => choices)
        .filter((choice: Loose) => choice.index === index)
        .map(({ delta }: Loose) => delta.content ?? '')
        .join('')
    expect([text(0), text(1)]).toEqual(['answer 0', 'answer 1'])
  })

  test('an error before the first token is an ordinary response', async () => {
    const error = new GrammarError('ERR_TINYLLM_GRAMMAR', 'too many states')
    const { chat } = await serve({ engine: new FakeEngine(() => error) })
    for (const stream of [true, false]) {
      const response = await chat({ tools: [weather], stream })
      expect(response.status).toBe(422)
      expect(await json(response)).toEqual({
        error: {
          message: 'too many states',
          type: 'invalid_request_error',
          param: 'tools',
          code: 'unsupported_parameter',
        },
      })
    }
    const response = await chat({ response_format: { type: 'json_object' } })
    expect((await json(response))['error']).toMatchObject({ param: 'response_format' })
  })

  test('an error after the headers is one event and no [DONE]', async () => {
    const broken = async function* () {
      yield 'Hel'
      await Promise.resolve()
      throw new Error('secret detail')
    }
    const { chat } = await serve({ engine: new FakeEngine(() => broken()) })
    const all = (await events(await chat({ stream: true }))) as Record<string, Loose>[]
    expect(all.at(-1)).toEqual({
      error: { message: 'the server failed', type: 'server_error', param: null, code: 'internal_error' },
    })
    expect(all).not.toContain('[DONE]')
  })

  test('when the queue of the engine is full the client is told when to come back', async () => {
    const error = new OverloadedError('ERR_TINYLLM_OVERLOADED', 'the queue is full')
    const { chat } = await serve({ engine: new FakeEngine(() => error) })
    const response = await chat({ stream: true })
    expect([response.status, response.headers.get('retry-after')]).toEqual([429, '1'])
    expect((await json(response))['error']).toMatchObject({ type: 'rate_limit_error', param: null })
  })
})
