import fc from 'fast-check'
import { collect, deltaJson, finishReason, messageJson } from '../../src/tools/events.js'
import { ToolParser } from '../../src/tools/parser.js'
import { fullProfile, strictProfile } from '../../src/openai/profile.js'
import { fold, parsePieces, shape } from './support.js'
import { parseSlowly } from './slow_parser.js'

const call = (args: string, name = 'f') => `<tool_call>{"name":"${name}","arguments":${args}}</tool_call>`

test('parser_hand_example', () => {
  const pieces = ['Sure.<tool_', 'call>{"name":"get_weather","argu', 'ments":{"city":"Pa', 'ris"}}</tool_call>']
  expect(parsePieces(pieces)).toEqual([
    [{ type: 'content', text: 'Sure.' }],
    [],
    [
      { type: 'callStart', index: 0, id: 'call_req7_0', name: 'get_weather' },
      { type: 'arguments', index: 0, fragment: '{"city":"Pa' },
    ],
    [{ type: 'arguments', index: 0, fragment: 'ris"}' }],
    [],
  ])
  const folded = fold(...pieces)
  expect(folded).toEqual({
    content: 'Sure.',
    calls: [{ id: 'call_req7_0', name: 'get_weather', arguments: '{"city":"Paris"}' }],
  })
  expect(finishReason(folded.calls.length, 'stop')).toBe('tool_calls')
})

describe('parser_holds_back_only_real_markup', () => {
  test('text is said at once, up to a suffix that may begin the opener', () => {
    expect(parsePieces(['a<b', 'c<', '<too', 'l'])).toEqual([
      [{ type: 'content', text: 'a<b' }],
      [{ type: 'content', text: 'c' }],
      [{ type: 'content', text: '<' }],
      [],
      [{ type: 'content', text: '<tool' }],
    ])
  })

  test.each([
    ['a trailing prefix of the opener', 'x <tool', 'x <tool'],
    ['an opener without a header', 'x <tool_call> and more', 'x <tool_call> and more'],
    ['an opener at the end', 'x<tool_call>', 'x<tool_call>'],
    ['an incomplete header at the end', '<tool_call>{"name":"f","argu', '<tool_call>{"name":"f","argu'],
    ['arguments before the name', '<tool_call>{"arguments":{}}', '<tool_call>{"arguments":{}}'],
    ['a name that is no string', '<tool_call>{"name":1,"arguments":{}}', '<tool_call>{"name":1,"arguments":{}}'],
    [
      'a bad escape in the name',
      '<tool_call>{"name":"\\x","arguments":{}}',
      '<tool_call>{"name":"\\x","arguments":{}}',
    ],
    ['white space alone', ' \n ', ' \n '],
    ['a closing tag alone', '</tool_call>', '</tool_call>'],
  ])('%s is content', (_, text, content) => {
    for (const pieces of [[text], [...text]]) expect(shape(fold(...pieces))).toEqual([content])
  })

  test('after a header that fails, the text is scanned again from its first character', () => {
    expect(shape(fold(`<tool_call>${call('{}')}`))).toEqual(['<tool_call>', ['f', '{}']])
    expect(shape(fold(`<tool_call>{"name":"${call('{"a":1}')}`))).toEqual(['<tool_call>{"name":"', ['f', '{"a":1}']])
  })

  test('an answer that ends inside a call keeps what there is and says so', () => {
    for (const text of ['<tool_call>{"name":"f","arguments":', '<tool_call>{"name":"f","arguments":{"a":[1,"}']) {
      const { calls, content } = fold(text)
      expect(content).toBeNull()
      expect(calls).toEqual([
        {
          id: 'call_req7_0',
          name: 'f',
          arguments: text.slice('<tool_call>{"name":"f","arguments":'.length),
          truncated: true,
        },
      ])
    }
    expect(fold('<tool_call>{"name":"f","arguments":{"a":1}}</tool_').calls[0]).not.toHaveProperty('truncated')
  })
})

