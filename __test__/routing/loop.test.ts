import {
  RouteCatalogueError,
  runToolLoop,
  type AgentMessage,
  type RouteTool,
  type ToolLoopEvent,
  type ToolLoopOptions,
  type ToolProvider,
} from '../../src/routing/index.js'
import { memoryTools, named } from './examples.js'
import { ScriptedBackend, type Reply } from './scripted.js'

const search = '{"tool":"memory_search","arguments":{"query":"latch"}}'
const none = '{"tool":"none"}'
const question: AgentMessage[] = [{ role: 'user', content: 'Where is the latch?' }]

function provider(
  tools: readonly RouteTool[] = memoryTools,
  callTool: ToolProvider['callTool'] = () => '{"records":[]}',
): ToolProvider {
  return { toolsForLlm: () => tools, callTool }
}

async function run(replies: Reply[], options: Partial<ToolLoopOptions> = {}) {
  const backend = new ScriptedBackend(replies)
  const events: ToolLoopEvent[] = []
  const loop = runToolLoop({ backend, provider: provider(), messages: question, ...options })
  for await (const event of loop) events.push(event)
  return { backend: (options.backend as ScriptedBackend | undefined) ?? backend, events, result: await loop.final() }
}

const kinds = (events: readonly ToolLoopEvent[]): string[] =>
  events.filter(({ type }) => type !== 'text').map(({ type }) => type)

describe('schema routing', () => {
  test('the action is an ordinary assistant message and its result a user message; none is followed by the answer', async () => {
    const { events, result } = await run([search, none, 'It is by the door.'])
    expect(result.messages).toEqual([
      ...question,
      { role: 'assistant', content: search },
      { role: 'user', content: 'Tool result for memory_search (call route-1):\n{"records":[]}' },
      { role: 'assistant', content: 'It is by the door.' },
    ])
    expect(result).toMatchObject({ text: 'It is by the door.', ended: 'none', rounds: 2, calls: 1 })
    expect(kinds(events)).toEqual([
      ...['round', 'attempt', 'route', 'call', 'result'],
      ...['round', 'attempt', 'route', 'answer', 'done'],
    ])
    expect(question).toHaveLength(1)
  })

  test('the conversation alternates between user and assistant', async () => {
    const { result } = await run([search, search, search, none, 'ok'])
    expect(result.messages.map(({ role }) => role)).toEqual(
      Array.from({ length: 8 }, (_, index) => (index % 2 === 0 ? 'user' : 'assistant')),
    )
  })

  test('a routing request carries the schema named tool_route and a cap; the final turn carries neither', async () => {
    const backend = new ScriptedBackend([search, none, 'done'], { temperature: 0.2 })
    await run([], { backend, seed: 7 })
    const [first, second, last] = backend.seen
    for (const routed of [first, second]) {
      expect(routed?.settings).toMatchObject({ jsonSchemaName: 'tool_route', maxTokens: 512, temperature: 0.2 })
      expect(routed?.settings.jsonSchema).toHaveProperty('anyOf')
    }
    expect(last?.settings).toMatchObject({ jsonSchema: undefined, maxTokens: undefined })
    expect(last?.request.tools).toBeUndefined()
    expect(backend.seen.map(({ request }) => request.seed)).toEqual([7, 7, 7])
    expect(backend.settings.jsonSchema).toBeUndefined()
  })

  test('the cap is the lower of the two budgets', async () => {
    const low = new ScriptedBackend([none, 'x'], { maxTokens: 40 })
    await run([], { backend: low })
    expect(low.seen.map(({ settings }) => settings.maxTokens)).toEqual([40, 40])
    const high = new ScriptedBackend([none, 'x'], { maxTokens: 4000 })
    await run([], { backend: high, maxRouteTokens: 100 })
    expect(high.seen.map(({ settings }) => settings.maxTokens)).toEqual([100, 4000])
  })

  test('the catalogue is read again for every routing request', async () => {
    let reads = 0
    const narrowing: ToolProvider = {
      toolsForLlm: () => named(`t${(reads += 1)}`),
      callTool: (name) => `called ${name}`,
    }
    const replies = ['{"tool":"t1","arguments":{}}', '{"tool":"t2","arguments":{}}', none, 'x']
    const { events, result } = await run(replies, { provider: narrowing })
    expect(events.flatMap((event) => (event.type === 'round' ? [event.tools] : []))).toEqual([['t1'], ['t2'], ['t3']])
    expect(result.calls).toBe(2)
  })

  test('an action that was offered earlier but is not offered now is a failed route', async () => {
    let reads = 0
    const narrowing: ToolProvider = { toolsForLlm: () => named(`t${(reads += 1)}`), callTool: () => '' }
    const old = '{"tool":"t1","arguments":{}}'
    const { events } = await run([old, old, none, 'x'], { provider: narrowing })
    expect(events.find(({ type }) => type === 'route_invalid')).toMatchObject({
      round: 2,
      error: 'no tool is called "t1"',
    })
  })

  test('finalTurn: false ends with the routing phase', async () => {
    const { backend, result } = await run([search, none], { finalTurn: false })
    expect(result.text).toBeUndefined()
    expect(result.messages).toHaveLength(3)
    expect(backend.seen).toHaveLength(2)
  })

  test('a tool that throws becomes an error result', async () => {
    const failing = provider(memoryTools, () => {
      throw new Error('memory_read ids take the codes memory_search lists')
    })
    const { events, result } = await run([search, none, 'x'], { provider: failing })
    expect(result.messages[2]).toEqual({
      role: 'user',
      content: 'Tool error for memory_search (call route-1):\nmemory_read ids take the codes memory_search lists',
    })
    expect(events.find(({ type }) => type === 'result')).toMatchObject({ isError: true })
  })

  test('a tool-protocol result gives its text parts, and says when it is an error', async () => {
    const protocol = provider(memoryTools, () => ({
      content: [
        { type: 'text', text: 'one' },
        { type: 'resource_link', uri: 'x:1' },
        { type: 'text', text: 'two' },
      ],
      isError: true,
    }))
    const { result } = await run([search, none, 'x'], { provider: protocol })
    expect(result.messages[2]?.content).toBe(
      'Tool error for memory_search (call route-1):\none\n{"type":"resource_link","uri":"x:1"}\ntwo',
    )
  })

  test('a replayed run gives identical bytes', async () => {
    const script = (): Reply[] => ['no', search, 'nope', search, none, 'end']
    const [first, second] = [await run(script()), await run(script())]
    expect(JSON.stringify(second.events)).toBe(JSON.stringify(first.events))
  })
})

