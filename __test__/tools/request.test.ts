import { ToolError } from '../../src/openai/tool_error.js'
import { fullProfile, strictProfile, type Profile } from '../../src/openai/profile.js'
import { parseToolRequest } from '../../src/tools/request.js'
import { WEATHER_SCHEMA, weatherTool } from './support.js'

function failure(
  body: string,
  profile: Profile = strictProfile,
): { status: number; param: string | null; message: string; code: string | null } {
  try {
    parseToolRequest(body, profile)
  } catch (error) {
    if (error instanceof ToolError) {
      expect(Object.keys(error.toApiError().error).sort()).toEqual(['code', 'message', 'param', 'type'])
      return { status: error.status, param: error.param, message: error.message, code: error.code }
    }
    throw error
  }
  throw new Error(`accepted: ${body}`)
}

const both: Profile[] = [strictProfile, fullProfile]

describe('parse_tool_request_hand_example', () => {
  test('the defaults', () => {
    for (const profile of both) {
      expect(parseToolRequest('{"messages":[]}', profile)).toEqual({
        tools: [],
        choice: 'none',
        allowed: null,
        responseFormat: { type: 'text' },
        parallel: true,
        profile,
      })
      expect(parseToolRequest(`{"messages":[],"tools":[${weatherTool()}]}`, profile)).toMatchObject({
        tools: [{ name: 'get_weather', description: null, parameters: WEATHER_SCHEMA }],
        choice: 'auto',
        parallel: true,
      })
    }
  })

  test('null is absent everywhere', () => {
    const body = '{"tools":null,"tool_choice":null,"response_format":null,"parallel_tool_calls":null,"messages":null}'
    for (const profile of both) expect(parseToolRequest(body, profile)).toEqual(parseToolRequest('{}', profile))
    const tool = '{"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":null}}]}'
    expect(parseToolRequest(tool).tools).toEqual([
      { name: 'f', description: null, parameters: '{"type":"object","properties":{}}' },
    ])
  })

  test('a named choice', () => {
    const body = `{"tools":[${weatherTool()},${weatherTool('g')}],"tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false}`
    for (const profile of both) {
      expect(parseToolRequest(body, profile)).toMatchObject({ choice: { name: 'g' }, parallel: false })
    }
  })

  test('parameters are kept as they were written, integer-like keys in their order', () => {
    const schema = '{"type":"object", "properties":{"10":{"type":"null"},"2":{"type":"string"}}}'
    expect(parseToolRequest(`{"tools":[${weatherTool('f', schema)}]}`).tools[0]?.parameters).toBe(schema)
  })

  test('a description that is no string is dropped', () => {
    const tool = '{"type":"function","function":{"name":"f","description":7}}'
    for (const profile of both)
      expect(parseToolRequest(`{"tools":[${tool}]}`, profile).tools[0]?.description).toBeNull()
  })

  const tools = (...list: string[]) => `{"tools":[${list.join(',')}]}`
  const choice = (text: string) => `{"tools":[${weatherTool()}],"tool_choice":${text}}`
  const named = (name: string) => tools(`{"type":"function","function":{"name":${JSON.stringify(name)}}}`)

  test.each<[string, string | null]>([
    ['', null],
    ['{', null],
    ['[]', null],
    ['"x"', null],
    ['{"tools":[]} x', null],
    [`{"messages":${'['.repeat(200)}${']'.repeat(200)}}`, null],
    ['{"messages":{}}', 'messages'],
    ['{"messages":[{"role":"user"},{"content":"x"}]}', 'messages[1].role'],
    ['{"messages":[{"role":null}]}', 'messages[0].role'],
    ['{"messages":["x"]}', 'messages[0]'],
    ['{"tools":{}}', 'tools'],
    [tools(...Array.from({ length: 129 }, (_, i) => weatherTool(`f${i}`))), 'tools'],
    [tools('1'), 'tools[0]'],
    [tools(weatherTool(), '{"type":"custom","custom":{"name":"f"}}'), 'tools[1]'],
    [tools('{"function":{"name":"f"}}'), 'tools[0]'],
    [tools('{"type":"function"}'), 'tools[0]'],
    [tools('{"type":"function","function":"f"}'), 'tools[0]'],
    [tools('{"type":"function","function":{}}'), 'tools[0].function.name'],
    [named(''), 'tools[0].function.name'],
    [named('a b'), 'tools[0].function.name'],
    [named('f\n'), 'tools[0].function.name'],
    [named('é'), 'tools[0].function.name'],
    [named('x'.repeat(65)), 'tools[0].function.name'],
    [tools(weatherTool(), weatherTool('g'), weatherTool()), 'tools[2].function.name'],
    [choice('"any"'), 'tool_choice'],
    [choice('true'), 'tool_choice'],
    [choice('{"type":"function","function":{"name":"other"}}'), 'tool_choice'],
    [choice('{"type":"function","function":{"name":"get_weather","x":1}}'), 'tool_choice'],
    [choice('{"type":"function","function":{"name":"get_weather"},"x":1}'), 'tool_choice'],
    [choice('{"type":"function","name":"get_weather"}'), 'tool_choice'],
    [choice('{"function":{"name":"get_weather"}}'), 'tool_choice'],
    ['{"tool_choice":"auto"}', 'tool_choice'],
    ['{"tools":[],"tool_choice":"required"}', 'tool_choice'],
    ['{"response_format":"json_object"}', 'response_format'],
    ['{"response_format":{}}', 'response_format'],
    ['{"response_format":{"type":1}}', 'response_format'],
    ['{"parallel_tool_calls":"yes"}', 'parallel_tool_calls'],
    ['{"parallel_tool_calls":0}', 'parallel_tool_calls'],
  ])('400: %s', (body, param) => {
    for (const profile of both) expect(failure(body, profile)).toMatchObject({ status: 400, param, code: null })
  })

  const bounded = '{"type":"object","properties":{"n":{"type":"integer","minimum":0}}}'

  test.each<[string, string, string]>([
    [tools(weatherTool('f', bounded)), 'tools[0].function.parameters', 'minimum'],
    [
      tools(weatherTool(), weatherTool('g', '{"type":"object","patternProperties":{}}')),
      'tools[1].function.parameters',
      'patternProperties',
    ],
    [tools(weatherTool('f', '"string"')), 'tools[0].function.parameters', 'schema must be a dict'],
    [tools(weatherTool('f', '{"type":["string","null"]}')), 'tools[0].function.parameters', 'type'],
    [
      '{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}}}',
      'response_format',
      'json_schema',
    ],
    ['{"response_format":{"type":"xml"}}', 'response_format', 'xml'],
  ])('422 in strict: %s', (body, param, word) => {
    const found = failure(body)
    expect(found).toMatchObject({ status: 422, param, code: 'unsupported_parameter' })
    expect(found.message).toContain(word)
  })
})

