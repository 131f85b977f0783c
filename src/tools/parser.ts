/**
 * The streaming parser of tagged calls: text in, events out.
 *
 * A call is `OPEN {"name":…,"arguments":VALUE} CLOSE`, JSON white space allowed between the tokens. Invariants: what
 * was said is never taken back and never repeated; the concatenation of all events is the same however the text was
 * split. Cost: every character is looked at once, and at most twice more when a call's header or tail turns out not
 * to be one; what is held back is a prefix of the opener, white space after a call, a header, or a tail.
 */
import type { ToolEvent } from './events.js'
import { compactTags, type CallTags } from './format.js'
import { BACKSLASH, isSpace, QUOTE, ValueScanner } from './value_scanner.js'

export interface ToolParserOptions {
  /** Which choice of the request this is; the ids of later choices say so. Default: 0. */
  readonly choice?: number
  readonly tags?: CallTags
}

/** What must follow the opener, in order; null stands for the name, a JSON string. */
const HEADER = ['{', '"name"', ':', null, ',', '"arguments"', ':'] as const

type Step = 'going' | 'done' | 'failed'

export class ToolParser {
  readonly #ids: string
  readonly #tags: CallTags
  #state: 'text' | 'header' | 'arguments' | 'tail' = 'text'
  #calls = 0
  /** Text before the current piece that belongs to an unfinished header or tail. */
  #held = ''

  // In text.
  /** How many characters of the opener have been matched and are held back. */
  #matched = 0
  /** No text has come since the last call; white space is held in `#space`. */
  #afterCall = false
  #space = ''

  #header = new HeaderMatcher()
  #value = new ValueScanner()
  #tail: TailMatcher

  constructor(requestId: string, options: ToolParserOptions = {}) {
    const { choice = 0, tags = compactTags } = options
    this.#ids = choice === 0 ? `call_${requestId}` : `call_${requestId}_${choice}`
    this.#tags = tags
    this.#tail = new TailMatcher(tags.close)
  }

  /** How many calls have started. */
  get calls(): number {
    return this.#calls
  }

  /** Whether the last call's arguments have not ended. After `finish()`: whether it was cut. */
  get lastCallCut(): boolean {
    return this.#state === 'arguments'
  }