describe('failed routes', () => {
  test('a failed route is retried in the same round with seed + k and a temperature of at least 0.7', async () => {
    const backend = new ScriptedBackend(['Sure! Let me search.', '{"tool":"x","arguments":{}}', search, none, 'x'])
    const { events, result } = await run([], { backend, seed: 100 })
    expect(backend.seen.slice(0, 4).map(({ request }) => [request.seed, request.temperature])).toEqual([
      [100, undefined],
      [101, 0.7],
      [102, 0.7],
      [100, undefined],
    ])
    expect(events.find(({ type }) => type === 'call')).toMatchObject({ callId: 'route-1' })
    expect(result.messages[1]).toEqual({ role: 'assistant', content: search })
    expect(result.rounds).toBe(2)
  })

  test('a higher temperature of the backend is kept', async () => {
    const backend = new ScriptedBackend(['no', none, 'x'], { temperature: 1.2 })
    await run([], { backend })
    expect(backend.seen.slice(0, 2).map(({ request }) => request.temperature)).toEqual([1.2, 1.2])
  })

  test('the failed reply does not enter the conversation', async () => {
    const { backend, result } = await run(['garbage', search, none, 'x'])
    expect(JSON.stringify(result.messages)).not.toContain('garbage')
    expect(backend.seen[1]?.request.messages).toEqual(question)
  })

  test('after the last attempt a route_failed event ends the routing phase as none would, and the result says so', async () => {
    const { backend, events, result } = await run(['a', 'b', 'c', 'd', 'the answer'])
    expect(kinds(events)).toEqual([
      'round',
      ...Array.from({ length: 4 }, () => ['attempt', 'route_invalid']).flat(),
      ...['route_failed', 'answer', 'done'],
    ])
    expect(result).toMatchObject({
      ended: 'route_failed',
      error: 'the reply is not a JSON object',
      text: 'the answer',
      calls: 0,
    })
    expect(result.messages).toHaveLength(2)
    expect(backend.seen).toHaveLength(5)
  })

  test('a reply cut at the cap is a failed route, never a shortened one, even where its JSON closed', async () => {
    const { events, result } = await run([{ text: search, cut: true }, none, 'x'])
    expect(events.find(({ type }) => type === 'route_invalid')).toMatchObject({ cut: true, text: search })
    expect(result.calls).toBe(0)
  })

  test('arguments are validated against the tool’s own parameters before the call', async () => {
    const calls: unknown[] = []
    const counting = provider(memoryTools, (_name, args) => {
      calls.push(args)
      return 'ok'
    })
    const wrong = [
      '{"tool":"memory_search","arguments":{}}',
      '{"tool":"memory_search","arguments":{"query":7}}',
      '{"tool":"memory_search","arguments":{"query":"a","more":1}}',
    ]
    const { events } = await run([...wrong, search, none, 'x'], { provider: counting })
    expect(calls).toEqual([{ query: 'latch' }])
    const errors = events.flatMap((event) => (event.type === 'route_invalid' ? [event.error] : []))
    expect(errors).toEqual([
      expect.stringMatching(/memory_search do not fit its parameters: .*required/),
      expect.stringMatching(/\/query must be string/),
      expect.stringMatching(/additional properties/),
    ])
  })

  test('a tool without parameters takes no arguments', async () => {
    const { events } = await run(['{"tool":"now","arguments":{"x":1}}', none, 'x'], {
      provider: provider(named('now')),
    })
    expect(events.find(({ type }) => type === 'route_invalid')).toMatchObject({ error: 'now takes no arguments' })
  })

  test('a catalogue that cannot be offered ends the run with its index and reason', async () => {
    await expect(run([], { provider: provider(named('none')) })).rejects.toBeInstanceOf(RouteCatalogueError)
    const parameters = { type: 'object', properties: { x: { type: 'nonsense' } } }
    const bad = [{ type: 'function' as const, function: { name: 't', parameters } }]
    await expect(run([], { provider: provider(bad) })).rejects.toMatchObject({ index: 0 })
  })
})