test('a schema inside the subset whose grammar cannot be built is 422 for the tools', () => {
  const array = (most: string) =>
    `{"type":"object","properties":{"a":{"type":"array","items":{"type":"null"},"maxItems":${most}}},"required":["a"]}`
  const body = (most: string) => `{"tools":[${weatherTool()},${weatherTool('f', array(most))}]}`
  expect(parseToolRequest(body('257'), strictProfile).tools).toHaveLength(2)
  expect(failure(body('258'))).toMatchObject({ status: 422, param: 'tools', code: 'unsupported_parameter' })
})

describe('the full profile', () => {
  const bounded = '{"type":"object","properties":{"n":{"type":"integer","minimum":0}}}'

  test('reads schemas by the general front end, and refuses what it cannot enforce with the place', () => {
    expect(parseToolRequest(`{"tools":[${weatherTool('f', bounded)}]}`).tools[0]?.parameters).toBe(bounded)
    const found = failure(`{"tools":[${weatherTool('f', '{"type":"object","patternProperties":{}}')}]}`, fullProfile)
    expect(found).toMatchObject({ status: 422, param: 'tools[0].function.parameters' })
    expect(found.message).toContain('patternProperties')
  })

  test('serves response_format: json_schema', () => {
    const read = (format: string) =>
      parseToolRequest(`{"response_format":{"type":"json_schema",${format}}}`).responseFormat
    expect(read(`"json_schema":{"name":"n","strict":true,"schema":${bounded}}`)).toEqual({
      type: 'json_schema',
      schema: bounded,
    })
    expect(read('"json_schema":{"name":"n"}')).toEqual({ type: 'json_schema', schema: null })
    const of = (format: string) => `{"response_format":{"type":"json_schema",${format}}}`
    expect(failure(of('"json_schema":1'), fullProfile)).toMatchObject({ status: 400, param: 'response_format' })
    expect(failure(of('"json_schema":{"name":"a b"}'), fullProfile)).toMatchObject({
      status: 400,
      param: 'response_format',
    })
    expect(failure(of('"json_schema":{"schema":{"not":{}}}'), fullProfile)).toMatchObject({
      status: 422,
      param: 'response_format',
    })
  })

  test('serves tool_choice: allowed_tools', () => {
    const body = (choice: string) =>
      `{"tools":[${weatherTool('a')},${weatherTool('b')},${weatherTool('c')}],"tool_choice":${choice}}`
    const allowed = body(
      '{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"c"}},{"type":"function","function":{"name":"a"}}]}}',
    )
    expect(parseToolRequest(allowed)).toMatchObject({ choice: 'required', allowed: ['c', 'a'] })
    expect(failure(allowed)).toMatchObject({ status: 400, param: 'tool_choice' })
    for (const bad of [
      '{"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[{"type":"function","function":{"name":"a"}}]}}',
      '{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}',
      '{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"z"}}]}}',
      '{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":["a"]}}',
    ]) {
      expect(failure(body(bad), fullProfile)).toMatchObject({ status: 400, param: 'tool_choice' })
    }
  })

  test('knows a tool\'s "strict", which strict passes over', () => {
    const body = '{"tools":[{"type":"function","function":{"name":"f","strict":"yes"}}]}'
    expect(failure(body, fullProfile)).toMatchObject({ status: 400, param: 'tools[0].function.strict' })
    expect(parseToolRequest(body, strictProfile).tools).toHaveLength(1)
    expect(parseToolRequest(body.replace('"yes"', 'true'), fullProfile).tools).toHaveLength(1)
  })
})
