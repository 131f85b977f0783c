import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { pino } from 'pino'
import { TokenizerError } from '../../src/errors.js'
import { createServer } from '../../src/server/index.js'
import type { Clock } from '../../src/server/sse.js'
import { FakeEngine } from './fake_engine.js'
import { closeAll, events, json, serve, weather, type Loose } from './support.js'

afterEach(closeAll)

/** Says one piece, then waits to be let on. */
function gated(...pieces: string[]) {
  let open: () => void = () => undefined
  const gate = new Promise<void>((resolve) => (open = resolve))
  let first: () => void = () => undefined
  const begun = new Promise<void>((resolve) => (first = resolve))
  const speak = async function* () {
    yield pieces[0] ?? ''
    first()
    await gate
    yield* pieces.slice(1)
  }
  return { open, begun, speak }
}

/** Timers that run when they are told to. */
class TestClock implements Clock {
  readonly timers = new Map<number, { run: () => void; ms: number }>()
  #next = 0

  now(): number {
    return 1_700_000_000_000
  }

  setTimeout(run: () => void, ms: number): unknown {
    this.timers.set(++this.#next, { run, ms })
    return this.#next
  }

  clearTimeout(timer: unknown): void {
    this.timers.delete(timer as number)
  }

  fire(ms: number): void {
    for (const [id, timer] of [...this.timers]) {
      if (timer.ms !== ms) continue
      this.timers.delete(id)
      timer.run()
    }
  }
}

const errorOf = async (response: Response) => {
  const { error } = await json(response)
  expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type'])
  return [response.status, error.type, error.param, error.code]
}

describe('errors', () => {
  test('an unknown model is 404, the served one has two names', async () => {
    const { chat, url } = await serve({ alias: 'mine' })
    expect(await errorOf(await chat({ model: 'gpt-4o' }))).toEqual([
      404,
      'invalid_request_error',
      'model',
      'model_not_found',
    ])
    for (const model of ['mine', 'fake-model', undefined]) {
      expect((await json(await chat({ model })))['model']).toBe('mine')
    }
    expect(await errorOf(await fetch(`${url}/v1/models/other`))).toEqual([
      404,
      'invalid_request_error',
      'model',
      'model_not_found',
    ])
  })

  test('an unknown path is 404', async () => {
    const { url } = await serve()
    for (const method of ['GET', 'POST']) {
      expect(await errorOf(await fetch(`${url}/v1/embeddings`, { method }))).toEqual([
        404,
        'invalid_request_error',
        null,
        'not_found',
      ])
    }
  })

  test('a path that cannot be decoded is 400', async () => {
    const { url } = await serve()
    expect(await errorOf(await fetch(`${url}/v1/models/%E0%A4%A`))).toEqual([400, 'invalid_request_error', null, null])
  })

  test.each([
    ['no JSON', '{', null],
    ['no object', '[]', null],
    ['nothing', '', null],
    ['no messages', '{}', 'messages'],
    ['empty messages', '{"messages":[]}', 'messages'],
    ['messages that are no array', '{"messages":"hi"}', 'messages'],
    ['a message without a role', '{"messages":[{"content":"x"}]}', 'messages[0].role'],
  ])('%s is 400', async (_, body, param) => {
    const { post } = await serve()
    expect(await errorOf(await post('/v1/chat/completions', body))).toEqual([400, 'invalid_request_error', param, null])
  })

  test('a body that is not UTF-8 is 400', async () => {
    const { url } = await serve()
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      body: Uint8Array.of(0x7b, 0xff, 0x7d),
    })
    expect(await errorOf(response)).toEqual([400, 'invalid_request_error', null, null])
  })

  test('a body past 8 MiB is 413', async () => {
    const { post } = await serve()
    const body = `{"messages":[{"role":"user","content":"${'x'.repeat(8 * 1024 * 1024)}"}]}`
    expect(await errorOf(await post('/v1/chat/completions', body))).toEqual([
      413,
      'invalid_request_error',
      null,
      'body_too_large',
    ])
  })

  test('a prompt longer than the context is 400 context_length_exceeded', async () => {
    const { post } = await serve()
    const content = 'x'.repeat(5000)
    expect(await errorOf(await post('/v1/chat/completions', { messages: [{ role: 'user', content }] }))).toEqual([
      400,
      'invalid_request_error',
      'messages',
      'context_length_exceeded',
    ])
    expect(await errorOf(await post('/v1/completions', { prompt: content }))).toEqual([
      400,
      'invalid_request_error',
      'prompt',
      'context_length_exceeded',
    ])
  })

