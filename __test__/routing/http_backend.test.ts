import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import {
  BackendError,
  httpBackend,
  routeSchema,
  runToolLoop,
  type HttpBackendOptions,
  type RouteSchema,
} from '../../src/routing/index.js'
import { memoryTools } from './examples.js'

/** One answer of the stand-in: it behaves as servers are known to, and remembers what it was asked. */
type Answer = (response: ServerResponse, body: Record<string, unknown>, request: IncomingMessage) => void

const whole =
  (content: string, extra: { finish?: string; completionTokens?: number } = {}): Answer =>
  (response) => {
    response.setHeader('content-type', 'application/json')
    response.end(
      JSON.stringify({
        choices: [{ message: { role: 'assistant', content }, finish_reason: extra.finish ?? 'stop' }],
        usage: { prompt_tokens: 10, completion_tokens: extra.completionTokens ?? 5 },
      }),
    )
  }

const streamed =
  (pieces: string[], completionTokens = 5): Answer =>
  (response) => {
    response.setHeader('content-type', 'text/event-stream; charset=utf-8')
    const send = (value: unknown): void => void response.write(`data: ${JSON.stringify(value)}\n\n`)
    send({ choices: [{ delta: { role: 'assistant', content: '' } }] })
    for (const content of pieces) send({ choices: [{ delta: { content } }] })
    send({ choices: [{ delta: {}, finish_reason: 'stop' }] })
    send({ choices: [], usage: { prompt_tokens: 3, completion_tokens: completionTokens } })
    response.end('data: [DONE]\n\n')
  }

const status =
  (
    code: number,
    body: unknown = { error: { message: `status ${code}` } },
    headers: Record<string, string> = {},
  ): Answer =>
  (response) => {
    response.writeHead(code, { 'content-type': 'application/json', ...headers })
    response.end(typeof body === 'string' ? body : JSON.stringify(body))
  }

let server: Server
let answers: Answer[] = []
let asked: { body: Record<string, unknown>; headers: IncomingMessage['headers'] }[] = []

beforeAll(async () => {
  server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      const body = JSON.parse(Buffer.concat(chunks).toString()) as Record<string, unknown>
      asked.push({ body, headers: request.headers })
      ;(answers.shift() ?? whole('{"tool":"none"}'))(response, body, request)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})
afterAll(() => new Promise((resolve) => server.close(resolve)))
beforeEach(() => {
  answers = []
  asked = []
})

