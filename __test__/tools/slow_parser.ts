/**
 * The streaming parser's meaning, said slowly: the whole text at once, by regular expressions, no state kept. It
 * returns what `shape()` makes of a folded answer.
 */
const SPACE = '[ \\t\\n\\r]*'
const HEADER = new RegExp(
  [
    '^<tool_call>',
    '\\{',
    '"name"',
    ':',
    '("(?:[^"\\\\\\x00-\\x1f]|\\\\["\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4})*")',
    ',',
    '"arguments"',
    ':',
  ].join(SPACE) + SPACE,
)
const TAIL = new RegExp(`^${SPACE}\\}${SPACE}</tool_call>`)

export function parseSlowly(text: string): [string | null, ...[string, string][]] {
  const calls: [string, string][] = []
  let content = ''
  let rest = text
  let afterCall = false
  for (;;) {
    const opener = rest.indexOf('<tool_call>')
    const before = opener < 0 ? rest : rest.slice(0, opener)
    if (!(afterCall && /^[ \t\n\r]*$/.test(before))) content += before
    if (opener < 0) break
    rest = rest.slice(opener)
    const header = HEADER.exec(rest)
    if (header === null) {
      content += '<tool_call>'
      rest = rest.slice('<tool_call>'.length)
      afterCall = false
      // The end of the text inside a header: what follows is content, even if an opener is in it.
      if (mayBecomeHeader(rest)) {
        content += rest
        break
      }
      continue
    }
    rest = rest.slice(header[0].length)
    const end = valueEnd(rest)
    calls.push([JSON.parse(header[1] ?? '') as string, end === null ? rest : rest.slice(0, end)])
    if (end === null) break
    rest = rest.slice(end)
    const tail = TAIL.exec(rest)
    afterCall = true
    if (tail !== null) rest = rest.slice(tail[0].length)
    else if (mayBecomeTail(rest)) break
  }
  return [
    content === '' ? null : content,
    ...calls.map(([name, args], i): [string, string] => [name, argumentsOf(args, i, calls.length, text)]),
  ]
}

/** An empty value that ended is written as the empty object; one that was cut stays empty. */
function argumentsOf(args: string, index: number, count: number, text: string): string {
  return args === '' && !(index === count - 1 && valueIsEmpty(text)) ? '{}' : args
}

function valueIsEmpty(text: string): boolean {
  return new RegExp(`"arguments"${SPACE}:${SPACE}$`).test(text)
}

/** Whether some further text could make a header of this. */
function mayBecomeHeader(text: string): boolean {
  const parts = ['{', '"name"', ':', null, ',', '"arguments"', ':']
  let at = 0
  for (const part of parts) {
    while (/^[ \t\n\r]$/.test(text.charAt(at))) at += 1
    if (at === text.length) return true
    const left = text.slice(at)
    if (part === null) {
      const whole = /^"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/.exec(left)
      if (whole === null)
        return /^"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*(?:\\(?:u[0-9a-fA-F]{0,3})?)?$/.test(left)
      at += whole[0].length
    } else if (left.startsWith(part)) at += part.length
    else return part.startsWith(left)
  }
  return false
}

function mayBecomeTail(text: string): boolean {
  const compact = text.replace(/^[ \t\n\r]*/, '').replace(/^(\})[ \t\n\r]*/, '$1')
  return '}</tool_call>'.startsWith(compact)
}

/** Where the first JSON value of a text ends; null when it does not. */
function valueEnd(text: string): number | null {
  if (!/^[{["]/.test(text)) {
    const end = text.indexOf('}')
    return end < 0 ? null : end
  }
  const open: string[] = []
  for (const token of text.matchAll(/"(?:[^"\\]|\\[^])*"|"[^]*$|[{}[\]]/g)) {
    if (token[0].startsWith('"')) {
      if (!/^"(?:[^"\\]|\\[^])*"$/.test(token[0])) return null
    } else if (/[{[]/.test(token[0])) open.push(token[0])
    else open.pop()
    if (open.length === 0) return token.index + token[0].length
  }
  return null
}
