// What models do with tools: twenty prompts under each tool_choice, counted. Prints the table of docs/tool-outcomes.md.
//
//   npm run build && node bench/tool_outcomes.mjs MODEL...
//
// Greedy, so that a run can be repeated. One model takes some minutes on two cores.
import { chat, load, tool } from '../dist/index.mjs'

const MAX_TOKENS = 48

const tools = [
  tool({
    name: 'get_weather',
    description: 'Current weather of a city',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', maxLength: 30 }, unit: { enum: ['celsius', 'fahrenheit'] } },
      required: ['city'],
    },
  }),
  tool({
    name: 'calculate',
    description: 'Result of an arithmetic expression',
    parameters: {
      type: 'object',
      properties: { expression: { type: 'string', maxLength: 40 } },
      required: ['expression'],
    },
  }),
  tool({
    name: 'set_timer',
    description: 'Starts a timer',
    parameters: {
      type: 'object',
      properties: { minutes: { type: 'integer', minimum: 1, maximum: 600 } },
      required: ['minutes'],
    },
  }),
]

/** Each prompt with the function a person would call; null: none. */
const prompts = [
  ['What is the weather in Paris?', 'get_weather'],
  ['Is it raining in Tokyo right now?', 'get_weather'],
  ['How warm is it in Cairo, in celsius?', 'get_weather'],
  ['Tell me the weather in New York in fahrenheit.', 'get_weather'],
  ['Do I need an umbrella in London today?', 'get_weather'],
  ['Weather in São Paulo and in Lima, please.', 'get_weather'],
  ['What is 17 times 23?', 'calculate'],
  ['Compute (4 + 5) * 12.', 'calculate'],
  ['How much is 15 % of 260?', 'calculate'],
  ['What is the square of 31?', 'calculate'],
  ['Divide 1001 by 7.', 'calculate'],
  ['Add 3.5 and 4.25.', 'calculate'],
  ['Set a timer for ten minutes.', 'set_timer'],
  ['Wake me up in 45 minutes.', 'set_timer'],
  ['Remind me in an hour.', 'set_timer'],
  ['Start a five minute countdown.', 'set_timer'],
  ['Hello, who are you?', null],
  ['Write a haiku about the sea.', null],
  ['Who wrote Hamlet?', null],
  ['Translate "good morning" into French.', null],
]

const modes = {
  forced: (expected) => ({ toolChoice: { name: expected ?? 'get_weather' } }),
  required: () => ({ toolChoice: 'required' }),
  auto: () => ({ toolChoice: 'auto' }),
  none: () => ({ toolChoice: 'none' }),
}

/** Whether arguments satisfy the schema, said without any grammar. */
const valid = {
  get_weather: (args) =>
    typeof args.city === 'string' &&
    [...args.city].length <= 30 &&
    [undefined, 'celsius', 'fahrenheit'].includes(args.unit) &&
    only(args, 'city', 'unit'),
  calculate: (args) =>
    typeof args.expression === 'string' && [...args.expression].length <= 40 && only(args, 'expression'),
  set_timer: (args) =>
    Number.isInteger(args.minutes) && args.minutes >= 1 && args.minutes <= 600 && only(args, 'minutes'),
}

function only(args, ...names) {
  return Object.keys(args).every((name) => names.includes(name))
}

console.log(
  '| model | tool_choice | answers | with a call | calls | valid calls | cut by the budget | right function | markup in content |',
)
console.log('| --- | --- | --- | --- | --- | --- | --- | --- | --- |')
for (const name of process.argv.slice(2)) {
  const engine = await load(name, { contextLength: 1024 })
  for (const [mode, choice] of Object.entries(modes)) {
    const count = { called: 0, calls: 0, valid: 0, cut: 0, right: 0, markup: 0 }
    for (const [content, expected] of prompts) {
      const options = {
        messages: [{ role: 'user', content }],
        tools,
        maxTokens: MAX_TOKENS,
        // Calls that are begun are ended within the budget.
        closeWithinBudget: true,
        ...choice(expected),
      }
      const answer = await chat(engine, options)
      const { calls, cutCall } = answer
      count.called += calls.length > 0 || cutCall !== undefined ? 1 : 0
      count.calls += calls.length
      count.valid += calls.filter((call) => valid[call.name]?.(JSON.parse(call.argumentsText))).length
      count.cut += cutCall === undefined ? 0 : 1
      count.right += (calls[0]?.name ?? null) === expected ? 1 : 0
      count.markup += /<\/?tool_call/.test(answer.content ?? '') ? 1 : 0
    }
    const { called, calls, valid: good, cut, right, markup } = count
    console.log(
      `| ${engine.info.name} | ${mode} | ${prompts.length} | ${called} | ${calls} | ${good} | ${cut} | ${right} | ${markup} |`,
    )
  }
  await engine.close()
}
