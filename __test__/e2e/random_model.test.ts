/**
 * A model whose weights are random says anything at all; what it says under a grammar is valid all the same. These go
 * the whole way: HTTP, validation, rendering, the native engine, the parser, the wire.
 */
import OpenAI from 'openai'
import { load, type Engine } from '../../src/index.js'
import { chat, tool } from '../../src/chat/index.js'
import { createServer, type Server, type ServerOptions } from '../../src/server/index.js'
import { parseToolRequest } from '../../src/tools/request.js'
import { renderPrompt } from '../../src/tools/render.js'
import { events, json, type Loose } from '../server/support.js'
import { tinyModel } from './tiny_model.js'

let engine: Engine
const servers: Server[] = []

beforeAll(async () => {
  engine = await load(tinyModel())
  // Its writer may have to be compiled first.
}, 600_000)

afterAll(async () => {
  await Promise.all(servers.map((server) => server.close({ deadlineMs: 0 })))
  await engine.close()
})

const live = new Map<string, Promise<string>>()

function url(profile: NonNullable<ServerOptions['profile']> = 'full'): Promise<string> {
  const started =
    live.get(profile) ??
    (async () => {
      const server = createServer({ engine, profile, alias: 'random' })
      servers.push(server)
      return (await server.listen({ port: 0 })).url
    })()
  live.set(profile, started)
  return started
}