describe('parser_parallel_calls', () => {
  test('indices count up, ids follow them, the newline between calls is not content', () => {
    const text = `${call('{"x":1}', 'a')}\n${call('{}', 'b')}\n${call('[2]', 'a')}\n`
    for (const pieces of [[text], [...text]]) {
      expect(fold(...pieces)).toEqual({
        content: null,
        calls: [
          { id: 'call_req7_0', name: 'a', arguments: '{"x":1}' },
          { id: 'call_req7_1', name: 'b', arguments: '{}' },
          { id: 'call_req7_2', name: 'a', arguments: '[2]' },
        ],
      })
    }
  })

  test('a later choice of the request has ids of its own', () => {
    const [start] = new ToolParser('chatcmpl-1', { choice: 2 }).push(call('{}'))
    expect(start).toMatchObject({ id: 'call_chatcmpl-1_2_0' })
  })

  test.each([
    ['text around a call is verbatim', `1 ${call('{}')} done`, ['1  done', ['f', '{}']]],
    ['white space after a call waits for what comes', `${call('{}')} \r\n\t`, [null, ['f', '{}']]],
    ['and is content before text', `${call('{}')}\n x \n${call('1', 'g')}`, ['\n x \n', ['f', '{}'], ['g', '1']]],
    ['also before what only looks like a call', `${call('{}')}\n<tool!`, ['\n<tool!', ['f', '{}']]],
    ['also at the end', `${call('{}')}\n<tool`, ['\n<tool', ['f', '{}']]],
    [
      'after a bad tail the rest is text',
      `<tool_call>{"name":"f","arguments":{}} ${call('2', 'g')}`,
      ['} ', ['f', '{}'], ['g', '2']],
    ],
    [
      'white space inside a call is allowed',
      '<tool_call>\n{ "name" : "f" , "arguments" : {"a": 1} }\n</tool_call>',
      [null, ['f', '{"a": 1}']],
    ],
    [
      'scalars end at the call',
      call('12.5e3') + call('"}"') + call('null'),
      [null, ['f', '12.5e3'], ['f', '"}"'], ['f', 'null']],
    ],
    ['brackets in strings do not count', call('{"a":"}]\\"{["}'), [null, ['f', '{"a":"}]\\"{["}']]],
    ['an escaped name is read', call('{}', '\\u0066\\n'), [null, ['f\n', '{}']]],
  ])('%s', (_, text, expected) => {
    for (const pieces of [[text], [...text]]) expect(shape(fold(...pieces))).toEqual(expected)
  })
})

/** Texts made of what the parser cares about, whole calls among them. */
const marked = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        '<',
        '<tool',
        '<tool_call>',
        '</tool_call>',
        '<tool_call><tool_call>',
        '\n',
        ' ',
        '}',
        '{"name":"',
        '"',
        '\\',
      ),
      fc.constantFrom(
        '{"name":"f","arguments":',
        '{ "name": "g" ,"arguments":',
        '{"name":"é😀","arguments":',
        '{"a":"}',
        '"}}',
        '1}',
        '[[',
        ']]',
      ),
      fc.json({ maxDepth: 3 }).map((value) => call(value)),
      fc.json({ maxDepth: 3 }).map((value) => `<tool_call>\n{"name": "g", "arguments": ${value}}\n</tool_call>\n`),
      fc.string({ unit: 'binary', maxLength: 6 }),
    ),
    { maxLength: 12 },
  )
  .map((parts) => parts.join(''))

const splitAt = (text: string, cuts: readonly number[]) => {
  const points = [...text]
  const at = [...new Set(cuts.map((cut) => cut % (points.length + 1)))].sort((a, b) => a - b)
  return [0, ...at].map((from, i) => points.slice(from, at[i]).join(''))
}

