import fc from 'fast-check'
import { FakeEngine } from './fake_engine.js'
import { call, closeAll, serve, weather } from './support.js'

afterAll(closeAll)

const valid = {
  model: 'fake-model',
  messages: [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: [{ type: 'text', text: 'hi' }] },
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }],
    },
    { role: 'tool', tool_call_id: 'c', content: '1' },
  ],
  tools: [weather],
  tool_choice: { type: 'function', function: { name: 'get_weather' } },
  response_format: { type: 'json_schema', json_schema: { name: 'n', schema: { type: 'object', properties: {} } } },
  parallel_tool_calls: false,
  temperature: 1,
  top_p: 1,
  seed: 1,
  stop: ['x'],
  n: 2,
  logprobs: true,
  top_logprobs: 1,
  logit_bias: { 1: 1 },
  max_tokens: 5,
  stream_options: { include_usage: true },
  user: 'u',
}

/** Every place in a value, as a path of keys. */
function places(value: unknown, path: readonly string[] = []): (readonly string[])[] {
  if (typeof value !== 'object' || value === null) return [path]
  return [path, ...Object.entries(value).flatMap(([key, inner]) => places(inner, [...path, key]))]
}

function replaced(value: unknown, [key, ...rest]: readonly string[], by: unknown): unknown {
  if (key === undefined) return by
  const copy: Record<string, unknown> = Array.isArray(value) ? ([...value] as never) : { ...(value as object) }
  copy[key] = replaced(copy[key], rest, by)
  return copy
}

test('whatever one place of a request holds, the answer is an answer or names what is wrong', async () => {
  const { url } = await serve({ engine: new FakeEngine(() => call('{"city":"Rome"}')) })
  const { url: strict } = await serve({ profile: 'openai-subset.v1', engine: new FakeEngine(() => 'x') })
  await fc.assert(
    fc.asyncProperty(
      fc.constantFrom(...places(valid)),
      fc.oneof(
        fc.jsonValue({ maxDepth: 2 }),
        fc.constantFrom('none', 'auto', 'required', -1, 0, 1e300, '', [], {}, [{}], [null]),
      ),
      fc.constantFrom(url, strict),
      fc.boolean(),
      async (place, by, base, stream) => {
        const body = { ...(replaced(valid, place, by) as object), stream }
        const response = await fetch(`${base}/v1/chat/completions`, { method: 'POST', body: JSON.stringify(body) })
        const text = await response.text()
        if (response.status === 200) {
          expect(text).toContain(stream ? 'data: [DONE]' : '"usage"')
          return
        }
        expect([400, 404, 422]).toContain(response.status)
        const { error } = JSON.parse(text) as { error: Record<string, unknown> }
        expect(Object.keys(error).sort()).toEqual(['code', 'message', 'param', 'type'])
        expect(error['type']).toBe('invalid_request_error')
        // What is wrong is at the place that was changed, or depends on it.
        expect(error['param'] === null || typeof error['param'] === 'string').toBe(true)
      },
    ),
    { numRuns: 600 },
  )
})

test('whatever the bytes of a body, the server answers', async () => {
  const { url } = await serve()
  await fc.assert(
    fc.asyncProperty(
      fc.oneof(
        fc.uint8Array({ maxLength: 60 }),
        fc.json().map((text) => new TextEncoder().encode(text)),
      ),
      async (bytes) => {
        for (const path of ['/v1/chat/completions', '/v1/completions', '/tokenize', '/detokenize']) {
          const response = await fetch(url + path, { method: 'POST', body: bytes })
          await response.text()
          expect([200, 400, 404, 422]).toContain(response.status)
        }
      },
    ),
  )
})