async function post(body: Record<string, unknown>, profile?: NonNullable<ServerOptions['profile']>): Promise<Response> {
  return await fetch(`${await url(profile)}/v1/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ messages, ...body }),
  })
}

const messages = [{ role: 'user', content: 'What is the weather in Paris?' }]
const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}
const find = {
  type: 'function',
  function: {
    name: 'find',
    parameters: {
      type: 'object',
      properties: { n: { type: 'integer' }, exact: { type: 'boolean' } },
      required: ['exact'],
    },
  },
}
const named = { type: 'function', function: { name: 'get_weather' } }

/** Ends strings soon: a random model would write long ones. */
const SHORT = { max_tokens: 300, close_within_budget: true }

function isWeather(text: string): boolean {
  const args = JSON.parse(text) as Record<string, unknown>
  return Object.keys(args).join() === 'city' && typeof args['city'] === 'string'
}

function isFind(text: string): boolean {
  const { n = 1, exact, ...rest } = JSON.parse(text) as Record<string, unknown>
  return Number.isInteger(n) && typeof exact === 'boolean' && Object.keys(rest).length === 0
}

test('forced_call_from_a_random_model_is_valid', async () => {
  const seen = new Set<string>()
  for (let seed = 0; seed < 40; seed += 1) {
    const profile = seed % 2 === 0 ? 'full' : 'openai-subset.v1'
    const { choices } = await json(
      await post({ tools: [weather, find], tool_choice: named, seed, temperature: 1, ...SHORT }, profile),
    )
    const [{ message, finish_reason }] = choices
    if (finish_reason === 'length' || message.tool_calls?.[0].truncated) {
      // Only strict has no way to end within a budget.
      expect(profile).toBe('openai-subset.v1')
      continue
    }
    expect([message.content, message.tool_calls.length, finish_reason]).toEqual([null, 1, 'tool_calls'])
    expect(message.tool_calls[0].function.name).toBe('get_weather')
    expect(isWeather(message.tool_calls[0].function.arguments)).toBe(true)
    seen.add(message.tool_calls[0].function.arguments)
  }
  expect(seen.size).toBeGreaterThan(20)
})

describe('serve_loop_routes_tool_calls', () => {
  test('a forced call comes back, from the prompt renderPrompt builds', async () => {
    const { choices, usage } = await json(await post({ tools: [weather], tool_choice: named, seed: 3, ...SHORT }))
    expect(choices[0].finish_reason).toBe('tool_calls')
    expect(isWeather(choices[0].message.tool_calls[0].function.arguments)).toBe(true)
    const { tools } = parseToolRequest(JSON.stringify({ tools: [weather] }))
    const { ids, text } = await renderPrompt(engine, messages, tools)
    expect(text).toContain('get_weather')
    expect(usage.prompt_tokens).toBe(ids.length)
    expect(usage.total_tokens).toBe(usage.prompt_tokens + usage.completion_tokens)
  })

  test('streamed deltas fold to the same call', async () => {
    for (let seed = 0; seed < 5; seed += 1) {
      const request = { tools: [weather, find], tool_choice: 'required', seed, ...SHORT }
      const whole = await json(await post(request))
      const all = await events(await post({ ...request, stream: true }))
      expect(all.pop()).toBe('[DONE]')
      const calls: { name: string; arguments: string }[] = []
      for (const { choices } of all as Record<string, Loose>[]) {
        for (const part of choices[0].delta.tool_calls ?? []) {
          const { name, arguments: fragment } = part.function
          if (name !== undefined) calls[part.index] = { name, arguments: '' }
          const call = calls[part.index]
          if (call) call.arguments += fragment
        }
      }
      expect(calls).toEqual(whole['choices'][0].message.tool_calls.map((call: Loose) => call.function))
      expect(calls.length).toBeGreaterThanOrEqual(1)
      expect(calls.length).toBeLessThanOrEqual(4)
      for (const call of calls) expect((call.name === 'find' ? isFind : isWeather)(call.arguments)).toBe(true)
    }
  })

  test('tool_choice none calls nothing', async () => {
    const { choices } = await json(await post({ tools: [weather], tool_choice: 'none', seed: 1, max_tokens: 20 }))
    expect(choices[0].message).not.toHaveProperty('tool_calls')
    expect(typeof choices[0].message.content).toBe('string')
  })

  test('errors of the tool fields keep the shape of OpenAI', async () => {
    const bad: [Record<string, unknown>, number, string][] = [
      [{ tools: 1 }, 400, 'tools'],
      [{ tools: [weather], tool_choice: 'any' }, 400, 'tool_choice'],
      [
        { tools: [{ ...weather, function: { name: 'f', parameters: { type: 'object', patternProperties: {} } } }] },
        422,
        'tools[0].function.parameters',
      ],
      [{ response_format: { type: 'xml' } }, 422, 'response_format'],
    ]
    for (const [fields, status, param] of bad) {
      for (const profile of ['full', 'openai-subset.v1'] as const) {
        for (const stream of [true, false]) {
          const response = await post({ ...fields, stream }, profile)
          expect(response.status).toBe(status)
          expect(await json(response)).toEqual({
            error: {
              message: expect.any(String),
              type: 'invalid_request_error',
              param,
              code: status === 422 ? 'unsupported_parameter' : null,
            },
          })
        }
      }
    }
  })
})

describe('the full profile', () => {
  test('in auto mode a call that is begun is finished, up to four of them when parallel', async () => {
    // `<tool_call>` is one token of this vocabulary: with this bias it and the separator come wherever they may.
    const [opener, ...more] = engine.tokenize('<tool_call>')
    expect(more).toEqual([])
    const [newline] = engine.tokenize('\n')
    const logit_bias = { [String(opener)]: 100, [String(newline)]: 80 }
    const request = { tools: [find], logit_bias, seed: 5, max_tokens: 400 }
    const { choices } = await json(await post(request))
    expect(choices[0].message.tool_calls).toHaveLength(4)
    expect(choices[0].message.content).toBeNull()
    const single = await json(await post({ ...request, parallel_tool_calls: false }))
    expect(single['choices'][0].message.tool_calls).toHaveLength(1)
    for (const call of [...choices[0].message.tool_calls, ...single['choices'][0].message.tool_calls]) {
      expect(isFind(call.function.arguments)).toBe(true)
    }
  })

  test('an answer under a schema is valid, also beside tools', async () => {
    const response_format = {
      type: 'json_schema',
      json_schema: {
        name: 'n',
        schema: { type: 'object', properties: { n: { type: 'integer', minimum: 3, maximum: 12 } }, required: ['n'] },
      },
    }
    for (let seed = 0; seed < 6; seed += 1) {
      for (const tools of [undefined, [find]]) {
        const { choices } = await json(await post({ response_format, tools, seed, ...SHORT }))
        const { content, tool_calls = [] } = choices[0].message
        for (const call of tool_calls) expect(isFind(call.function.arguments)).toBe(true)
        if (tool_calls.length > 0) continue
        const { n } = JSON.parse(content) as { n: number }
        expect(n >= 3 && n <= 12).toBe(true)
      }
    }
  })

  test('json_object is an object', async () => {
    const { choices } = await json(await post({ response_format: { type: 'json_object' }, seed: 2, ...SHORT }))
    expect(typeof JSON.parse(choices[0].message.content)).toBe('object')
  })

  test('only allowed tools are called', async () => {
    const tool_choice = {
      type: 'allowed_tools',
      allowed_tools: { mode: 'required', tools: [{ type: 'function', function: { name: 'find' } }] },
    }
    for (let seed = 0; seed < 4; seed += 1) {
      const { choices } = await json(await post({ tools: [weather, find], tool_choice, seed, ...SHORT }))
      for (const call of choices[0].message.tool_calls) expect(call.function.name).toBe('find')
    }
  })

  test('choices of one request differ, and the first is the answer to the request alone', async () => {
    const request = { seed: 11, max_tokens: 12, logprobs: true, top_logprobs: 2 }
    const { choices } = await json(await post({ ...request, n: 3 }))
    const alone = await json(await post(request))
    expect(choices[0]).toEqual(alone['choices'][0])
    expect(new Set(choices.map((choice: Loose) => choice.message.content)).size).toBe(3)
    for (const { logprob, top_logprobs, bytes } of choices[0].logprobs.content) {
      expect(logprob).toBeLessThanOrEqual(0)
      expect(top_logprobs).toHaveLength(2)
      expect(bytes.length).toBeGreaterThan(0)
    }
  })
})

test('log-probabilities tell the mass that the mask removed, and the answer is the same without them', async () => {
  const request = { tools: [find], tool_choice: 'required', parallel_tool_calls: false, seed: 4, ...SHORT }
  const { choices } = await json(await post({ ...request, logprobs: true, top_logprobs: 1 }))
  const plain = await json(await post(request))
  expect(choices[0].message.tool_calls[0].function).toEqual(plain['choices'][0].message.tool_calls[0].function)
  const tokens = choices[0].logprobs.content as Loose[]
  expect(tokens.map(({ token }) => token).join('')).toMatch(/^<tool_call>.*<\/tool_call>$/)
  for (const { removed_mass, logprob, bytes } of tokens) {
    expect(bytes.length).toBeGreaterThan(0)
    expect(logprob).toBeLessThanOrEqual(0)
    expect(removed_mass >= 0 && removed_mass <= 1).toBe(true)
  }
  // First the call's opener must begin, of which a random model thinks little.
  expect(tokens[0].removed_mass).toBeGreaterThan(0.8)
  const free = await json(await post({ max_tokens: 3, seed: 1, logprobs: true }))
  for (const token of free['choices'][0].logprobs.content) expect(token).not.toHaveProperty('removed_mass')
})

test('the openai client: a streamed chat equals the whole one with the same seed', async () => {
  const openai = new OpenAI({ baseURL: `${await url()}/v1`, apiKey: 'none' })
  const request = { model: 'random', messages: [{ role: 'user' as const, content: 'Hi' }], seed: 7, max_tokens: 40 }
  const whole = await openai.chat.completions.create(request)
  let text = ''
  for await (const chunk of await openai.chat.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? ''
  }
  expect(text).toBe(whole.choices[0]?.message.content)
})

test('in process the same: a typed call', async () => {
  const findTool = tool({ name: 'find', parameters: find.function.parameters })
  const { calls } = await chat(engine, {
    messages: [{ role: 'user', content: 'Find two' }],
    tools: [findTool],
    toolChoice: { name: 'find' },
    temperature: 1,
    seed: 1,
    maxTokens: 200,
  })
  expect(calls).toHaveLength(1)
  expect(isFind(calls[0]?.argumentsText ?? '')).toBe(true)
})

test('completions: a text prompt is read with its control strings, and one that does not fit is refused as such', async () => {
  const complete = async (body: Record<string, unknown>) =>
    await fetch(`${await url()}/v1/completions`, { method: 'POST', body: JSON.stringify(body) })
  const prompt = '<|im_start|>abc'
  const { usage } = await json(await complete({ prompt, max_tokens: 1_000_000, logit_bias: ended(), temperature: 0 }))
  expect(usage.prompt_tokens).toBe(engine.tokenize(prompt, { special: true }).length)
  // Long enough to be tokenized off the thread, and too long for the context.
  const response = await complete({ prompt: 'abc '.repeat(20_000) })
  expect(response.status).toBe(400)
  expect((await json(response))['error']).toMatchObject({ param: 'prompt', code: 'context_length_exceeded' })
})

/** Ends the answer at once. */
function ended(): Record<string, number> {
  return Object.fromEntries(engine.info.endTokenIds.map((id) => [id, 100]))
}