describe('parser_is_split_invariant', () => {
  const examples = [
    `1 ${call('{"a":[1,{"b":"}</tool_call>"}]}')}\n${call('"é😀\\u00e9\\""', 'gé')} done <tool_call>{"name" : "x`,
    `Sure.<tool_call>{"name":"get_weather","arguments":{"city":"Paris"}}</tool_call>`,
    `<tool_call>${call('{}')}<tool_call>{"name":"f","arguments":{}}x${call('1')} \n<tool_c`,
    `${call('{}')}\n \n<tool_call>{"name":"<tool_call>{"name":"h","arguments":{"k":`,
  ]

  test.each(examples)('every 2-way split of %s', (text) => {
    const whole = fold(text)
    for (let cut = 0; cut <= [...text].length; cut += 1) expect(fold(...splitAt(text, [cut]))).toEqual(whole)
    expect(fold(...text)).toEqual(whole)
  })

  test('200 random splits', () => {
    fc.assert(
      fc.property(fc.constantFrom(...examples), fc.array(fc.nat(200), { maxLength: 30 }), (text, cuts) => {
        expect(fold(...splitAt(text, cuts))).toEqual(fold(text))
      }),
      { numRuns: 200 },
    )
  })

  test('random texts with parts of markup, split anywhere, agree with the slow parser on the whole text', () => {
    fc.assert(
      fc.property(marked, fc.array(fc.nat(400), { maxLength: 40 }), (text, cuts) => {
        const slow = parseSlowly(text)
        expect(shape(fold(text))).toEqual(slow)
        expect(shape(fold(...splitAt(text, cuts)))).toEqual(slow)
      }),
      { numRuns: 1000 },
    )
  })

  test('nothing that was said changes later', () => {
    fc.assert(
      fc.property(marked, (text) => {
        const parser = new ToolParser('r')
        let said = ''
        for (const point of text) {
          for (const event of parser.push(point))
            said += event.type === 'callStart' ? event.name : 'text' in event ? event.text : event.fragment
          // Names apart (they are decoded), every character said was in the text.
          expect(said.length).toBeLessThanOrEqual(text.length)
        }
      }),
    )
  })

  test('the work grows with the text, not with its square', () => {
    // Each of these took minutes at a quadratic cost.
    for (const unit of [
      '<tool_call>',
      '<',
      '<tool_call>{"name":"',
      ' ',
      call('{}'),
      '<tool_call>{"name":"f","arguments":1}x',
    ]) {
      const text = call('{}') + unit.repeat(300_000 / unit.length)
      const parser = new ToolParser('r')
      for (let at = 0; at < text.length; at += 7) parser.push(text.slice(at, at + 7))
      parser.finish()
      const whole = new ToolParser('r')
      whole.push(text)
      whole.finish()
      expect(whole.calls).toBe(parser.calls)
    }
  })
})

describe('message_and_delta_json_shapes', () => {
  const one = { id: 'call_r_0', name: 'f', arguments: '{"a":1}' }

  test('the message', () => {
    expect(messageJson('hi', [])).toEqual({ role: 'assistant', content: 'hi' })
    expect(messageJson('hi', [])).not.toHaveProperty('tool_calls')
    for (const content of [null, '']) {
      expect(messageJson(content, [one])).toEqual({
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_r_0', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }],
      })
    }
    expect(messageJson('Sure.', [one]).content).toBe('Sure.')
    expect(messageJson(null, [{ ...one, truncated: true }]).tool_calls?.[0]).toHaveProperty('truncated', true)
  })

  test('arguments are a string, {} when there are none', () => {
    const { calls } = collect([{ type: 'callStart', index: 0, id: 'call_r_0', name: 'f' }], { lastCallCut: false })
    expect(messageJson(null, calls).tool_calls?.[0]?.function.arguments).toBe('{}')
  })

  test('the deltas', () => {
    expect(deltaJson({ type: 'content', text: 'a' })).toEqual({ content: 'a' })
    expect(deltaJson({ type: 'callStart', index: 1, id: 'call_r_1', name: 'f' })).toEqual({
      tool_calls: [{ index: 1, id: 'call_r_1', type: 'function', function: { name: 'f', arguments: '' } }],
    })
    expect(deltaJson({ type: 'arguments', index: 1, fragment: '{"a' })).toEqual({
      tool_calls: [{ index: 1, function: { arguments: '{"a' } }],
    })
  })

  test('the finish reason', () => {
    expect(finishReason(0, 'stop')).toBe('stop')
    expect(finishReason(0, 'length')).toBe('length')
    expect(finishReason(1, 'stop', { profile: fullProfile, lastCallCut: false })).toBe('tool_calls')
    expect(finishReason(2, 'length', { profile: fullProfile, lastCallCut: false })).toBe('tool_calls')
    expect(finishReason(2, 'length', { profile: fullProfile, lastCallCut: true })).toBe('length')
    expect(finishReason(2, 'length', { profile: strictProfile, lastCallCut: true })).toBe('tool_calls')
  })

  test('collect sees a cut call by itself', () => {
    const start = { type: 'callStart', index: 0, id: 'i', name: 'f' } as const
    for (const [fragment, cut] of [
      ['{"a":"\\"}', true],
      ['{"a":1}', false],
      ['"a\\"', true],
      ['1', false],
    ] as const) {
      const { calls } = collect([start, { type: 'arguments', index: 0, fragment }])
      expect(calls[0]?.truncated ?? false).toBe(cut)
    }
  })
})