  push(piece: string): ToolEvent[] {
    const out: ToolEvent[] = []
    let text = piece
    let at = 0
    // Where the unfinished header or tail begins in `text`.
    let begin = 0
    while (at < text.length) {
      if (this.#state === 'text') {
        at = this.#scanText(text, at, out)
        begin = at
      } else if (this.#state === 'arguments') {
        const end = this.#value.take(text, at)
        this.#say(out, { type: 'arguments', index: this.#calls - 1, fragment: text.slice(this.#value.from, end) })
        at = end
        begin = at
        if (this.#value.closed) {
          this.#state = 'tail'
          this.#tail = new TailMatcher(this.#tags.close)
        }
      } else {
        const matcher = this.#state === 'header' ? this.#header : this.#tail
        const step = matcher.take(text.charCodeAt(at))
        at += 1
        if (step === 'going') continue
        if (step === 'failed') {
          // Back to the first character that was held. It lies in an earlier piece at most once per push.
          if (this.#held !== '') text = this.#held + text.slice(begin)
          at = this.#held === '' ? begin : 0
        }
        this.#held = ''
        this.#leave(step, out)
        begin = at
      }
    }
    if (this.#state === 'header' || this.#state === 'tail') this.#held += text.slice(begin)
    return out
  }

  /** The end of the text: what was held back and is no call becomes content; a started call stays cut. */
  finish(): ToolEvent[] {
    const out: ToolEvent[] = []
    if (this.#state === 'header') {
      this.#say(out, { type: 'content', text: this.#tags.open + this.#held })
    } else if (this.#state === 'text' && this.#matched > 0) {
      this.#say(out, { type: 'content', text: this.#space + this.#tags.open.slice(0, this.#matched) })
    }
    if (this.#state !== 'arguments') this.#state = 'text'
    this.#held = ''
    this.#space = ''
    this.#matched = 0
    return out
  }

  /** A header or tail has come to its end, good or bad. */
  #leave(step: Step, out: ToolEvent[]): void {
    if (this.#state === 'tail') {
      // After a bad tail, what follows the closed value is text like any other after a call.
      this.#state = 'text'
      this.#afterCall = true
    } else if (step === 'failed') {
      this.#state = 'text'
      this.#afterCall = false
      this.#say(out, { type: 'content', text: this.#tags.open })
    } else {
      this.#state = 'arguments'
      this.#value = new ValueScanner()
      const index = this.#calls
      this.#calls += 1
      out.push({ type: 'callStart', index, id: `${this.#ids}_${index}`, name: this.#header.name })
    }
  }

  /** Reads text up to the end of an opener or of the piece; returns where it stopped. */
  #scanText(text: string, from: number, out: ToolEvent[]): number {
    const { open } = this.#tags
    let at = from
    while (at < text.length) {
      if (this.#matched === 0) {
        if (this.#afterCall && isSpace(text.charCodeAt(at))) {
          this.#space += text[at]
          at += 1
          continue
        }
        const next = this.#afterCall ? at : text.indexOf(open.charAt(0), at)
        const stop = next < 0 ? text.length : next
        if (stop > at) this.#say(out, { type: 'content', text: text.slice(at, stop) })
        at = stop
        if (at === text.length) break
        if (text[at] !== open[0]) {
          this.#plain(out)
          continue
        }
        this.#matched = 1
        at += 1
      } else if (text[at] === open[this.#matched]) {
        this.#matched += 1
        at += 1
      } else {
        const held = open.slice(0, this.#matched)
        // The longest shorter prefix of the opener that the held text ends with goes on being held.
        let keep = this.#matched - 1
        while (keep > 0 && !held.endsWith(open.slice(0, keep))) keep -= 1
        this.#plain(out)
        this.#say(out, { type: 'content', text: held.slice(0, held.length - keep) })
        this.#matched = keep
      }
      if (this.#matched === open.length) {
        this.#matched = 0
        this.#space = ''
        this.#afterCall = false
        this.#state = 'header'
        this.#header = new HeaderMatcher()
        return at
      }
    }
    return at
  }

  /** Text has come after a call, so the white space before it was text too. */
  #plain(out: ToolEvent[]): void {
    this.#afterCall = false
    this.#say(out, { type: 'content', text: this.#space })
    this.#space = ''
  }

  /** Adds text or a fragment, in one event with what was said just before. */
  #say(out: ToolEvent[], event: Exclude<ToolEvent, { type: 'callStart' }>): void {
    const last = out.at(-1)
    if (event.type === 'content') {
      if (event.text === '') return
      if (last?.type === 'content') out[out.length - 1] = { type: 'content', text: last.text + event.text }
      else out.push(event)
    } else {
      if (event.fragment === '') return
      if (last?.type === 'arguments' && last.index === event.index) {
        out[out.length - 1] = { ...event, fragment: last.fragment + event.fragment }
      } else out.push(event)
    }
  }
}

/** `{"name":"…","arguments":`, one UTF-16 unit at a time. */
class HeaderMatcher {
  #part = 0
  /** Units matched of a literal part; of the name, 1 once its quote is open. */
  #offset = 0
  /** In the name: 0 outside of an escape, 1 after the backslash, 2 to 5 in the hex digits of `\u`. */
  #escape = 0
  /** The name's JSON text, quotes included. */
  #written = ''

  get name(): string {
    return JSON.parse(this.#written) as string
  }

  take(unit: number): Step {
    if (this.#offset === 0 && isSpace(unit)) return 'going'
    const part = HEADER[this.#part]
    if (part === null) {
      const ended = this.#takeName(unit)
      if (ended !== 'done') return ended
    } else {
      if (part === undefined || unit !== part.charCodeAt(this.#offset)) return 'failed'
      this.#offset += 1
      if (this.#offset < part.length) return 'going'
    }
    this.#part += 1
    this.#offset = 0
    return this.#part === HEADER.length ? 'done' : 'going'
  }

  #takeName(unit: number): Step {
    if (this.#offset === 0) {
      if (unit !== QUOTE) return 'failed'
      this.#offset = 1
    } else if (this.#escape === 1) {
      if (unit === 0x75) this.#escape = 2
      else if ('"\\/bfnrt'.includes(String.fromCharCode(unit))) this.#escape = 0
      else return 'failed'
    } else if (this.#escape > 1) {
      if (!/[0-9a-fA-F]/.test(String.fromCharCode(unit))) return 'failed'
      this.#escape = this.#escape === 5 ? 0 : this.#escape + 1
    } else if (unit < 0x20) return 'failed'
    else if (unit === BACKSLASH) this.#escape = 1
    else if (unit === QUOTE) {
      this.#written += '"'
      return 'done'
    }
    this.#written += String.fromCharCode(unit)
    return 'going'
  }
}

/** The call's `}` and its closing tag. */
class TailMatcher {
  #part = 0
  #offset = 0
  readonly #parts: readonly [string, string]

  constructor(close: string) {
    this.#parts = ['}', close]
  }

  take(unit: number): Step {
    const part = this.#parts[this.#part]
    if (part === undefined) return 'failed'
    if (this.#offset === 0 && isSpace(unit)) return 'going'
    if (unit !== part.charCodeAt(this.#offset)) return 'failed'
    this.#offset += 1
    if (this.#offset < part.length) return 'going'
    this.#part += 1
    this.#offset = 0
    return this.#part === this.#parts.length ? 'done' : 'going'
  }
}
