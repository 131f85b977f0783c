import { grammarTable } from '../../src/native.js'
import { strictProfile } from '../../src/openai/profile.js'
import { grammar } from '../../src/tools/grammar.js'
import { parseToolRequest } from '../../src/tools/request.js'
import { weatherTool } from './support.js'

interface Table {
  readonly n_states: number
  readonly sha256: string
}

const strict = (fields: string) => {
  const found = grammar(parseToolRequest(`{"tools":[${weatherTool()}],${fields}}`, strictProfile))
  if (found === null) throw new Error('free text')
  return found
}

describe('grammar_by_tool_choice', () => {
  test.each([
    ['a named call', '"tool_choice":{"type":"function","function":{"name":"get_weather"}}', 82],
    ['one to four required calls', '"tool_choice":"required"', 328],
  ])('%s has the canonical automaton, from its description and from its pattern', async (_, fields, states) => {
    const { description, pattern } = strict(fields)
    const table = JSON.parse(await grammarTable(description)) as Table
    expect(table.n_states).toBe(states)
    const ofPattern = JSON.parse(await grammarTable({ type: 'regex', pattern })) as Table
    expect(ofPattern.sha256).toBe(table.sha256)
  })
})
