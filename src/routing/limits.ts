/** The bounds of a run, and the count of what it has used. */

/** Bounds of one run. A turn that would pass one is discarded before it enters the conversation. */
export interface LoopLimits {
  /** Default: 1,000. Requests for an action, counted once per round. */
  rounds: number
  /** Default: 10,000. Calls in all. */
  calls: number
  /** Default: 30. Calls of one tool with the same arguments, whatever the order of their keys. */
  identicalCalls: number
}

export type LimitName = keyof LoopLimits

export const DEFAULT_LIMITS: LoopLimits = { rounds: 1_000, calls: 10_000, identicalCalls: 30 }

/** Counts calls against the limits. */
export class CallLimits {
  readonly #limits: LoopLimits
  readonly #identical = new Map<string, number>()
  #calls = 0

  constructor(limits: LoopLimits) {
    this.#limits = limits
  }

  /** Calls admitted so far. */
  get calls(): number {
    return this.#calls
  }

  max(limit: LimitName): number {
    return this.#limits[limit]
  }

  allowsRound(round: number): boolean {
    return round <= this.#limits.rounds
  }

  /** Admits all the calls of a turn, or none: then the limit they would pass is returned. */
  admit(calls: readonly { name: string; arguments: unknown }[]): LimitName | undefined {
    if (this.#calls + calls.length > this.#limits.calls) return 'calls'
    const keys = calls.map((call) => JSON.stringify([call.name, sorted(call.arguments)]))
    const counts = new Map<string, number>()
    for (const key of keys) {
      const count = (counts.get(key) ?? this.#identical.get(key) ?? 0) + 1
      if (count > this.#limits.identicalCalls) return 'identicalCalls'
      counts.set(key, count)
    }
    for (const [key, count] of counts) this.#identical.set(key, count)
    this.#calls += calls.length
    return undefined
  }
}

/** A value in a form that is the same for every order of its keys. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  // Pairs, not an object: an object would put integer-like keys first and could not hold `__proto__`.
  const pairs = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))
  return { object: pairs.map(([key, member]) => [key, sorted(member)]) }
}
