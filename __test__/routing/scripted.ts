import {
  BackendSettings,
  type Backend,
  type Completion,
  type CompletionRequest,
  type SettingsValues,
} from '../../src/routing/index.js'

/** What a scripted backend answers: text, or a whole completion, or something computed from the request. */
export type Reply = string | Partial<Completion> | ((request: CompletionRequest, settings: BackendSettings) => Reply)

/** A request as a scripted backend saw it. */
export interface Seen {
  request: CompletionRequest
  settings: BackendSettings
}

/** A backend that answers from a list and remembers what it was asked. Past the list's end it answers `none`. */
export class ScriptedBackend implements Backend {
  readonly settings: BackendSettings
  readonly seen: Seen[]
  readonly #replies: Reply[]

  constructor(replies: Reply[], settings: SettingsValues = {}, seen: Seen[] = []) {
    this.settings = settings instanceof BackendSettings ? settings : new BackendSettings(settings)
    this.#replies = replies
    this.seen = seen
  }

  clone(changes: { settings?: BackendSettings } = {}): ScriptedBackend {
    return new ScriptedBackend(this.#replies, changes.settings ?? this.settings, this.seen)
  }

  async complete(request: CompletionRequest): Promise<Completion> {
    this.seen.push({ request, settings: this.settings })
    let reply = this.#replies.shift() ?? '{"tool":"none"}'
    while (typeof reply === 'function') reply = reply(request, this.settings)
    const completion = typeof reply === 'string' ? { text: reply } : reply
    const text = completion.text ?? ''
    // In two pieces, so that pieces are seen to arrive apart.
    const middle = Math.ceil(text.length / 2)
    for (const piece of [text.slice(0, middle), text.slice(middle)]) if (piece !== '') request.onText?.(piece)
    return { toolCalls: [], cut: false, ...completion, text }
  }
}
