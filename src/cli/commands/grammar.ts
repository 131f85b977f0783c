/**
 * `tinyllm grammar`: the automaton a grammar compiles to. Schemas are read by the strict subset unless `--general`.
 */
import type { Command } from 'commander'
import { InvalidRequestError } from '../../errors.js'
import { addGrammarOptions, type GrammarOptions, readGrammar } from '../grammar_options.js'
import { type Terminal, write } from '../terminal.js'

/** The automaton as the binding gives it, in the golden file's form. */
interface Table {
  /** Null where the grammar has no pattern of its own. */
  readonly regex: string | null
  readonly n_states: number
  readonly accept: readonly number[]
  /** Per state: the bytes `lo..=hi` and the state they lead to, -1 where nothing goes on. */
  readonly runs: readonly (readonly Run[])[]
  /** Of the whole table. */
  readonly sha256: string
}

type Run = readonly [lo: number, hi: number, target: number]

/** States that the table for people shows at most; the others are counted. */
const SHOWN_STATES = 200

export function addGrammar(program: Command, terminal: Terminal): void {
  const command = program.command('grammar').description('show the automaton of a grammar')
  addGrammarOptions(command)
    .option('--json', 'as JSON: { regex, n_states, accept, runs, sha256 }')
    .option('--dot', 'as a picture, in Graphviz’s language')
    .action(async (options: GrammarOptions & { json?: boolean; dot?: boolean }) => {
      const grammar = await readGrammar(options)
      if (!grammar) throw new InvalidRequestError('one of --regex, --choice, --schema and --json-object is needed')
      const { grammarTable } = await import('../../native.js')
      const json = await grammarTable(grammar.description)
      const table = JSON.parse(json) as Table
      await write(terminal.stdout, options.json ? `${json}\n` : options.dot ? formatDot(table) : formatText(table))
    })
}

/** A byte as a person writes it. */
function byteName(byte: number): string {
  if (byte === 0x20) return "' '"
  return byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, '0')}`
}

/** The bytes that lead from a state to each of its targets, `a-z0-9` fashion. */
function edges(runs: readonly Run[]): Map<number, string> {
  const byTarget = new Map<number, string[]>()
  for (const [lo, hi, target] of runs) {
    if (target < 0) continue
    const names = byTarget.get(target) ?? []
    names.push(lo === hi ? byteName(lo) : `${byteName(lo)}-${byteName(hi)}`)
    byTarget.set(target, names)
  }
  return new Map([...byTarget].map(([target, names]) => [target, names.join(' ')]))
}

function formatText({ regex, n_states: states, accept, runs, sha256 }: Table): string {
  const accepting = new Set(accept)
  const lines = [...(regex === null ? [] : [`regex   ${regex}`]), `states  ${states}, ${accept.length} accepting`]
  lines.push(`sha256  ${sha256}`, '')
  for (const [state, stateRuns] of runs.slice(0, SHOWN_STATES).entries()) {
    const out = [...edges(stateRuns)].map(([target, bytes]) => `${bytes} → ${target}`)
    lines.push(`${accepting.has(state) ? '*' : ' '} ${state}: ${out.join('   ') || '(no way on)'}`)
  }
  if (states > SHOWN_STATES) lines.push(`… and ${states - SHOWN_STATES} more; --json has them all`)
  lines.push('', '0 is where it starts, * marks where it may end.')
  return `${lines.join('\n')}\n`
}

function formatDot({ accept, runs }: Table): string {
  const lines = ['digraph grammar {', '  rankdir=LR', '  node [shape=circle]', '  start [shape=point]', '  start -> 0']
  for (const state of accept) lines.push(`  ${state} [shape=doublecircle]`)
  for (const [state, stateRuns] of runs.entries()) {
    for (const [target, bytes] of edges(stateRuns))
      lines.push(`  ${state} -> ${target} [label=${JSON.stringify(bytes)}]`)
  }
  return `${lines.join('\n')}\n}\n`
}
