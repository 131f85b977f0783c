/**
 * The clients people use, against a live server: each makes a forced call, a streamed call, a required parallel call
 * and a request that is refused. The engine says a script here; what a model says is in the tests beside this one.
 */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import type { AIMessageChunk } from '@langchain/core/messages'
import { ChatOpenAI } from '@langchain/openai'
import { generateText, jsonSchema, streamText, tool, type ToolSet } from 'ai'
import OpenAI, { BadRequestError, UnprocessableEntityError } from 'openai'
import { FakeEngine } from '../server/fake_engine.js'
import { call, closeAll, serve, weather } from '../server/support.js'

afterEach(closeAll)

const paris = call('{"city":"Paris"}')
const both = `${paris}\n${call('{"city":"Rome"}')}`
const named = { type: 'function' as const, function: { name: 'get_weather' } }
const messages = [{ role: 'user' as const, content: 'Weather in Paris?' }]
const unserved = {
  type: 'function' as const,
  function: { name: 'f', parameters: { type: 'object', patternProperties: {} } },
}

/** Says what the request's grammar asks for: calls under a grammar, text otherwise. */
const live = async (said: string) => {
  const { url } = await serve({ engine: new FakeEngine(() => said, 4) })
  return `${url}/v1`
}

describe('openai', () => {
  const client = async (said: string) => new OpenAI({ baseURL: await live(said), apiKey: 'none', maxRetries: 0 })
  const model = 'fake-model'

  test('a chat, whole and streamed', async () => {
    const openai = await client('Hello there.')
    const whole = await openai.chat.completions.create({ model, messages })
    expect(whole.choices[0]?.message.content).toBe('Hello there.')
    let text = ''
    for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? ''
    }
    expect(text).toBe('Hello there.')
  })

  test('a forced call', async () => {
    const { choices } = await (
      await client(paris)
    ).chat.completions.create({ model, messages, tools: [weather], tool_choice: named })
    expect(choices[0]).toMatchObject({
      finish_reason: 'tool_calls',
      message: {
        content: null,
        tool_calls: [{ type: 'function', function: { name: 'get_weather', arguments: '{"city":"Paris"}' } }],
      },
    })
  })

  test('a streamed call', async () => {
    const stream = (await client(`Sure.${paris}`)).chat.completions.stream({ model, messages, tools: [weather] })
    const fragments: string[] = []
    stream.on('tool_calls.function.arguments.delta', ({ arguments_delta }) => fragments.push(arguments_delta))
    const { choices, usage } = await stream.finalChatCompletion()
    expect(choices[0]?.message).toMatchObject({
      content: 'Sure.',
      tool_calls: [{ function: { arguments: '{"city":"Paris"}' } }],
    })
    expect(fragments.length).toBeGreaterThan(1)
    expect(fragments.join('')).toBe('{"city":"Paris"}')
    expect(usage).toBeUndefined()
  })

  test('required parallel calls', async () => {
    const stream = (await client(both)).chat.completions.stream({
      model,
      messages,
      tools: [weather],
      tool_choice: 'required',
      stream_options: { include_usage: true },
    })
    const { choices, usage } = await stream.finalChatCompletion()
    expect(choices[0]?.message.tool_calls?.map((one) => one.type === 'function' && one.function.arguments)).toEqual([
      '{"city":"Paris"}',
      '{"city":"Rome"}',
    ])
    expect(usage?.total_tokens).toBeGreaterThan(0)
  })

  test('refused requests', async () => {
    const openai = await client('x')
    const refused = openai.chat.completions.create({ model, messages, tools: [unserved] })
    await expect(refused).rejects.toThrow(UnprocessableEntityError)
    await expect(refused).rejects.toMatchObject({
      status: 422,
      param: 'tools[0].function.parameters',
      code: 'unsupported_parameter',
    })
    await expect(openai.chat.completions.create({ model, messages, temperature: 3 })).rejects.toThrow(BadRequestError)
    await expect(openai.chat.completions.create({ model: 'other', messages })).rejects.toMatchObject({
      status: 404,
      code: 'model_not_found',
    })
  })

  test('runTools', async () => {
    const { url } = await serve({
      engine: new FakeEngine((_request, prompt) =>
        prompt.includes('<tool_response>21') ? 'It is 21 degrees.' : paris,
      ),
    })
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })
    const runner = openai.chat.completions.runTools({
      model,
      messages,
      tools: [
        {
          type: 'function',
          function: { ...weather.function, description: '', function: () => '21', parse: JSON.parse },
        },
      ],
    })
    expect(await runner.finalContent()).toBe('It is 21 degrees.')
  })

  test('models and completions', async () => {
    const openai = await client('upon a time')
    expect((await openai.models.list()).data.map(({ id }) => id)).toEqual([model])
    expect((await openai.models.retrieve(model)).object).toBe('model')
    expect((await openai.completions.create({ model, prompt: 'Once' })).choices[0]?.text).toBe('upon a time')
  })
})

