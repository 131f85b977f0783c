import fc from 'fast-check'
import { routedCallId, routedResultHeader, routedResultText, splitRoutedResult } from '../../src/routing/index.js'

describe('the result message', () => {
  test('synopsis: the user message that answers a routed call', () => {
    expect(routedResultText('memory_search', routedCallId(1), '{"records":[]}')).toBe(
      'Tool result for memory_search (call route-1):\n{"records":[]}',
    )
  })

  test('the examples: a result and an error, whose header names the call', () => {
    expect(routedResultText('memory_search', routedCallId(2), '{"records":[{"id":"M1","title":"The latch"}]}')).toBe(
      'Tool result for memory_search (call route-2):\n{"records":[{"id":"M1","title":"The latch"}]}',
    )
    expect(
      routedResultText('memory_read', routedCallId(3), 'memory_read ids take the codes memory_search lists', {
        isError: true,
      }),
    ).toBe('Tool error for memory_read (call route-3):\nmemory_read ids take the codes memory_search lists')
  })

  test('routedResultHeader is the first line on its own', () => {
    expect(routedResultHeader('t', 'route-9')).toBe('Tool result for t (call route-9):')
    expect(routedResultHeader('t', 'route-9', { isError: true })).toBe('Tool error for t (call route-9):')
  })

  test('routedCallId is a pure function of the round', () => {
    expect([1, 2, 1000].map(routedCallId)).toEqual(['route-1', 'route-2', 'route-1000'])
  })

  test('splitRoutedResult gives an empty list for any other text', () => {
    const others = [
      '',
      'hello',
      'Tool result for x (call route-1):',
      'tool result for x (call route-1):\ny',
      'Tool result for x (call route-1)\ny',
      'Tool results for x (call route-1):\ny',
      ' Tool result for x (call route-1):\ny',
      'Tool result for  (call ):\ny',
      'hello\nTool result for x (call route-1):\ny',
    ]
    for (const text of others) expect(splitRoutedResult(text)).toEqual([])
  })

  test('splitRoutedResult inverts routedResultText for every content and every tool name without a line break', () => {
    const text = fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.constantFrom('\n', '\r\n', 'a\n\nb', 'Tool result for x (call route-1):\ny', '\u2028', '):\n'),
    )
    const name = fc.string({ unit: 'grapheme', minLength: 1 }).filter((s) => !/[\r\n]/.test(s))
    fc.assert(
      fc.property(name, fc.nat(), text, fc.boolean(), (tool, round, content, isError) => {
        const id = routedCallId(round)
        expect(splitRoutedResult(routedResultText(tool, id, content, { isError }))).toEqual([
          routedResultHeader(tool, id, { isError }),
          content,
        ])
      }),
    )
  })
})