  test('an empty key is refused: it would let everybody in', () => {
    expect(() => createServer({ engine: new FakeEngine(), apiKey: '' })).toThrow('apiKey must not be empty')
  })

  test('a missing or wrong key is 401, and is never logged', async () => {
    let logged = ''
    const logger = pino({ level: 'trace' }, { write: (line: string) => void (logged += line) })
    const { url, post } = await serve({ apiKey: 'sesame', logger })
    const wrong: Record<string, string>[] = [
      {},
      { authorization: 'Bearer sesam' },
      { authorization: 'sesame' },
      { authorization: 'Bearer sesame2' },
    ]
    for (const headers of wrong) {
      expect(await errorOf(await fetch(`${url}/v1/models`, { headers }))).toEqual([
        401,
        'invalid_request_error',
        null,
        'invalid_api_key',
      ])
      expect(await errorOf(await post('/v1/chat/completions', '{', headers))).toEqual([
        401,
        'invalid_request_error',
        null,
        'invalid_api_key',
      ])
    }
    expect((await fetch(`${url}/v1/models`, { headers: { authorization: 'Bearer sesame' } })).status).toBe(200)
    expect((await fetch(`${url}/healthz`)).status).toBe(200)
    expect(logged).toContain('/v1/models')
    expect(logged).not.toContain('sesame')
  })
})

describe('the queue', () => {
  test('a full queue is 429 with Retry-After; who waits has a turn', async () => {
    const { speak, open, begun } = gated('a', 'b')
    let asked = 0
    const { chat } = await serve({
      engine: new FakeEngine(() => (asked++ === 0 ? speak() : 'second')),
      parallel: 1,
      maxQueue: 1,
    })
    const first = chat({})
    await begun
    const second = chat({})
    // The third is refused once the second is waiting; until then it would wait in its place.
    let third = await chat({}).catch(() => null)
    while (third === null) third = await chat({})
    expect([third.status, third.headers.get('retry-after')]).toEqual([429, '1'])
    expect(await errorOf(third)).toEqual([429, 'rate_limit_error', null, 'rate_limit_exceeded'])
    open()
    expect((await json(await first))['choices'][0].message.content).toBe('ab')
    expect((await json(await second))['choices'][0].message.content).toBe('second')
  })
})

describe('a client that goes away', () => {
  test.each([[true], [false]])('stops its generation (stream: %s)', async (stream) => {
    const { speak, begun } = gated('a', 'b')
    const { url, engine } = await serve({ engine: new FakeEngine(() => speak()), parallel: 1 })
    const controller = new AbortController()
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'x' }], stream })
    const request = fetch(`${url}/v1/chat/completions`, { method: 'POST', body, signal: controller.signal })
    await begun
    if (stream) await request
    controller.abort()
    if (!stream) await expect(request).rejects.toThrow()
    while (engine.aborted === 0) await new Promise((resolve) => setImmediate(resolve))
    expect(engine.running).toBe(0)
  })
})

describe('streams', () => {
  test('a slow reader slows its own generation down', async () => {
    let said = 0
    const endless = async function* () {
      while (said < 100_000) {
        said += 1
        yield 'x'.repeat(10_000)
        await new Promise((resolve) => setImmediate(resolve))
      }
    }
    const { url, chat } = await serve({
      engine: new FakeEngine((_request, prompt) => (prompt.includes('slow') ? endless() : 'quick'), 3),
    })
    const { port } = new URL(url)
    const socket: Socket = connect(Number(port), '127.0.0.1')
    await once(socket, 'connect')
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'slow' }], stream: true })
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    )
    await once(socket, 'readable')
    // Nobody reads on: the buffers fill and the generation comes to a stop, while others are served.
    let before = -1
    while (before !== said) {
      before = said
      for (let i = 0; i < 200; i += 1) await new Promise((resolve) => setImmediate(resolve))
    }
    expect(said).toBeLessThan(100_000)
    expect((await json(await chat({})))['choices'][0].message.content).toBe('quick')
    expect(said).toBe(before)
    socket.destroy()
  })

  test('are kept alive by a comment after 15 seconds of silence', async () => {
    const clock = new TestClock()
    const { speak, open } = gated('', 'late')
    const { chat } = await serve({ clock, engine: new FakeEngine(() => speak()) })
    const response = chat({ stream: true })
    while (![...clock.timers.values()].some(({ ms }) => ms === 15_000))
      await new Promise((resolve) => setImmediate(resolve))
    clock.fire(15_000)
    const reader = (await response).body?.getReader()
    let text = ''
    const decoder = new TextDecoder()
    while (!text.includes('\n\n')) text += decoder.decode((await reader?.read())?.value)
    expect(text).toBe(': ping\n\n')
    open()
    while (!text.includes('[DONE]')) text += decoder.decode((await reader?.read())?.value)
    expect(text).toContain('late')
    // The next request that is silent pings again, this one no more.
    expect([...clock.timers.values()].filter(({ ms }) => ms === 15_000)).toEqual([])
  })
})

