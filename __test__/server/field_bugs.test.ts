/**
 * Tool-calling bugs that other parsers and servers had, one row each. A row that applies drives our parser or server;
 * a row that the specification decides otherwise asserts our behaviour; a row about a call format that is not served
 * says so.
 */
import fc from 'fast-check'
import { grammar } from '../../src/tools/grammar.js'
import { parseToolRequest } from '../../src/tools/request.js'
import { renderMessages } from '../../src/tools/render.js'
import { fold, parsePieces, shape, weatherTool } from '../tools/support.js'
import { FakeEngine, type Said } from './fake_engine.js'
import { call, closeAll, events, json, serve, weather, type Loose } from './support.js'

afterEach(closeAll)

interface Row {
  readonly id: number
  readonly seen: string
  readonly bug: string
  readonly verdict: 'applies' | 'superseded' | 'format not served'
  readonly check?: () => void | Promise<void>
}

/** What the calls of one streamed and one whole answer are. */
async function served(said: string | Said, fields: Record<string, unknown> = {}) {
  const { chat } = await serve({ engine: new FakeEngine(() => said, 5) })
  const whole = await json(await chat({ tools: [weather], ...fields }))
  const chunks = (await events(await chat({ tools: [weather], ...fields, stream: true }))).slice(0, -1) as Record<
    string,
    Loose
  >[]
  const deltas = chunks.map(({ choices }) => choices[0].delta)
  const parts = deltas.flatMap(({ tool_calls = [] }) => tool_calls) as Record<string, Loose>[]
  const joined: string[] = []
  for (const part of parts) joined[part['index']] = (joined[part['index']] ?? '') + part['function'].arguments
  return {
    choice: whole['choices'][0],
    message: whole['choices'][0].message,
    deltas,
    parts,
    joined,
    content: deltas.map(({ content = '' }) => content).join(''),
    reason: chunks.at(-1)?.['choices'][0].finish_reason,
  }
}

const args = (text: string) => fold(text).calls.map((one) => one.arguments)
const everySplit = (text: string, check: (pieces: string[]) => void) => {
  for (let cut = 0; cut <= text.length; cut += 1) check([text.slice(0, cut), text.slice(cut)])
  check([...text])
}
const keeps = (value: string) => () => {
  everySplit(call(value), (pieces) => expect(shape(fold(...pieces))).toEqual([null, ['get_weather', value]]))
}
const twoCalls = `${call('{"city":"Paris"}')}\n${call('{"city":"Rome","n":[1,2]}')}`
const qwen = (value: string) => `<tool_call>\n{"name": "f", "arguments": ${value}}\n</tool_call>`