describe('limits are checked before the assistant turn is committed', () => {
  test('calls: the turn over the limit is discarded, tools are switched off, the final turn is asked for', async () => {
    const other = '{"tool":"memory_search","arguments":{"query":"other"}}'
    const { backend, events, result } = await run([search, other, 'answer'], { limits: { calls: 1 } })
    expect(events.find(({ type }) => type === 'limit')).toEqual({ type: 'limit', round: 2, limit: 'calls', max: 1 })
    expect(result).toMatchObject({ ended: 'limit', limit: 'calls', calls: 1, text: 'answer' })
    expect(result.messages.map(({ content }) => content)).not.toContain(other)
    expect(backend.seen.at(-1)?.settings.jsonSchema).toBeUndefined()
  })

  test('identical calls are counted by name and arguments with sorted keys', async () => {
    const tool = named('t').map((t) => ({ ...t, function: { ...t.function, parameters: { type: 'object' } } }))
    const [ab, ba] = ['{"a":1,"b":{"c":2,"d":3}}', '{"b":{"d":3,"c":2},"a":1}'].map(
      (args) => `{"tool":"t","arguments":${args}}`,
    ) as [string, string]
    const other = '{"tool":"t","arguments":{"a":1}}'
    const { result } = await run([ab, other, ba, ab, 'x'], { provider: provider(tool), limits: { identicalCalls: 2 } })
    expect(result).toMatchObject({ ended: 'limit', limit: 'identicalCalls', calls: 3 })
  })

  test('rounds', async () => {
    const { result } = await run([search, 'x'], { limits: { rounds: 1 } })
    expect(result).toMatchObject({ ended: 'limit', limit: 'rounds', rounds: 1, calls: 1, text: 'x' })
  })

  test('by default 30 identical calls are made and the 31st is not', async () => {
    const { result } = await run([...Array.from({ length: 31 }, () => search), 'x'])
    expect(result).toMatchObject({ ended: 'limit', limit: 'identicalCalls', calls: 30 })
  })
})

test.each<[string, object]>([
  ['toolRouting', { toolRouting: 'natvie' }],
  ['maxRouteTokens', { maxRouteTokens: 0 }],
  ['maxRetries', { maxRetries: -1 }],
  ['limits.rounds', { limits: { rounds: Number.NaN } }],
  ['limits.round', { limits: { round: 3 } }],
  ['backend', { backend: { complete: () => undefined } }],
])('a wrong %s is refused by that name before anything is asked', (param, options) => {
  const good: ToolLoopOptions = { backend: new ScriptedBackend([]), provider: provider(), messages: question }
  expect(() => runToolLoop({ ...good, ...options })).toThrow(
    expect.objectContaining({ name: 'InvalidRequestError', details: { param } }),
  )
})

