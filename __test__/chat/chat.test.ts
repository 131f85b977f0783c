import { z } from 'zod'
import { chat, runTools, streamChat, tool, type FromJsonSchema, type TypedCall } from '../../src/chat/index.js'
import { GrammarError, InvalidRequestError } from '../../src/errors.js'
import type { ToolEvent } from '../../src/tools/events.js'
import { FakeEngine, type Script } from '../server/fake_engine.js'
import { call } from '../server/support.js'

const hi = [{ role: 'user', content: 'hi' }] as const

const weather = tool({
  name: 'get_weather',
  description: 'Weather now',
  parameters: {
    type: 'object',
    properties: {
      city: { type: 'string' },
      unit: { enum: ['c', 'f'] },
      days: { type: 'array', items: { type: 'integer' } },
    },
    required: ['city'],
  },
})
const add = tool({ name: 'add', parameters: z.object({ a: z.number(), b: z.number().optional() }) })

/** Fails to compile unless the types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
const same = <T extends true>(value?: T) => value

describe('types', () => {
  test('arguments are typed from JSON Schema given as const, and from zod', () => {
    type Weather = TypedCall<typeof weather>['arguments']
    same<Same<Weather, { readonly city: string; readonly unit?: 'c' | 'f'; readonly days?: number[] }>>()
    same<Same<TypedCall<typeof add>['arguments'], { a: number; b?: number | undefined }>>()
    same<Same<TypedCall<typeof weather | typeof add>['name'], 'get_weather' | 'add'>>()
    same<Same<FromJsonSchema<{ type: ['string', 'null'] }>, string | null>>()
    same<Same<FromJsonSchema<{ anyOf: [{ type: 'integer' }, { const: 'x' }] }>, number | 'x'>>()
  })
})

describe('chat', () => {
  test('answers with text', async () => {
    const result = await chat(new FakeEngine(), { messages: hi })
    expect(result).toEqual({
      content: 'Hello there.',
      calls: [],
      message: { role: 'assistant', content: 'Hello there.' },
      finishReason: 'stop',
      usage: { promptTokens: 20, completionTokens: 13, totalTokens: 33, cachedTokens: 0 },
    })
  })

  test('answers with typed calls, under the grammar of the choice', async () => {
    const engine = new FakeEngine(() => `${call('{"city":"Paris"}')}\n${call('{"a":1}', 'add')}`)
    const { calls, content, finishReason, message } = await chat(engine, {
      messages: hi,
      tools: [weather, add],
      toolChoice: 'required',
    })
    expect(content).toBeNull()
    expect(finishReason).toBe('tool_calls')
    expect(calls.map(({ name, arguments: args, argumentsText }) => [name, args, argumentsText])).toEqual([
      ['get_weather', { city: 'Paris' }, '{"city":"Paris"}'],
      ['add', { a: 1 }, '{"a":1}'],
    ])
    expect(message.tool_calls?.map(({ id }) => id)).toEqual(calls.map(({ id }) => id))
    expect(engine.asked[0]?.request.grammar?.description).toMatchObject({ type: 'repeat', min: 1, max: 4 })
    expect(engine.asked[0]?.request.temperature).toBeUndefined()
    expect(engine.asked[0]?.prompt).toContain('"name":"get_weather","description":"Weather now"')
  })

  test('each choice has its grammar', async () => {
    const grammarOf = async (options: object) => {
      const engine = new FakeEngine(() => '{}')
      await chat(engine, { messages: hi, tools: [weather, add], ...options })
      return engine.asked[0]?.request.grammar?.description
    }
    expect(await grammarOf({ toolChoice: 'none' })).toBeUndefined()
    expect(await grammarOf({})).toMatchObject({ type: 'trigger' })
    expect(await grammarOf({ toolChoice: { name: 'add' } })).toMatchObject({ type: 'sequence' })
    expect(JSON.stringify(await grammarOf({ toolChoice: { allowed: ['add'], mode: 'required' } }))).not.toContain(
      'get_weather',
    )
    expect(await grammarOf({ toolChoice: 'none', responseFormat: 'json' })).toMatchObject({ type: 'json_object' })
    expect(await grammarOf({ tools: [], responseFormat: { schema: z.object({ ok: z.boolean() }) } })).toMatchObject({
      type: 'schema',
    })
  })

  test('a call the budget cut is not among the calls', async () => {
    const engine = new FakeEngine(() => ({
      text: `${call('{"city":"Rome"}')}\n<tool_call>{"name":"add","arguments":{"a":`,
      finishReason: 'length',
    }))
    const { calls, cutCall, finishReason } = await chat(engine, { messages: hi, tools: [weather, add] })
    expect(calls.map(({ name }) => name)).toEqual(['get_weather'])
    expect(cutCall).toMatchObject({ name: 'add', arguments: '{"a":', truncated: true })
    expect(finishReason).toBe('length')
  })

  test('what is wrong is an error of the package that names the place', async () => {
    const engine = new FakeEngine()
    const twice = chat(engine, { messages: hi, tools: [weather, weather] })
    await expect(twice).rejects.toThrow(InvalidRequestError)
    await expect(twice).rejects.toMatchObject({ details: { param: 'tools[1].function.name' } })
    const unserved = chat(engine, {
      messages: hi,
      tools: [tool({ name: 'f', parameters: { type: 'object', patternProperties: {} } })],
    })
    await expect(unserved).rejects.toThrow(GrammarError)
    await expect(chat(engine, { messages: 'hi' as never })).rejects.toMatchObject({ details: { param: 'messages' } })
  })

  test('a member nobody knows is refused by name, not passed over', async () => {
    const asked = chat(new FakeEngine(), { messages: hi, maxToken: 5 } as never)
    await expect(asked).rejects.toMatchObject({ name: 'InvalidRequestError', details: { param: 'maxToken' } })
  })

  test('a stream that failed says so again', async () => {
    const stream = streamChat(new FakeEngine(() => new Error('broken')), { messages: hi })
    const iterate = async () => {
      for await (const event of stream) void event
    }
    await expect(iterate()).rejects.toThrow('broken')
    await expect(stream.final()).rejects.toThrow('broken')
  })

  test('a stream says what the answer is made of', async () => {
    const text = `Sure. ${call('{"city":"Paris"}')}`
    const stream = streamChat(new FakeEngine(() => text), { messages: hi, tools: [weather] })
    const events: ToolEvent[] = []
    for await (const event of stream) events.push(event)
    expect(events.filter(({ type }) => type === 'callStart')).toHaveLength(1)
    const fragments = events.flatMap((event) => (event.type === 'arguments' ? [event.fragment] : []))
    expect(fragments.length).toBeGreaterThan(1)
    expect(fragments.join('')).toBe('{"city":"Paris"}')
    expect((await stream.final()).calls[0]?.arguments).toEqual({ city: 'Paris' })
  })

  test('leaving a stream stops the generation', async () => {
    const engine = new FakeEngine(() => 'x'.repeat(1000))
    for await (const event of streamChat(engine, { messages: hi })) {
      expect(event.type).toBe('content')
      break
    }
    expect(engine.running).toBe(0)
  })
})

describe('runTools', () => {
  const results = /<tool_response>/g
  /** Calls `texts` one answer after the other, then says what it was told. */
  const turns =
    (...texts: string[]): Script =>
    (_request, prompt) =>
      texts[[...prompt.matchAll(/\[assistant\](?=.)/g)].length] ??
      `done after ${[...prompt.matchAll(results)].length - 1} results`

  test('runs what is called, tells the results, and goes on until an answer', async () => {
    const ran: string[] = []
    const runnable = tool({ ...weather, execute: ({ city }) => (ran.push(city), { sky: `clear in ${city}` }) })
    const engine = new FakeEngine(
      turns(`${call('{"city":"Paris"}')}\n${call('{"city":"Rome"}')}`, call('{"city":"Oslo"}')),
    )
    const { answer, ended, messages, turns: count, usage } = await runTools(engine, { messages: hi, tools: [runnable] })
    expect(ran).toEqual(['Paris', 'Rome', 'Oslo'])
    expect([answer.content, ended, count]).toEqual(['done after 3 results', 'answer', 3])
    expect(messages.map(({ role }) => role)).toEqual([
      'user',
      'assistant',
      'tool',
      'tool',
      'assistant',
      'tool',
      'assistant',
    ])
    expect(messages[2]).toEqual({
      role: 'tool',
      tool_call_id: answer === null ? '' : messages[1]?.tool_calls?.[0]?.id,
      content: '{"sky":"clear in Paris"}',
    })
    expect(usage.completionTokens).toBeGreaterThan(60)
    expect(engine.asked[1]?.prompt).toContain('<tool_response>{"sky":"clear in Paris"}</tool_response>')
  })

  test('a forced choice holds for the first turn only', async () => {
    const runnable = tool({ ...weather, execute: () => 'fine' })
    const engine = new FakeEngine(turns(call('{"city":"Paris"}')))
    await runTools(engine, { messages: hi, tools: [runnable], toolChoice: { name: 'get_weather' } })
    expect(engine.asked.map(({ request }) => request.grammar?.description.type)).toEqual(['sequence', 'trigger'])
  })

  test('ends at its bounds', async () => {
    const runnable = tool({ ...weather, execute: () => 'fine' })
    const endless = () => new FakeEngine(() => call('{"city":"Paris"}'))
    const run = (options: object, engine = endless()) =>
      runTools(engine, { messages: hi, tools: [runnable], ...options })
    expect(await run({ maxTurns: 3 })).toMatchObject({ ended: 'turns', turns: 3 })
    expect(await run({ maxCalls: 2 })).toMatchObject({ ended: 'calls', turns: 3 })
    const cut = new FakeEngine(() => ({
      text: '<tool_call>{"name":"get_weather","arguments":{"ci',
      finishReason: 'length',
    }))
    expect(await run({}, cut)).toMatchObject({ ended: 'cut', turns: 1 })
    await expect(run({ maxTurns: 0 })).rejects.toThrow(InvalidRequestError)
  })

  test('an abort stops it, and what a function throws ends it', async () => {
    const controller = new AbortController()
    const stopper = tool({ ...weather, execute: () => (controller.abort(), 'fine') })
    const engine = new FakeEngine(() => call('{"city":"Paris"}'))
    await expect(runTools(engine, { messages: hi, tools: [stopper], signal: controller.signal })).rejects.toMatchObject(
      { name: 'AbortError' },
    )
    const thrower = tool({
      ...weather,
      execute: () => {
        throw new RangeError('no such city')
      },
    })
    await expect(runTools(engine, { messages: hi, tools: [thrower] })).rejects.toThrow('no such city')
  })

  test('calls run one by one when parallel calls are off', async () => {
    let open = 0
    let most = 0
    const runnable = tool({
      ...weather,
      execute: async () => {
        most = Math.max(most, ++open)
        await Promise.resolve()
        open -= 1
        return 'fine'
      },
    })
    const two = `${call('{"city":"Paris"}')}\n${call('{"city":"Rome"}')}`
    await runTools(new FakeEngine(turns(two)), { messages: hi, tools: [runnable], parallelToolCalls: false })
    expect(most).toBe(1)
    await runTools(new FakeEngine(turns(two)), { messages: hi, tools: [runnable] })
    expect(most).toBe(2)
  })
})