const rows: Row[] = [
  {
    id: 1,
    seen: 'vllm 10395',
    bug: 'completing partial JSON corrupts streamed arguments',
    verdict: 'applies',
    check: keeps('{"a":"x\\"y","b":[1,{"c":null}]}'),
  },
  {
    id: 2,
    seen: 'vllm 32152, 36360',
    bug: 'the last brace is lost when value end, call end and tag come in one delta',
    verdict: 'applies',
    check: () => {
      const parts = ['<tool_call>\n{"name": "f", "arguments": {"a": {"b": 1', '}\n}\n}\n</tool_call>']
      expect(shape(fold(...parts))).toEqual([null, ['f', '{"a": {"b": 1}\n}']])
    },
  },
  {
    id: 3,
    seen: 'vllm 22885, 32518',
    bug: 'closing braces are lost when the value ends in a number, boolean or object',
    verdict: 'applies',
    check: () => {
      for (const value of ['{"a":1}', '{"a":true}', '{"a":{"b":{}}}', '{"a":1.5e3}', '{"a":null}']) keeps(value)()
    },
  },
  {
    id: 4,
    seen: 'vllm 21360',
    bug: 'a token of bracket, brace and quote is discarded',
    verdict: 'applies',
    check: () =>
      expect(args('<tool_call>{"name":"f","arguments":{"a":' + '[{"' + 'b":1}]}}</tool_call>')).toEqual([
        '{"a":[{"b":1}]}',
      ]),
  },
  {
    id: 5,
    seen: 'vllm 21544',
    bug: 'a brace inside of a string breaks the parser',
    verdict: 'applies',
    check: keeps('{"a":"{test1,test2"}'),
  },
  {
    id: 6,
    seen: 'openvino model_server 3838',
    bug: 'streamed arguments are not JSON',
    verdict: 'applies',
    check: async () => {
      const { joined } = await served(qwen('{"a": [1, "x\\n"], "b": {}}'))
      expect(JSON.parse(joined[0] ?? '')).toEqual({ a: [1, 'x\n'], b: {} })
    },
  },
  {
    id: 7,
    seen: 'sglang 31915',
    bug: 'coarse chunks lose data of two calls',
    verdict: 'applies',
    check: () => {
      fc.assert(
        fc.property(fc.array(fc.nat(twoCalls.length), { maxLength: 3 }), (cuts) => {
          const at = [0, ...cuts.sort((a, b) => a - b), twoCalls.length]
          expect(fold(...at.slice(1).map((end, i) => twoCalls.slice(at[i], end)))).toEqual(fold(twoCalls))
        }),
      )
    },
  },
  {
    id: 8,
    seen: 'sglang 37634',
    bug: "of two calls in one increment the second's arguments are dropped",
    verdict: 'applies',
    check: () => expect(args(twoCalls)).toEqual(['{"city":"Paris"}', '{"city":"Rome","n":[1,2]}']),
  },
  {
    id: 9,
    seen: 'vllm 41967',
    bug: "several tokens at once drop the first call's arguments",
    verdict: 'applies',
    check: () =>
      expect(shape(fold('<tool_call>{"name":"f","arguments":{"a":1', '}}</tool_call>'))).toEqual([
        null,
        ['f', '{"a":1}'],
      ]),
  },
  {
    id: 10,
    seen: 'vllm 53965',
    bug: 'a second complete call in one delta stays in the buffer',
    verdict: 'applies',
    check: () => expect(parsePieces([twoCalls])[0]?.filter(({ type }) => type === 'callStart')).toHaveLength(2),
  },
  {
    id: 11,
    seen: 'sglang 35564, 35625',
    bug: 'the streamed answer is not the whole one',
    verdict: 'applies',
    check: async () => {
      for (const text of [`Well.${twoCalls}`, 'a<b <tool', `<tool_call>{"name":${call('{}')} x`]) {
        const { message, content, joined, reason, choice } = await served(text)
        expect(content).toBe(message.content ?? '')
        expect(joined).toEqual((message.tool_calls ?? []).map((one: Loose) => one.function.arguments))
        expect(reason).toBe(choice.finish_reason)
      }
    },
  },
  {
    id: 12,
    seen: 'vllm 28806, 11392',
    bug: 'the empty object of a function without parameters is dropped in streams',
    verdict: 'applies',
    check: async () => expect((await served(call('{}'))).joined).toEqual(['{}']),
  },
  {
    id: 13,
    seen: 'ogx 5462',
    bug: 'an accumulator that begins with {} gives {}{…}',
    verdict: 'applies',
    check: async () => {
      const { parts, joined } = await served(call('{"city":"Oslo"}'))
      expect(parts[0]?.['function'].arguments).toBe('')
      expect(joined).toEqual(['{"city":"Oslo"}'])
    },
  },
  {
    id: 14,
    seen: 'llama.cpp 20198',
    bug: 'arguments are an object',
    verdict: 'applies',
    check: async () =>
      expect(typeof (await served(call('{"a":1}'))).message.tool_calls[0].function.arguments).toBe('string'),
  },
  {
    id: 15,
    seen: 'llama.cpp 13774, 13800, 12379',
    bug: 'the name is in every delta, the id inside of function',
    verdict: 'applies',
    check: async () => {
      const { parts } = await served(call('{"city":"Oslo"}'))
      expect(parts.filter((part) => 'name' in part['function'])).toHaveLength(1)
      for (const part of parts) expect(part['function']).not.toHaveProperty('id')
      expect(parts[0]).toMatchObject({ id: expect.any(String), function: { name: 'get_weather' } })
    },
  },
  {
    id: 16,
    seen: 'llama.cpp 22722',
    bug: 'the first delta carries a brace beside the name',
    verdict: 'applies',
    check: async () =>
      expect((await served(call('{"a":1}'))).parts[0]?.['function']).toEqual({ name: 'get_weather', arguments: '' }),
  },
  {
    id: 17,
    seen: 'sglang 23071',
    bug: 'an entry with a null name repeats the arguments',
    verdict: 'applies',
    check: async () => {
      const { parts, joined } = await served(call('{"city":"Oslo"}'))
      for (const part of parts.slice(1)) expect(Object.keys(part['function'])).toEqual(['arguments'])
      expect(joined).toEqual(['{"city":"Oslo"}'])
    },
  },
  {
    id: 18,
    seen: 'vllm 33965',
    bug: 'a second call of the same function is lost',
    verdict: 'applies',
    check: async () => expect((await served(twoCalls)).joined).toHaveLength(2),
  },
  {
    id: 19,
    seen: 'sglang 35625',
    bug: 'index is the position among the tools',
    verdict: 'applies',
    check: async () => {
      const second = { type: 'function', function: { name: 'second' } }
      expect((await served(call('{}', 'second'), { tools: [weather, second] })).parts[0]).toMatchObject({
        index: 0,
        function: { name: 'second' },
      })
    },
  },
  {
    id: 20,
    seen: 'dynamo 4723, smolagents 1958',
    bug: 'every parallel call has index 0',
    verdict: 'applies',
    check: async () => expect([...new Set((await served(twoCalls)).parts.map(({ index }) => index))]).toEqual([0, 1]),
  },
  {
    id: 21,
    seen: 'vercel/ai 18440, opencode 30247, 37841',
    bug: 'the id is missing, blank, or "" on continuations',
    verdict: 'applies',
    check: async () => {
      const { parts, message } = await served(twoCalls)
      const ids = parts.filter((part) => 'id' in part).map(({ id }) => id)
      expect(ids).toHaveLength(2)
      expect(new Set(ids).size).toBe(2)
      for (const id of [...ids, ...message.tool_calls.map((one: Loose) => one.id)])
        expect(id).toMatch(/^call_chatcmpl-[0-9a-f]{16}_\d$/)
    },
  },
  {
    id: 22,
    seen: 'vllm 39584',
    bug: 'several calls in one delta crash; parallel_tool_calls false is ignored',
    verdict: 'applies',
    check: () => {
      expect(args(`${twoCalls}\n${twoCalls}`)).toHaveLength(4)
      for (const choice of ['required', 'auto']) {
        const request = parseToolRequest(
          `{"tools":[${weatherTool()}],"tool_choice":"${choice}","parallel_tool_calls":false}`,
        )
        expect(JSON.stringify(grammar(request)?.description)).not.toContain('"repeat"')
      }
    },
  },
  {
    id: 23,
    seen: 'sglang 12626, 6174',
    bug: '\\u escapes are escaped twice',
    verdict: 'applies',
    check: keeps('{"a":"\\u00e9\\\\u"}'),
  },
  {
    id: 24,
    seen: 'vllm 13826, 17703',
    bug: 'arguments beyond ASCII are escaped and then sent twice',
    verdict: 'applies',
    check: async () =>
      expect((await served(call('{"city":"Köln 東京 😀"}'))).joined).toEqual(['{"city":"Köln 東京 😀"}']),
  },
  {
    id: 25,
    seen: 'vllm 46308',
    bug: 'text beyond ASCII comes out as \\u escapes',
    verdict: 'applies',
    check: () => {
      expect(args(call('{"a":"é"}'))).toEqual(['{"a":"é"}'])
      const tool = {
        name: 'f',
        description: 'Größe',
        parameters: '{"type":"object","properties":{"größe":{"type":"string"}}}',
      }
      expect(renderMessages([], [tool])[0]?.content).toMatch(/Größe.*größe/)
    },
  },
  {
    id: 26,
    seen: 'vllm 20093, 27701, 28789',
    bug: 'expressions of one level cut nested JSON',
    verdict: 'applies',
    check: keeps('{"a":{"b":{"c":{"d":[[[{}]]]}}}}'),
  },
  {
    id: 27,
    seen: 'Rapid-MLX 1591',
    bug: 'closing brackets in a string end the call',
    verdict: 'applies',
    check: keeps('{"a":"})]}</tool_call>"}'),
  },
  {
    id: 28,
    seen: 'vllm 51701',
    bug: 'markers split over deltas leak into content, the end token into arguments',
    verdict: 'applies',
    check: () => {
      everySplit(`ok${twoCalls}`, (pieces) => expect(fold(...pieces).content).toBe('ok'))
    },
  },
  { id: 29, seen: 'vllm 28543', bug: 'text between section markers leaks (kimi)', verdict: 'format not served' },
  { id: 30, seen: 'sglang 40237', bug: 'the tail of a DSML call leaks', verdict: 'format not served' },
  {
    id: 31,
    seen: 'ollama 17274, 13968',
    bug: 'a call that cannot be parsed gives an empty message',
    verdict: 'applies',
    check: async () => {
      for (const text of ['<tool_call>{"nam":"f"}</tool_call>', '{"name":"f","arguments":{}}', '</tool_call>']) {
        expect((await served(text)).message).toEqual({ role: 'assistant', content: text })
      }
    },
  },
  {
    id: 32,
    seen: 'vllm 9209, 25054',
    bug: 'finish_reason of a named or required call is not tool_calls',
    verdict: 'applies',
    check: async () => {
      const named = { type: 'function', function: { name: 'get_weather' } }
      for (const tool_choice of [named, 'required']) {
        const { choice, reason } = await served(call('{"city":"Oslo"}'), { tool_choice })
        expect([choice.finish_reason, reason]).toEqual(['tool_calls', 'tool_calls'])
      }
    },
  },
  {
    id: 33,
    seen: 'vllm 53255',
    bug: 'finish_reason tool_calls with an empty list',
    verdict: 'applies',
    check: async () => {
      const { choice, reason } = await served('no call')
      expect([choice.finish_reason, reason]).toEqual(['stop', 'stop'])
      expect(choice.message).not.toHaveProperty('tool_calls')
    },
  },
  {
    id: 34,
    seen: 'FastFlowLM 728',
    bug: 'a cut answer must be length, not tool_calls (the strict profile keeps tool_calls)',
    verdict: 'superseded',
    check: async () => {
      const cut: Said = { text: '<tool_call>{"name":"get_weather","arguments":{"ci', finishReason: 'length' }
      expect((await served(cut)).reason).toBe('length')
      const { chat } = await serve({ profile: 'openai-subset.v1', engine: new FakeEngine(() => cut) })
      const { choices } = await json(await chat({ tools: [weather] }))
      expect(choices[0]).toMatchObject({ finish_reason: 'tool_calls', message: { tool_calls: [{ truncated: true }] } })
    },
  },
  {
    id: 35,
    seen: 'llama.cpp 22072, Crow 203',
    bug: 'arguments that max_tokens cut give a 500',
    verdict: 'applies',
    check: async () => {
      const { chat } = await serve({
        engine: new FakeEngine(() => ({
          text: '<tool_call>{"name":"get_weather","arguments":{"a":"\\',
          finishReason: 'length',
        })),
      })
      const response = await chat({ tools: [weather] })
      expect(response.status).toBe(200)
      const { choices } = await json(response)
      // And a client may send the half call back.
      expect(
        (await chat({ messages: [{ role: 'user', content: 'x' }, choices[0].message, { role: 'user', content: 'y' }] }))
          .status,
      ).toBe(200)
    },
  },
  {
    id: 36,
    seen: 'vercel/ai 12605, ogx 1751, cheetahclaws 72, mistral-common 324',
    bug: 'null or empty content: take both, write null beside calls',
    verdict: 'applies',
    check: async () => {
      expect((await served(call('{}'))).message.content).toBeNull()
      const turn = (content: unknown) =>
        renderMessages([{ role: 'assistant', content, tool_calls: [{ function: { name: 'f', arguments: '{}' } }] }], [])
      expect(turn(null)).toEqual(turn(''))
      expect(turn(undefined)).toEqual(turn(''))
    },
  },
  {
    id: 37,
    seen: 'sglang 34677',
    bug: 'one unknown function name corrupts its neighbours',
    verdict: 'applies',
    check: () =>
      expect(shape(fold(`${call('{"a":1}')}\n${call('{"b":2}', 'unknown')}\n${call('{"c":3}')}`))).toEqual([
        null,
        ['get_weather', '{"a":1}'],
        ['unknown', '{"b":2}'],
        ['get_weather', '{"c":3}'],
      ]),
  },
  {
    id: 38,
    seen: 'llama.cpp 19503',
    bug: 'the token that completes the trigger carries more text',
    verdict: 'applies',
    // What the mask makes of such tokens is tested with the automaton; the parser takes them in any cut.
    check: () =>
      expect(shape(fold('x<tool_c', 'all>{"name":"f","arguments":{', '}}</tool_call>'))).toEqual(['x', ['f', '{}']]),
  },
  {
    id: 39,
    seen: 'llama.cpp 26787',
    bug: 'the trigger is found inside of a longer word',
    verdict: 'applies',
    check: () => {
      for (const text of ['<tool_calls>{"name":"f","arguments":{}}', '<tool_call_x>', '< tool_call>', '<Tool_call>']) {
        expect(shape(fold(text))).toEqual([text])
      }
    },
  },
  {
    id: 40,
    seen: 'llama.cpp 20359, 20385',
    bug: 'the order of parameters is lost',
    verdict: 'applies',
    check: () => {
      const schema =
        '{"type":"object","properties":{"b":{"type":"null"},"10":{"type":"null"},"a":{"type":"null"},"2":{"type":"null"}}}'
      const request = parseToolRequest(`{"tools":[${weatherTool('f', schema)}],"tool_choice":"required"}`)
      expect(JSON.stringify(grammar(request)?.description)).toContain(JSON.stringify(schema))
      expect(renderMessages([], request.tools)[0]?.content).toContain(schema)
    },
  },
  {
    id: 41,
    seen: 'llama.cpp 24807',
    bug: 'a second closing tag makes the whole call disappear',
    verdict: 'applies',
    check: () =>
      expect(shape(fold(`${call('{"a":1}')}</tool_call>`))).toEqual(['</tool_call>', ['get_weather', '{"a":1}']]),
  },
  {
    id: 42,
    seen: 'gLLM 286',
    bug: 'a marker quoted in prose is taken for a call (here: a whole call is one, wherever it stands)',
    verdict: 'superseded',
    check: () => {
      expect(shape(fold('Write `<tool_call>` first.'))).toEqual(['Write `<tool_call>` first.'])
      expect(shape(fold(`Like \`${call('{}')}\`.`))).toEqual(['Like ``.', ['get_weather', '{}']])
    },
  },
]

test('every bug has its row', () => {
  expect(rows.map(({ id }) => id)).toEqual(Array.from({ length: 42 }, (_, i) => i + 1))
  for (const { verdict, check } of rows) expect(check === undefined).toBe(verdict === 'format not served')
})

test.each(rows.filter(({ check }) => check !== undefined))('$id ($seen): $bug', async ({ check }) => {
  await check?.()
})