describe('abort', () => {
  test('an aborted signal ends the run before anything is asked', async () => {
    const backend = new ScriptedBackend([search])
    const loop = runToolLoop({ backend, provider: provider(), messages: question, signal: AbortSignal.abort() })
    await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError' })
    expect(backend.seen).toHaveLength(0)
  })

  test('it stops between rounds: after a tool has run, nothing more is asked', async () => {
    const controller = new AbortController()
    const backend = new ScriptedBackend([search, none])
    const aborting = provider(memoryTools, () => {
      controller.abort()
      return 'late'
    })
    const loop = runToolLoop({ backend, provider: aborting, messages: question, signal: controller.signal })
    await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError' })
    expect(backend.seen).toHaveLength(1)
    await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError' })
  })

  test('it reaches the request and the tool that are under way', async () => {
    for (const where of ['request', 'tool'] as const) {
      const controller = new AbortController()
      const hang = (signal: AbortSignal | undefined): Promise<never> =>
        new Promise((_resolve, reject) => {
          signal?.addEventListener('abort', () => reject(new Error('stopped')))
          controller.abort()
        })
      const backend = new ScriptedBackend([search])
      if (where === 'request') backend.clone = () => Object.assign(backend, {}) as never
      if (where === 'request') backend.complete = (request) => hang(request.signal)
      const hanging = provider(memoryTools, (_name, _args, { signal }) => hang(signal))
      const loop = runToolLoop({ backend, provider: hanging, messages: question, signal: controller.signal })
      await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError' })
    }
  })

  test.each(['catalogue', 'request', 'tool'])(
    'a %s that never looks at the signal does not hold it up',
    async (where) => {
      const controller = new AbortController()
      const never = (): Promise<never> => {
        controller.abort('enough')
        return new Promise(() => undefined)
      }
      const backend = new ScriptedBackend([search])
      if (where === 'request') Object.assign(backend, { clone: () => backend, complete: never })
      const deaf = provider(memoryTools, where === 'tool' ? never : undefined)
      if (where === 'catalogue') deaf.toolsForLlm = never
      const loop = runToolLoop({ backend, provider: deaf, messages: question, signal: controller.signal })
      await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError', cause: 'enough' })
    },
  )

  test('leaving the iteration aborts the request under way', async () => {
    let seen: AbortSignal | undefined
    const backend = new ScriptedBackend([
      (request) => {
        seen = request.signal
        return search
      },
    ])
    const loop = runToolLoop({ backend, provider: provider(), messages: question })
    for await (const event of loop) if (event.type === 'text') break
    expect(seen?.aborted).toBe(true)
    await expect(loop.final()).rejects.toMatchObject({ name: 'AbortError' })
  })
})

describe('native routing', () => {
  const call = (id: string, name: string, args: string) =>
    ({ id, type: 'function', function: { name, arguments: args } }) as const

  test('the same loop over tool calls, reading the catalogue once per run', async () => {
    let reads = 0
    const counting: ToolProvider = {
      toolsForLlm: () => {
        reads += 1
        return memoryTools
      },
      callTool: (name) => `${name} ran`,
    }
    const calls = [call('c1', 'memory_search', '{"query":"x"}'), call('c2', 'memory_read', '{"ids":["a"]}')]
    const backend = new ScriptedBackend([{ toolCalls: calls }, 'done'])
    const { result } = await run([], { backend, provider: counting, toolRouting: 'native' })
    expect(reads).toBe(1)
    expect(result.messages).toEqual([
      ...question,
      { role: 'assistant', content: null, tool_calls: calls },
      { role: 'tool', tool_call_id: 'c1', content: 'memory_search ran' },
      { role: 'tool', tool_call_id: 'c2', content: 'memory_read ran' },
      { role: 'assistant', content: 'done' },
    ])
    expect(result).toMatchObject({ text: 'done', ended: 'none', calls: 2, rounds: 2 })
    expect(backend.seen.map(({ request }) => request.tools)).toEqual([memoryTools, memoryTools])
  })

  test('a call that cannot be made is answered with what is wrong, and the tool is not called', async () => {
    const calls = [
      call('1', 'unknown', '{}'),
      call('2', 'memory_search', '{"query":'),
      call('3', 'memory_search', '[]'),
      call('4', 'memory_search', '{"query":1}'),
    ]
    const refusing = provider(memoryTools, () => {
      throw new Error('must not be called')
    })
    const { events } = await run([{ toolCalls: calls }, 'ok'], { provider: refusing, toolRouting: 'native' })
    const results = events.flatMap((event) => (event.type === 'result' ? [event.content] : []))
    expect(results).toEqual([
      'no tool is called "unknown"',
      'the arguments are not JSON',
      'the arguments are not a JSON object',
      expect.stringMatching(/query must be string/),
    ])
  })

  test('a turn over the limit is discarded whole and the final turn has no tools', async () => {
    const calls = [call('1', 'memory_search', '{"query":"a"}'), call('2', 'memory_search', '{"query":"b"}')]
    const { backend, result } = await run([{ toolCalls: calls }, 'end'], {
      toolRouting: 'native',
      limits: { calls: 1 },
    })
    expect(result.messages).toEqual([...question, { role: 'assistant', content: 'end' }])
    expect(result).toMatchObject({ ended: 'limit', calls: 0 })
    expect(backend.seen.at(-1)?.request.tools).toBeUndefined()
  })
})