const backend = (options: Partial<HttpBackendOptions> = {}) =>
  httpBackend({ baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`, model: 'm', ...options })
const hello = { messages: [{ role: 'user' as const, content: 'hi' }] }

describe('requests and replies', () => {
  test('a plain request carries only what was set', async () => {
    answers = [whole('hello')]
    const reply = await backend({ stream: false, apiKey: 'secret' }).complete({ ...hello, seed: 4 })
    expect(reply).toEqual({
      text: 'hello',
      toolCalls: [],
      cut: false,
      usage: { promptTokens: 10, completionTokens: 5 },
    })
    expect(asked[0]?.body).toEqual({ model: 'm', messages: hello.messages, seed: 4, stream: false })
    expect(asked[0]?.headers.authorization).toBe('Bearer secret')
  })

  test('a schema goes as response_format json_schema under its name, with its keys in their order', async () => {
    const schema = { type: 'object', properties: { b: {}, a: {} } }
    const settings = { jsonSchema: schema, jsonSchemaName: 'tool_route', maxTokens: 20, temperature: 0 }
    await backend({ settings }).complete(hello)
    expect(asked[0]?.body).toMatchObject({
      max_tokens: 20,
      temperature: 0,
      response_format: { type: 'json_schema', json_schema: { name: 'tool_route', strict: true, schema } },
    })
  })

  test('references inside a tool’s parameters go out pointing to where the parameters stand', async () => {
    const parameters = {
      type: 'object',
      $defs: { id: { type: 'string' } },
      properties: { id: { $ref: '#/$defs/id' } },
    }
    const jsonSchema = routeSchema([{ type: 'function', function: { name: 'read', parameters } }])
    await backend({ settings: { jsonSchema } }).complete(hello)
    const body = asked[0]?.body as { response_format: { json_schema: { schema: RouteSchema } } } | undefined
    expect(body?.response_format.json_schema.schema.anyOf[0]?.properties.arguments).toEqual({
      ...parameters,
      properties: { id: { $ref: '#/anyOf/0/properties/arguments/$defs/id' } },
    })
    expect(jsonSchema.anyOf[0]?.properties.arguments).toEqual(parameters)
  })

  test('a stream is read to its usage, piece by piece', async () => {
    answers = [streamed(['Hé', 'llo ', '😀'])]
    const pieces: string[] = []
    const reply = await backend().complete({ ...hello, onText: (piece) => pieces.push(piece) })
    expect(reply).toMatchObject({ text: 'Héllo 😀', cut: false, usage: { completionTokens: 5 } })
    expect(pieces).toEqual(['Hé', 'llo ', '😀'])
  })

  test('tool calls are put together from their deltas', async () => {
    const delta = (index: number, part: unknown, id?: string): string =>
      `data: ${JSON.stringify({ choices: [{ delta: { tool_calls: [{ index, id, function: part }] } }] })}\n\n`
    answers = [
      (response) => {
        response.setHeader('content-type', 'text/event-stream')
        response.write(delta(0, { name: 'a', arguments: '' }, 'c0') + delta(0, { arguments: '{"x"' }))
        response.write(delta(0, { arguments: ':1}' }) + delta(1, { name: 'b', arguments: '{}' }, 'c1'))
        response.end('data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n')
      },
    ]
    const reply = await backend().complete(hello)
    expect(reply.toolCalls).toEqual([
      { id: 'c0', type: 'function', function: { name: 'a', arguments: '{"x":1}' } },
      { id: 'c1', type: 'function', function: { name: 'b', arguments: '{}' } },
    ])
  })

  test('usage equal to the cap counts as cut even if the JSON closed', async () => {
    answers = [
      whole('{"tool":"none"}', { completionTokens: 20 }),
      streamed(['{"tool":"none"}'], 20),
      whole('x', { finish: 'length' }),
    ]
    for (const stream of [false, true, false]) {
      expect(await backend({ stream, settings: { maxTokens: 20 } }).complete(hello)).toMatchObject({ cut: true })
    }
  })

  test.each([429, 503])('%i with Retry-After is waited for and asked again', async (code) => {
    answers = [
      status(code, undefined, { 'retry-after': '0' }),
      status(code, undefined, { 'retry-after': new Date(0).toUTCString() }),
      whole('ok'),
    ]
    expect(await backend({ stream: false }).complete(hello)).toMatchObject({ text: 'ok' })
    expect(asked).toHaveLength(3)
  })

  test('a wait longer than the bound, or one retry too many, is an error with the server’s own message', async () => {
    answers = [status(429, { error: { message: 'busy' } }, { 'retry-after': '3600' })]
    await expect(backend().complete(hello)).rejects.toMatchObject({
      status: 429,
      message: expect.stringContaining('busy'),
    })
    answers = Array.from({ length: 3 }, () => status(503, undefined, { 'retry-after': '0' }))
    await expect(backend({ maxRetries: 2 }).complete(hello)).rejects.toMatchObject({ status: 503 })
    expect(asked).toHaveLength(4)
  })

  test.each<[string, Answer, RegExp]>([
    ['a schema refused with 400', status(400, { error: { message: 'unsupported schema' } }), /400: unsupported schema/],
    ['a proxy’s page', status(502, '<html>bad gateway</html>'), /502: <html>/],
    ['an answer that is no JSON', (response) => response.end('hello'), /not JSON/],
    ['an answer without choices', (response) => response.end('{"choices":[]}'), /choices\[0\]/],
    ['a connection that is dropped', (response) => response.destroy(), /could not be reached/],
    [
      'a stream that ends early',
      (response) => {
        response.setHeader('content-type', 'text/event-stream')
        response.end('data: {"choices":[{"delta":{"content":"half"}}]}\n\n')
      },
      /before its last chunk/,
    ],
    [
      'an error in mid-stream',
      (response) => {
        response.setHeader('content-type', 'text/event-stream')
        response.end('data: {"error":{"message":"out of memory"}}\n\n')
      },
      /out of memory/,
    ],
  ])('%s is a BackendError', async (_what, answer, message) => {
    answers = [answer]
    const error = await backend()
      .complete(hello)
      .catch((caught: unknown) => caught)
    expect(error).toBeInstanceOf(BackendError)
    expect((error as Error).message).toMatch(message)
  })

  test('an abort ends the request, also in mid-stream, and the server sees it', async () => {
    let closed: Promise<void> | undefined
    answers = [
      (response, _body, request) => {
        closed = new Promise((resolve) => request.socket.on('close', () => resolve()))
        response.setHeader('content-type', 'text/event-stream')
        response.write('data: {"choices":[{"delta":{"content":"half"}}]}\n\n')
      },
    ]
    const controller = new AbortController()
    const reply = backend().complete({ ...hello, signal: controller.signal, onText: () => controller.abort() })
    await expect(reply).rejects.toMatchObject({ name: 'AbortError' })
    await closed
  })

  test('a reply that never comes runs into the timeout', async () => {
    answers = [() => undefined]
    await expect(backend({ timeoutMs: 50 }).complete(hello)).rejects.toThrow(/no whole reply within 50 ms/)
  })
})

describe('a server that drops the schema silently is caught', () => {
  const search = '{"tool":"memory_search","arguments":{"query":"latch"}}'
  const loop = (settings = {}) =>
    runToolLoop({
      backend: backend({ stream: false, settings }),
      provider: { toolsForLlm: () => memoryTools, callTool: () => 'found' },
      messages: [{ role: 'user', content: 'Where is the latch?' }],
    }).final()

  test.each<[string, Answer, RegExp]>([
    ['prose', whole('Sure! I will search for it.'), /not a JSON object/],
    [
      'valid JSON with an unknown tool',
      whole('{"tool":"web_search","arguments":{}}'),
      /no tool is called "web_search"/,
    ],
    ['wrong arguments', whole('{"tool":"memory_search","arguments":{"q":"x"}}'), /do not fit its parameters/],
    ['a reply cut at the cap', whole('{"tool":"memory_search","arg', { finish: 'length' }), /cut at its token budget/],
  ])('%s: every attempt fails, the routing phase ends and the result says so', async (_what, answer, error) => {
    answers = [answer, answer, answer, answer, whole('I do not know.')]
    const result = await loop()
    expect(result).toMatchObject({ ended: 'route_failed', calls: 0, text: 'I do not know.' })
    expect(result.error).toMatch(error)
    expect(asked.map(({ body }) => body.seed)).toEqual([0, 1, 2, 3, 0])
  })

  test('one good attempt is enough', async () => {
    answers = [whole('Sure!'), whole(search), whole('{"tool":"none"}'), whole('By the door.')]
    expect(await loop()).toMatchObject({ ended: 'none', calls: 1, text: 'By the door.' })
  })

  test('a schema refused with 400 ends the run with the server’s message', async () => {
    answers = [status(400, { error: { message: 'anyOf is not supported' } })]
    await expect(loop()).rejects.toMatchObject({
      status: 400,
      message: expect.stringContaining('anyOf is not supported'),
    })
  })
})
