import fc from 'fast-check'
import { fullProfile, strictProfile } from '../../src/openai/profile.js'
import { ToolError } from '../../src/openai/tool_error.js'
import { renderMessages, renderPrompt } from '../../src/tools/render.js'
import type { Tool } from '../../src/tools/request.js'
import { minifyJson } from '../../src/tools/value_scanner.js'
import { fold, WEATHER_SCHEMA } from './support.js'

const tool: Tool = { name: 'get_weather', description: 'Weather, now', parameters: WEATHER_SCHEMA }
const plain = (messages: unknown, tools: readonly Tool[] = []) =>
  renderMessages(messages, tools).map(({ role, content }) => ({ role, content }))

const called = (args: string, content: string | null = null) => ({
  role: 'assistant',
  content,
  tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: args } }],
})

describe('render_messages_with_tools', () => {
  const line = `{"type":"function","function":{"name":"get_weather","description":"Weather, now","parameters":${WEATHER_SCHEMA}}}`

  test('the tools are one system text, inserted first', () => {
    const [system, user, ...rest] = plain(
      [{ role: 'user', content: 'hi' }],
      [tool, { ...tool, name: 'g', description: null }],
    )
    expect(system?.role).toBe('system')
    const lines = system?.content.split('\n') ?? []
    expect(lines).toContain(line)
    expect(lines).toContain(`{"type":"function","function":{"name":"g","parameters":${WEATHER_SCHEMA}}}`)
    expect(system?.content).toContain('<tool_call>{"name":"')
    expect(user).toEqual({ role: 'user', content: 'hi' })
    expect(rest).toEqual([])
  })

  test('the tools are appended to the system message that is there; there are never two', () => {
    for (const role of ['system', 'developer']) {
      const rendered = plain(
        [
          { role, content: 'Be brief.' },
          { role: 'user', content: 'hi' },
        ],
        [tool],
      )
      expect(rendered.map((message) => message.role)).toEqual(['system', 'user'])
      expect(rendered[0]?.content.startsWith('Be brief.\n\n')).toBe(true)
      expect(rendered[0]?.content).toContain(line)
    }
    const later = plain(
      [
        { role: 'user', content: 'hi' },
        { role: 'system', content: 'Be brief.' },
      ],
      [tool],
    )
    expect(later.filter((message) => message.role === 'system')).toHaveLength(1)
  })

  test('without tools nothing is added', () => {
    expect(plain([{ role: 'user', content: 'hi' }])).toEqual([{ role: 'user', content: 'hi' }])
  })

  test('parameters are printed compactly in their own order', () => {
    const parameters = '{ "type" : "object", "properties": {"10": {"type":"null"},\n"2":{"type":"string"}} }'
    expect(plain([], [{ ...tool, parameters }])[0]?.content).toContain(
      '"parameters":{"type":"object","properties":{"10":{"type":"null"},"2":{"type":"string"}}}}}',
    )
  })

  test('calls and results are written back the way they were generated', () => {
    const turn = { ...called('{"a": 1.50, "b": " x "}', 'Sure.') }
    turn.tool_calls.push({ id: 'call_2', type: 'function', function: { name: 'g', arguments: '{}' } })
    expect(plain([turn, { role: 'tool', tool_call_id: 'call_1', content: '21 °C' }])).toEqual([
      {
        role: 'assistant',
        content:
          'Sure.<tool_call>{"name":"f","arguments":{"a":1.50,"b":" x "}}</tool_call>\n<tool_call>{"name":"g","arguments":{}}</tool_call>',
      },
      { role: 'user', content: '<tool_response>21 °C</tool_response>' },
    ])
  })

  test('arguments that are not JSON are written as a string', () => {
    expect(plain([called('{"a":')])[0]?.content).toBe('<tool_call>{"name":"f","arguments":"{\\"a\\":"}</tool_call>')
  })

  test('what a model generated comes back as it was', () => {
    fc.assert(
      fc.property(fc.string(), fc.array(fc.jsonValue(), { maxLength: 3 }), (before, values) => {
        fc.pre(!before.includes('<'))
        const calls = values.map((value) => `<tool_call>{"name":"f","arguments":${JSON.stringify(value)}}</tool_call>`)
        const text = before + calls.join('\n')
        const { content, calls: found } = fold(text)
        const message = { role: 'assistant', content, tool_calls: found.map((call) => ({ function: call })) }
        expect(renderMessages([message], [])[0]?.content).toBe(text)
      }),
    )
  })

  test('minifying keeps the spelling of every token', () => {
    expect(minifyJson(' { "a b\\"  " : [ 1.50 , -0 , 1E+2 , "\\u00e9 \\\\" ] }\n')).toBe(
      '{"a b\\"  ":[1.50,-0,1E+2,"\\u00e9 \\\\"]}',
    )
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom(' ', '\t', 3), (value, space) => {
        expect(minifyJson(JSON.stringify(value, null, space))).toBe(JSON.stringify(value))
      }),
    )
  })

  test('the prompt is the template over these messages, up to the answer', async () => {
    const asked: unknown[] = []
    const engine = {
      renderChat: (request: unknown) => {
        asked.push(request)
        return Promise.resolve({ text: 'x', segments: [], ids: new Uint32Array() })
      },
    }
    await renderPrompt(engine, [{ role: 'user', content: 'hi' }], [tool])
    expect(asked).toEqual([{ messages: plain([{ role: 'user', content: 'hi' }], [tool]), addGenerationPrompt: true }])
  })
})

describe('content', () => {
  const failure = (messages: unknown, profile = fullProfile) => {
    try {
      renderMessages(messages, [], { profile })
    } catch (error) {
      if (error instanceof ToolError) return [error.status, error.param]
      throw error
    }
    throw new Error('accepted')
  }

  test('null and absent content are empty', () => {
    expect(plain([{ role: 'assistant', content: null }, { role: 'user' }]).map(({ content }) => content)).toEqual([
      '',
      '',
    ])
  })

  test('text parts are joined in the full profile and refused in strict; other parts are refused', () => {
    const parts = [
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
    ]
    expect(plain(parts)[0]?.content).toBe('ab')
    expect(failure(parts, strictProfile)).toEqual([422, 'messages[0].content'])
    expect(failure([{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }])).toEqual([
      422,
      'messages[0].content',
    ])
  })

  test.each([
    ['messages', 3],
    ['messages[0]', ['hi']],
    ['messages[0].role', [{ content: 'x' }]],
    ['messages[0].role', [{ role: 'wizard', content: 'x' }]],
    ['messages[1].content', [{ role: 'user' }, { role: 'user', content: 1 }]],
    ['messages[0].content', [{ role: 'user', content: [{ type: 'text' }] }]],
    ['messages[0].tool_calls', [{ role: 'assistant', tool_calls: {} }]],
    ['messages[0].tool_calls[0]', [{ role: 'assistant', tool_calls: [{ function: {} }] }]],
    ['messages[0].tool_calls[0]', [{ role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: {} } }] }]],
  ])('400 %s', (param, messages) => expect(failure(messages)).toEqual([400, param]))
})
