import { fullProfile, strictProfile } from '../../src/openai/profile.js'
import { grammar, type ToolGrammar } from '../../src/tools/grammar.js'
import { parseToolRequest } from '../../src/tools/request.js'
import { weatherTool } from './support.js'

const twoTools = `"tools":[${weatherTool()},${weatherTool('find', '{"type":"object","properties":{"n":{"type":"integer"}}}')}]`
const strict = (fields: string) => grammar(parseToolRequest(`{${twoTools},${fields}}`, strictProfile))
const full = (fields: string) => grammar(parseToolRequest(`{${twoTools},${fields}}`, fullProfile))

/** The strict patterns are over bytes; for ASCII texts a JavaScript expression reads them the same way. */
const matches = (found: ToolGrammar | null, text: string) =>
  new RegExp(`^(?:${found?.pattern ?? '(?!)'})$`, 's').test(text)

const weather = '<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>'
const find = '<tool_call>{"name":"find","arguments":{"n":7}}</tool_call>'
const named = '"tool_choice":{"type":"function","function":{"name":"get_weather"}}'

describe('grammar_by_tool_choice', () => {
  test('a named function is exactly one call of it', () => {
    const found = strict(named)
    expect(found?.trigger).toBeNull()
    expect(matches(found, weather)).toBe(true)
    for (const text of [
      find,
      `${weather}\n${weather}`,
      '',
      `Sure.${weather}`,
      `${weather}\n`,
      weather.replace('"city"', '"town"'),
    ]) {
      expect(matches(found, text)).toBe(false)
    }
  })

  test('required is one to four calls of any tool', () => {
    const found = strict('"tool_choice":"required"')
    expect(found?.trigger).toBeNull()
    const lists = [[weather], [find], [find, weather], [weather, weather, find, find]]
    for (const list of lists) expect(matches(found, list.join('\n'))).toBe(true)
    expect(matches(found, [find, find, find, find, find].join('\n'))).toBe(false)
    expect(matches(found, `${weather}${find}`)).toBe(false)
    expect(matches(found, '')).toBe(false)
  })

  test('without parallel calls required is one call', () => {
    const found = strict('"tool_choice":"required","parallel_tool_calls":false')
    expect(matches(found, find)).toBe(true)
    expect(matches(found, `${find}\n${find}`)).toBe(false)
  })

  test('auto is free until the opener, then the rest of one call', () => {
    for (const fields of ['"tool_choice":"auto"', '"tool_choice":null', '"response_format":{"type":"json_object"}']) {
      const found = strict(fields)
      expect(found?.trigger).toBe('<tool_call>')
      expect(found?.description).toMatchObject({ type: 'trigger', trigger: '<tool_call>' })
      const rest = (text: string) => text.slice('<tool_call>'.length)
      expect(matches(found, rest(weather))).toBe(true)
      expect(matches(found, rest(find))).toBe(true)
      expect(matches(found, `${rest(find)}\n${find}`)).toBe(false)
      expect(matches(found, weather)).toBe(false)
    }
  })

  test('none is free text, or an object when that is asked for', () => {
    expect(strict('"tool_choice":"none"')).toBeNull()
    expect(grammar(parseToolRequest('{}', strictProfile))).toBeNull()
    expect(strict('"tool_choice":"none","response_format":{"type":"json_object"}')?.description).toEqual({
      type: 'json_object',
      depth: 3,
      finite: false,
    })
  })

  test('with required or a named function json_object is ignored', () => {
    for (const choice of [named, '"tool_choice":"required"']) {
      for (const make of [strict, full]) {
        expect(make(`${choice},"response_format":{"type":"json_object"}`)?.description).toEqual(
          make(choice)?.description,
        )
      }
    }
  })
})

describe('the full profile', () => {
  test('compiles schemas by the general front end', () => {
    expect(JSON.stringify(full(named))).toContain('"subset":"general"')
    expect(JSON.stringify(strict(named))).toContain('"subset":"strict"')
    expect(full('"tool_choice":"none","response_format":{"type":"json_object"}')?.description).toMatchObject({
      finite: true,
    })
  })

  test('allows up to four calls in auto mode, one when calls are not parallel', () => {
    const parallel = full('"tool_choice":"auto"')?.description
    expect(parallel).toMatchObject({
      type: 'trigger',
      body: { type: 'sequence', items: [{}, { type: 'repeat', min: 0, max: 3 }] },
    })
    const single = full('"tool_choice":"auto","parallel_tool_calls":false')?.description
    expect(single).toMatchObject({ type: 'trigger', body: { type: 'alternative' } })
  })

  test('makes calls and a JSON answer one automaton', () => {
    const schema = '{"type":"object","properties":{"10":{"type":"null"},"2":{"type":"null"}}}'
    const withSchema = full(`"response_format":{"type":"json_schema","json_schema":{"schema":${schema}}}`)
    expect(withSchema?.trigger).toBeNull()
    expect(withSchema?.description).toMatchObject({
      type: 'alternative',
      options: [
        { type: 'repeat', min: 1, max: 4 },
        { type: 'schema', schema },
      ],
    })
    expect(full('"response_format":{"type":"json_object"}')?.description).toMatchObject({
      type: 'alternative',
      options: [{ type: 'repeat' }, { type: 'json_object' }],
    })
  })

  test('keeps to the allowed tools', () => {
    const allowed = (mode: string) =>
      full(
        `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"${mode}","tools":[{"type":"function","function":{"name":"find"}}]}}`,
      )
    for (const mode of ['auto', 'required']) {
      const text = JSON.stringify(allowed(mode)?.description)
      expect(text).toContain('find')
      expect(text).not.toContain('get_weather')
    }
  })
})