describe('closing', () => {
  test('lets running requests end and refuses new ones', async () => {
    const { speak, open, begun } = gated('a', 'b')
    const { chat, server, url } = await serve({ engine: new FakeEngine(() => speak()) })
    // A connection that is kept open, as clients' pools do.
    const agentSocket = connect(Number(new URL(url).port), '127.0.0.1')
    await once(agentSocket, 'connect')
    const running = chat({})
    await begun
    agentSocket.write('GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n')
    await once(agentSocket, 'data')
    const closed = server.close()
    expect(server.close()).toBe(closed)
    open()
    expect((await json(await running))['choices'][0].message.content).toBe('ab')
    await closed
    await expect(fetch(`${url}/healthz`)).rejects.toThrow()
  })

  test('cuts what runs past the deadline', async () => {
    const clock = new TestClock()
    const { speak, begun } = gated('a', 'b')
    const { chat, server, engine } = await serve({ clock, engine: new FakeEngine(() => speak()) })
    const streamed = chat({ stream: true })
    await begun
    const closed = server.close({ deadlineMs: 5000 })
    clock.fire(5000)
    const all = (await events(await streamed)) as Record<string, Loose>[]
    expect(all.at(-1)).toEqual({
      error: { message: 'the server is shutting down', type: 'server_error', param: null, code: 'shutting_down' },
    })
    expect(engine.aborted).toBe(1)
    await closed
  })

  test('is not held up by a reader that takes nothing', async () => {
    const clock = new TestClock()
    const endless = async function* () {
      for (;;) {
        yield 'x'.repeat(10_000)
        await new Promise((resolve) => setImmediate(resolve))
      }
    }
    const { url, server, engine } = await serve({ clock, engine: new FakeEngine(() => endless()) })
    const socket = connect(Number(new URL(url).port), '127.0.0.1')
    await once(socket, 'connect')
    const body = JSON.stringify({ messages: [{ role: 'user', content: 'x' }], stream: true })
    socket.write(`POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`)
    await once(socket, 'readable')
    socket.on('error', () => undefined)
    const closed = server.close({ deadlineMs: 5000 })
    clock.fire(5000)
    while (![...clock.timers.values()].some(({ ms }) => ms === 1000)) {
      await new Promise((resolve) => setImmediate(resolve))
    }
    clock.fire(1000)
    await closed
    expect(engine.running).toBe(0)
  })
})

