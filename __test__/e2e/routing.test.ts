/**
 * Routing on models: whatever a model thinks of the question, a reply that was not cut is one of the offered actions,
 * with arguments that fit. One model says anything at all, the other is the default.
 */
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { load, type Engine } from '../../src/index.js'
import {
  engineBackend,
  httpBackend,
  parseRoute,
  route,
  routeToolNames,
  runToolLoop,
  type AgentMessage,
  type Backend,
  type RouteTool,
  type ToolLoopEvent,
  type ToolLoopResult,
} from '../../src/routing/index.js'
import { createServer, type Server } from '../../src/server/index.js'
import { memoryTools } from '../routing/examples.js'
import { tinyModel } from './tiny_model.js'

let random: Engine
let small: Engine
let server: Server
let url: string

beforeAll(async () => {
  random = await load(tinyModel())
  small = await load(process.env['TINYLLM_TEST_SMOLLM2'] ?? 'smollm2-135m-instruct', { contextLength: 1024 })
  server = createServer({ engine: random, alias: 'random' })
  url = (await server.listen({ port: 0 })).url
  // The random model's writer may have to be compiled first.
}, 600_000)

afterAll(async () => {
  await server.close({ deadlineMs: 0 })
  await Promise.all([random.close(), small.close()])
})

const weatherTools = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The weather of a city on a day.',
      parameters: {
        type: 'object',
        properties: {
          city: { type: 'string', minLength: 1, maxLength: 12 },
          day: { enum: ['today', 'tomorrow'] },
          hours: { type: 'array', items: { type: 'integer', minimum: 0, maximum: 23 }, maxItems: 3 },
        },
        required: ['city'],
        additionalProperties: false,
      },
    },
  },
  { type: 'function', function: { name: 'list_alarms', description: 'The alarms that are set.' } },
  {
    type: 'function',
    function: {
      name: 'set_alarm',
      parameters: {
        type: 'object',
        $defs: { time: { type: 'string', pattern: '^([01][0-9]|2[0-3]):[0-5][0-9]$' } },
        properties: { at: { $ref: '#/$defs/time' }, loud: { type: 'boolean' } },
        required: ['at', 'loud'],
        additionalProperties: false,
      },
    },
  },
] as const satisfies readonly RouteTool[]

const prompts = ['Is it raining in Oslo?', 'Wake me at seven.', 'What did I say about the latch?', 'Thank you!']

/** What is wrong with a reply, by the strict parser and by a validator that knows nothing of grammars. */
function problem(reply: string, tools: readonly RouteTool[]): string | null {
  const action = parseRoute(reply, routeToolNames(tools))
  if (!action.ok) return action.error
  if (action.tool === 'none') return null
  const { parameters } = tools.find(({ function: { name } }) => name === action.tool)?.function ?? {}
  if (parameters === undefined || parameters === null) return Object.keys(action.arguments ?? {})[0] ?? null
  const ajv = new Ajv2020({ strict: false })
  return ajv.validate(parameters, action.arguments) ? null : ajv.errorsText()
}