describe('Vercel AI SDK', () => {
  const provider = async (said: string) =>
    createOpenAICompatible({ name: 'tinyllm', baseURL: await live(said) })('fake-model')
  // The SDK's own types do not fit together under exactOptionalPropertyTypes.
  const sdkTool = (schema: object) => tool({ inputSchema: jsonSchema(schema) }) as ToolSet[string]
  const tools = { get_weather: sdkTool(weather.function.parameters) }

  test('a forced call', async () => {
    const { toolCalls, finishReason } = await generateText({
      model: await provider(paris),
      prompt: 'Weather?',
      tools,
      toolChoice: { type: 'tool', toolName: 'get_weather' },
    })
    expect(toolCalls.map(({ toolName, input }) => [toolName, input])).toEqual([['get_weather', { city: 'Paris' }]])
    expect(finishReason).toBe('tool-calls')
  })

  test('a streamed call', async () => {
    const result = streamText({ model: await provider(`Sure.${paris}`), prompt: 'Weather?', tools })
    expect((await result.toolCalls).map(({ input }) => input)).toEqual([{ city: 'Paris' }])
    expect(await result.text).toBe('Sure.')
  })

  test('required parallel calls', async () => {
    const { toolCalls } = await generateText({
      model: await provider(both),
      prompt: 'Weather?',
      tools,
      toolChoice: 'required',
    })
    expect(toolCalls.map(({ input }) => input)).toEqual([{ city: 'Paris' }, { city: 'Rome' }])
  })

  test('a refused request', async () => {
    const f = sdkTool(unserved.function.parameters)
    const refused = generateText({ model: await provider('x'), prompt: 'x', tools: { f }, maxRetries: 0 })
    await expect(refused).rejects.toMatchObject({
      statusCode: 422,
      message: expect.stringContaining('patternProperties'),
    })
  })
})

describe('LangChain', () => {
  const chat = async (said: string) =>
    new ChatOpenAI({ model: 'fake-model', apiKey: 'none', maxRetries: 0, configuration: { baseURL: await live(said) } })

  test('a forced call', async () => {
    const message = await (await chat(paris)).bindTools([weather], { tool_choice: named }).invoke('Weather?')
    expect(message.tool_calls?.map(({ name, args }) => [name, args])).toEqual([['get_weather', { city: 'Paris' }]])
  })

  test('a streamed call', async () => {
    let whole: AIMessageChunk | undefined
    for await (const chunk of await (await chat(`Sure.${paris}`)).bindTools([weather]).stream('Weather?')) {
      whole = whole === undefined ? chunk : whole.concat(chunk)
    }
    expect(whole?.content).toBe('Sure.')
    expect(whole?.tool_calls?.map(({ args }) => args)).toEqual([{ city: 'Paris' }])
  })

  test('required parallel calls', async () => {
    const message = await (await chat(both)).bindTools([weather], { tool_choice: 'required' }).invoke('Weather?')
    expect(message.tool_calls?.map(({ args }) => args)).toEqual([{ city: 'Paris' }, { city: 'Rome' }])
  })

  test('a refused request', async () => {
    await expect((await chat('x')).bindTools([unserved]).invoke('x')).rejects.toMatchObject({ status: 422 })
  })
})