describe('the other routes', () => {
  test('models', async () => {
    const { url } = await serve({ alias: 'owner/name:q4' })
    const { object, data } = await json(await fetch(`${url}/v1/models`))
    expect(object).toBe('list')
    expect(data).toEqual([
      { id: 'owner/name:q4', object: 'model', created: expect.any(Number), owned_by: 'tinyllm-engine' },
    ])
    expect(await json(await fetch(`${url}/v1/models/owner/name:q4`))).toEqual(data[0])
  })

  test('health', async () => {
    const { url } = await serve()
    expect(await json(await fetch(`${url}/healthz`))).toEqual({ status: 'ok' })
    expect(await json(await fetch(`${url}/readyz`))).toEqual({ status: 'ready' })
  })

  test('tokenize and detokenize', async () => {
    const { post } = await serve()
    expect(await json(await post('/tokenize', { content: 'aé' }))).toEqual({ tokens: [97, 233] })
    expect(await json(await post('/detokenize', { tokens: [97, 233] }))).toEqual({ content: 'aé' })
    expect(await errorOf(await post('/tokenize', {}))).toEqual([400, 'invalid_request_error', 'content', null])
    const unknown = new FakeEngine()
    unknown.detokenize = () => {
      throw new TokenizerError('ERR_TINYLLM_TOKENIZER', 'token id 99 is not in the vocabulary')
    }
    const { post: postUnknown } = await serve({ engine: unknown })
    for (const response of [
      await post('/detokenize', { tokens: ['a'] }),
      await post('/detokenize', { tokens: [2 ** 32] }),
      await postUnknown('/detokenize', { tokens: [99] }),
    ]) {
      expect(await errorOf(response)).toEqual([400, 'invalid_request_error', 'tokens', null])
    }
  })

  test('completions, whole and streamed', async () => {
    const { post, engine } = await serve()
    const whole = await json(await post('/v1/completions', { prompt: 'once', logprobs: 1 }))
    expect(whole).toMatchObject({
      id: expect.stringMatching(/^cmpl-[0-9a-f]{16}$/),
      object: 'text_completion',
      choices: [
        {
          index: 0,
          text: 'Hello there.',
          finish_reason: 'stop',
          logprobs: { text_offset: [...'Hello there.'].map((_, i) => i) },
        },
      ],
      usage: { prompt_tokens: 4, completion_tokens: 13 },
    })
    expect(engine.asked[0]?.request.maxTokens).toBe(16)
    await post('/v1/completions', { prompt: [111, 104] })
    expect(engine.asked[1]?.prompt).toBe('oh')
    const all = (await events(
      await post('/v1/completions', { prompt: ['once'], stream: true, stream_options: { include_usage: true } }),
    )) as Record<string, Loose>[]
    expect(
      all
        .slice(0, -2)
        .map(({ choices }) => choices[0].text)
        .join(''),
    ).toBe('Hello there.')
    expect(all.at(-3)).toMatchObject({ choices: [{ finish_reason: 'stop' }], usage: null })
    expect(all.at(-2)).toMatchObject({ choices: [], usage: { total_tokens: 17 } })
    expect(all.at(-1)).toBe('[DONE]')
    expect(await errorOf(await post('/v1/completions', {}))).toEqual([400, 'invalid_request_error', 'prompt', null])
    expect(await errorOf(await post('/v1/completions', { prompt: 'x', echo: true }))).toEqual([
      422,
      'invalid_request_error',
      'echo',
      'unsupported_parameter',
    ])
    expect(
      await errorOf(await post('/v1/completions', { prompt: 'x', response_format: { type: 'json_object' } })),
    ).toEqual([422, 'invalid_request_error', 'response_format', 'unsupported_parameter'])
  })

  test('there is no CORS unless asked for', async () => {
    const headers = { origin: 'https://page.example' }
    const { url } = await serve()
    expect((await fetch(`${url}/healthz`, { headers })).headers.get('access-control-allow-origin')).toBeNull()
    const { url: open } = await serve({ cors: true, apiKey: 'k' })
    expect((await fetch(`${open}/healthz`, { headers })).headers.get('access-control-allow-origin')).toBe('*')
    const preflight = await fetch(`${open}/v1/chat/completions`, {
      method: 'OPTIONS',
      headers: { ...headers, 'access-control-request-headers': 'authorization' },
    })
    expect([preflight.status, preflight.headers.get('access-control-allow-headers')]).toEqual([204, 'authorization'])
    const { url: some } = await serve({ cors: ['https://page.example'] })
    expect((await fetch(`${some}/healthz`, { headers })).headers.get('access-control-allow-origin')).toBe(
      'https://page.example',
    )
    expect(
      (await fetch(`${some}/healthz`, { headers: { origin: 'https://other.example' } })).headers.get(
        'access-control-allow-origin',
      ),
    ).toBeNull()
  })

  test('listens on this machine only, unless told otherwise', async () => {
    const { url } = await serve()
    expect(new URL(url).hostname).toBe('127.0.0.1')
  })
})

describe('unknown fields', () => {
  test('full names them in a header; metadata is not unknown', async () => {
    const { chat } = await serve()
    const response = await chat({
      tools: [weather],
      mystery: 1,
      'a b\n': 2,
      user: 'u',
      store: true,
      metadata: {},
      service_tier: 'auto',
    })
    expect(response.status).toBe(200)
    expect(response.headers.get('x-tinyllm-ignored')).toBe('mystery, a%20b%0A')
  })

  test('strict passes over them in silence', async () => {
    const { chat } = await serve({ profile: 'openai-subset.v1' })
    const response = await chat({ mystery: 1, functions: [], logit_bias: 'x', modalities: ['audio'] })
    expect([response.status, response.headers.get('x-tinyllm-ignored')]).toEqual([200, null])
  })
})
