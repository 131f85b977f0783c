/**
 * Finds where one JSON value ends in text that comes in pieces. It trusts the value to be JSON: brackets are counted
 * outside of strings, nothing is validated. Cost: every UTF-16 unit once.
 */

export const QUOTE = 0x22
export const BACKSLASH = 0x5c

/** JSON's white space. */
export function isSpace(unit: number): boolean {
  return unit === 0x20 || unit === 0x09 || unit === 0x0a || unit === 0x0d
}

export class ValueScanner {
  #form: 'unknown' | 'nested' | 'string' | 'scalar' = 'unknown'
  #depth = 0
  #inString = false
  #escaped = false
  /** The value has ended. */
  closed = false
  /** Where the value's part of the last piece begins: white space before the value is not part of it. */
  from = 0

  /** A bracket or string is open. */
  get open(): boolean {
    return (this.#form === 'nested' || this.#form === 'string') && !this.closed
  }

  /** Reads on; returns where the value's part of this piece ends. A bare scalar ends at a `}`. */
  take(text: string, start: number): number {
    let at = start
    if (this.#form === 'unknown') {
      while (at < text.length && isSpace(text.charCodeAt(at))) at += 1
      this.from = at
      if (at === text.length) return at
      const first = text[at]
      this.#form = first === '{' || first === '[' ? 'nested' : first === '"' ? 'string' : 'scalar'
    } else this.from = start
    if (this.#form === 'scalar') {
      const end = text.indexOf('}', at)
      this.closed = end >= 0
      return end < 0 ? text.length : end
    }
    while (at < text.length) {
      const unit = text.charCodeAt(at)
      at += 1
      if (this.#inString) {
        if (this.#escaped) this.#escaped = false
        else if (unit === BACKSLASH) this.#escaped = true
        else if (unit === QUOTE) this.#inString = false
      } else if (unit === QUOTE) this.#inString = true
      else if (unit === 0x7b || unit === 0x5b) this.#depth += 1
      else if (unit === 0x7d || unit === 0x5d) this.#depth -= 1
      if (this.#depth === 0 && !this.#inString) {
        this.closed = true
        break
      }
    }
    return at
  }
}

/**
 * Removes the white space outside of strings and keeps the spelling of every token (`1.50` stays `1.50`). The text
 * must be JSON.
 */
export function minifyJson(text: string): string {
  const kept: string[] = []
  let from = 0
  let inString = false
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at)
    if (inString) {
      if (unit === BACKSLASH) at += 1
      else if (unit === QUOTE) inString = false
    } else if (unit === QUOTE) inString = true
    else if (isSpace(unit)) {
      kept.push(text.slice(from, at))
      from = at + 1
    }
  }
  kept.push(text.slice(from))
  return kept.join('')
}
