/** The default model behind the server, asked by the official client. */
import OpenAI from 'openai'
import { load, type Engine } from '../../src/index.js'
import { createServer, type Server } from '../../src/server/index.js'

let engine: Engine
let server: Server
let openai: OpenAI

beforeAll(async () => {
  engine = await load(process.env['TINYLLM_TEST_SMOLLM2'] ?? 'smollm2-135m-instruct', { contextLength: 1024 })
  server = createServer({ engine, alias: 'small' })
  const { url } = await server.listen({ port: 0 })
  openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
})

afterAll(async () => {
  await server.close({ deadlineMs: 0 })
  await engine.close()
})

const model = 'small'
const messages = [{ role: 'user' as const, content: 'What is the weather in Paris?' }]
const weather = {
  type: 'function' as const,
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string', maxLength: 20 } }, required: ['city'] },
  },
}

test('a plain chat, and a streamed one that equals it with the same seed', async () => {
  const request = {
    model,
    messages: [{ role: 'user' as const, content: 'Name three fruits.' }],
    seed: 42,
    max_tokens: 24,
    stop: ['\n\n'],
  }
  const whole = await openai.chat.completions.create(request)
  expect(whole.choices[0]?.message.content?.length).toBeGreaterThan(5)
  let text = ''
  let reason: string | null | undefined
  const stream = await openai.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  })
  let usage: OpenAI.CompletionUsage | null | undefined
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? ''
    reason = chunk.choices[0]?.finish_reason ?? reason
    usage = chunk.usage
  }
  expect(text).toBe(whole.choices[0]?.message.content)
  expect(reason).toBe(whole.choices[0]?.finish_reason)
  expect(usage?.total_tokens).toBe(whole.usage?.total_tokens)
})

test('a forced call, whole and streamed', async () => {
  const request = {
    model,
    messages,
    tools: [weather],
    tool_choice: { type: 'function' as const, function: { name: 'get_weather' } },
    temperature: 0,
    max_tokens: 60,
  }
  const whole = await openai.chat.completions.create(request)
  const [call] = whole.choices[0]?.message.tool_calls ?? []
  if (call?.type !== 'function') throw new Error('no call')
  expect(call.function.name).toBe('get_weather')
  expect(Object.keys(JSON.parse(call.function.arguments) as object)).toEqual(['city'])
  expect(whole.choices[0]?.finish_reason).toBe('tool_calls')
  const streamed = await openai.chat.completions.stream(request).finalChatCompletion()
  expect(
    streamed.choices[0]?.message.tool_calls?.map((one) => one.type === 'function' && one.function.arguments),
  ).toEqual([call.function.arguments])
})

test('in auto mode a model may answer with text, and no markup is in it', async () => {
  const { choices } = await openai.chat.completions.create({
    model,
    messages,
    tools: [weather],
    temperature: 0,
    max_tokens: 24,
  })
  const { content, tool_calls = [] } = choices[0]?.message ?? {}
  if (tool_calls.length === 0) expect(content).not.toMatch(/tool_call/)
})
