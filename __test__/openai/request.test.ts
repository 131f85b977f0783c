import fc from 'fast-check'
import { readBody } from '../../src/openai/body.js'
import { fullProfile, strictProfile, type Profile } from '../../src/openai/profile.js'
import { readChatRequest, readCompletionRequest } from '../../src/openai/request.js'
import { ToolError } from '../../src/openai/tool_error.js'

const both: readonly Profile[] = [strictProfile, fullProfile]

const body = (fields: string) =>
  readBody(`{"messages":[{"role":"user","content":"hi"}]${fields === '' ? '' : `,${fields}`}}`)
const read = (fields: string, profile: Profile = fullProfile) => readChatRequest(body(fields), profile)

function failure(fields: string, profile: Profile): [number, string | null] {
  try {
    read(fields, profile)
  } catch (error) {
    if (error instanceof ToolError) return [error.status, error.param]
    throw error
  }
  throw new Error(`accepted: ${fields}`)
}

test('the defaults', () => {
  for (const profile of both) {
    expect(read('', profile)).toMatchObject({
      model: null,
      sampling: { temperature: 1, topP: 1 },
      maxTokens: null,
      choices: 1,
      stream: false,
      includeUsage: false,
      logprobs: null,
      closeWithinBudget: false,
      ignored: [],
    })
  }
})

test('null is absent for every field', () => {
  const names = [
    'model temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty seed stop max_tokens',
    'max_completion_tokens n stream stream_options user echo logprobs top_logprobs logit_bias close_within_budget',
    'functions audio modalities prediction',
  ]
    .join(' ')
    .split(' ')
  for (const profile of both) {
    expect({ ...read(names.map((name) => `"${name}":null`).join(','), profile), ignored: [] }).toEqual(
      read('', profile),
    )
  }
})

test.each([
  ['model', ['1']],
  ['temperature', ['-0.1', '2.1', '"1"', 'true']],
  ['top_p', ['0', '1.1', '"1"']],
  ['top_k', ['-1', '1.5', '"1"']],
  ['min_p', ['-0.1', '1.1']],
  ['repetition_penalty', ['0', '-1', '101']],
  ['presence_penalty', ['-2.1', '2.1']],
  ['frequency_penalty', ['-2.1', '2.1']],
  ['seed', ['-1', '9223372036854775808', '1.5', '"1"', '1e3']],
  ['stop', ['""', '[]', '["a","b","c","d","e"]', '["a",""]', '1']],
  ['max_tokens', ['0', '-1', '1.5', '"9"']],
  ['max_completion_tokens', ['0', '"9"']],
  ['n', ['0', '129', '1.5']],
  ['stream', ['1', '"true"']],
  ['stream_options', ['true', '{"include_usage":1}']],
  ['user', ['1', `"${'x'.repeat(257)}"`]],
  ['logprobs', ['1', '5']],
  ['echo', ['1']],
])('%s outside its range is 400', (name, values) => {
  for (const profile of both) {
    for (const value of values) expect([value, ...failure(`"${name}":${value}`, profile)]).toEqual([value, 400, name])
  }
})

test('top_logprobs is 0 to 20 and needs logprobs', () => {
  for (const profile of both) {
    for (const fields of [
      '"top_logprobs":21,"logprobs":true',
      '"top_logprobs":2',
      '"top_logprobs":2,"logprobs":false',
    ]) {
      expect(failure(fields, profile)).toEqual([400, 'top_logprobs'])
    }
    expect(read('"logprobs":true,"top_logprobs":20', profile).logprobs).toBe(20)
    expect(read('"logprobs":true', profile).logprobs).toBe(0)
  }
})

test('the bounds themselves are inside', () => {
  for (const profile of both) {
    const { sampling } = read(
      '"temperature":2,"top_p":1,"top_k":0,"min_p":1,"presence_penalty":-2,"frequency_penalty":2,"seed":9223372036854775807,"stop":"x"',
      profile,
    )
    expect(sampling).toEqual({
      temperature: 2,
      topP: 1,
      topK: 0,
      minP: 1,
      presencePenalty: -2,
      frequencyPenalty: 2,
      seed: 2n ** 63n - 1n,
      stop: 'x',
    })
  }
})

test('a seed keeps every digit', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 2n ** 63n - 1n }), (seed) => {
      expect(read(`"seed":${seed}`).sampling.seed).toBe(seed)
    }),
  )
})

test('max_completion_tokens wins over max_tokens', () => {
  expect(read('"max_tokens":9,"max_completion_tokens":7').maxTokens).toBe(7)
  expect(read('"max_tokens":9').maxTokens).toBe(9)
})

describe('where the profiles differ', () => {
  test('n above 1', () => {
    expect(failure('"n":2', strictProfile)).toEqual([422, 'n'])
    expect(read('"n":1', strictProfile).choices).toBe(1)
    expect(read('"n":128').choices).toBe(128)
  })

  test('logit_bias is unknown to strict', () => {
    expect(read('"logit_bias":"nonsense"', strictProfile).sampling).not.toHaveProperty('logitBias')
    expect(read('"logit_bias":{"7":-100,"9":3.5}').sampling.logitBias).toEqual({ 7: -100, 9: 3.5 })
    for (const value of ['[]', '{"a":1}', '{"-1":1}', '{"1":101}', '{"1":"x"}']) {
      expect(failure(`"logit_bias":${value}`, fullProfile)).toEqual([400, 'logit_bias'])
    }
  })

  test.each(['functions', 'function_call', 'prediction', 'modalities', 'audio', 'guided_json', 'reasoning_effort'])(
    '%s would change the output: 422 in full, unknown to strict',
    (name) => {
      expect(failure(`"${name}":[]`, fullProfile)).toEqual([422, name])
      expect(read(`"${name}":[]`, strictProfile).ignored).toEqual([name])
    },
  )

  test('metadata is accepted, unknown fields are named', () => {
    expect(read('"user":"u","store":true,"metadata":{},"service_tier":"auto"').ignored).toEqual([])
    expect(read('"zeta":1,"alpha":2').ignored).toEqual(['zeta', 'alpha'])
  })

  test('close_within_budget is unknown to strict', () => {
    expect(read('"close_within_budget":true').closeWithinBudget).toBe(true)
    expect(read('"close_within_budget":true', strictProfile).closeWithinBudget).toBe(false)
  })
})

test('echo is 422 in both', () => {
  for (const profile of both) {
    expect(failure('"echo":true', profile)).toEqual([422, 'echo'])
    expect(read('"echo":false', profile).choices).toBe(1)
  }
})

test('completions take a text, one text in an array, or token ids', () => {
  const prompt = (text: string) => readCompletionRequest(readBody(`{"prompt":${text}}`), fullProfile).prompt
  expect(prompt('"a"')).toBe('a')
  expect(prompt('["a"]')).toBe('a')
  expect(prompt('[1,2]')).toEqual([1, 2])
  for (const bad of ['1', '[]', '["a","b"]', '[-1]', '[1,"a"]', '{}']) expect(() => prompt(bad)).toThrow(ToolError)
})