describe.each(['random', 'small'] as const)('the %s model', (name) => {
  const model = () => (name === 'random' ? random : small)

  test('decides by one of the offered actions', async () => {
    const asked = [weatherTools, memoryTools].flatMap((tools) => prompts.map((content) => ({ tools, content })))
    const decided = await Promise.all(
      asked.map(async ({ tools, content }, seed) => {
        const grammar = route(tools, { maxStringLength: 12 })
        const messages = [{ role: 'user', content }]
        const sampling = { temperature: 1, seed, maxTokens: 150 }
        return { tools, ...(await model().generate({ messages, grammar, ...sampling })) }
      }),
    )
    const whole = decided.filter(({ finishReason }) => finishReason === 'stop')
    expect(whole.length).toBeGreaterThan(0)
    for (const { text, tools, value } of whole) {
      expect([text, problem(text, tools)]).toEqual([text, null])
      expect(value).toEqual(parseRoute(text, routeToolNames(tools)))
    }
    // A cut reply is no action at all.
    for (const { finishReason, value } of decided) if (finishReason === 'length') expect(value).toBeUndefined()
  })

  test('runs the loop: every failed attempt was cut, every action can be made', async () => {
    const backend = engineBackend(model(), { settings: { maxTokens: 120, temperature: 1 }, maxStringLength: 12 })
    for (const [seed, tools] of [memoryTools, weatherTools].entries()) {
      const { events, result } = await run(backend, tools, seed, prompts[seed] ?? '')
      for (const event of events) {
        if (event.type === 'route')
          expect([event.action.text, problem(event.action.text, tools)]).toEqual([event.action.text, null])
        if (event.type === 'route_invalid') expect(event).toMatchObject({ cut: true })
      }
      const roles = result.messages.map(({ role }) => role)
      expect(roles).toEqual(roles.map((_role, i) => (i % 2 === 0 ? 'user' : 'assistant')))
    }
  })
})

test('over HTTP the same run has the same bytes', async () => {
  const settings = { maxTokens: 200, temperature: 1 }
  const remote = httpBackend({ baseUrl: `${url}/v1`, model: 'random', settings })
  for (const seed of [1, 2]) {
    const here = await run(engineBackend(random, { settings }), weatherTools, seed, 'Weather?')
    const there = await run(remote, weatherTools, seed, 'Weather?')
    expect(there.result).toEqual(here.result)
    expect(here.events.some(({ type }) => type === 'route')).toBe(true)
  }
})

test('whatever the catalogue, an uncut reply is one of its actions', async () => {
  const scalar = fc.constantFrom(
    { type: 'boolean' },
    { type: 'integer', minimum: -5, maximum: 300 },
    { type: 'number' },
    { type: 'string', maxLength: 3 },
    { enum: ['a', 'ü', 1, null] },
    { const: { x: [] } },
    { type: ['null', 'boolean'] },
  )
  const parameters = fc
    .dictionary(fc.string({ minLength: 1, maxLength: 4, unit: 'grapheme' }), scalar, { maxKeys: 4 })
    .chain((properties) =>
      fc.subarray(Object.keys(properties)).map((required) => ({
        type: 'object',
        properties,
        required,
        additionalProperties: false,
      })),
    )
  const names = fc
    .string({ minLength: 1, maxLength: 8, unit: 'grapheme' })
    .filter((text) => text.trim() !== '' && text !== 'none')
  const catalogue = fc
    .uniqueArray(fc.tuple(names, fc.option(parameters)), {
      selector: ([tool]) => tool,
      minLength: 1,
      maxLength: 64,
      size: 'max',
    })
    .map((tools) =>
      tools.map(([tool, schema]) => ({ type: 'function' as const, function: { name: tool, parameters: schema } })),
    )
  let whole = 0
  await fc.assert(
    fc.asyncProperty(catalogue, fc.nat(), async (tools, seed) => {
      const { text, complete } = await random.generate({
        prompt: 'x',
        grammar: route(tools),
        temperature: 1,
        seed,
        maxTokens: 200,
        closeWithinBudget: true,
      })
      if (complete !== true) return
      whole += 1
      expect([text, problem(text, tools)]).toEqual([text, null])
    }),
    { numRuns: 40 },
  )
  expect(whole).toBeGreaterThan(30)
})

/** A run whose tools answer with a fixed text, and whose last turn is short. */
async function run(
  backend: Backend,
  tools: readonly RouteTool[],
  seed: number,
  content: string,
): Promise<{ events: ToolLoopEvent[]; result: ToolLoopResult }> {
  const messages: AgentMessage[] = [{ role: 'user', content }]
  const provider = { toolsForLlm: () => tools, callTool: () => 'It is so.' }
  const loop = runToolLoop({ backend, provider, messages, seed, finalTurn: false, limits: { rounds: 3 } })
  const events: ToolLoopEvent[] = []
  for await (const event of loop) events.push(event)
  return { events, result: await loop.final() }
}
