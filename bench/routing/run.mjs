// Routed decisions of a real model, counted:
//
//   npm run eval:routing [-- --model NAME_OR_PATH] [--out FILE.md] [--json]
//
// 100 prompts over four catalogues, 24 of which need no tool. Every reply that was not cut must parse and validate (the
// grammar guarantees it, and this counts it with the strict parser and an independent validator); cut ones are failed
// routes; the rate of right actions is the model's judgement, which nothing guarantees. The same prompts go through native
// tool calling (`tool_choice: auto`), to compare what a decision costs, and through the same model without the grammar;
// "random" is how many right actions a blind choice among the offered ones would make.
import { readFileSync, writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { Ajv2020 } from 'ajv/dist/2020.js'
import { chat, load } from '../../dist/index.mjs'
import { parseRoute, route, routeToolNames } from '../../dist/routing/index.mjs'

const { values: options } = parseArgs({
  options: {
    model: { type: 'string', default: 'smollm2-135m-instruct' },
    json: { type: 'boolean', default: false },
    // Where the table goes besides standard output.
    out: { type: 'string' },
    // Bounds the native replies, which nothing else does.
    'native-tokens': { type: 'string', default: '128' },
  },
})
const CAP = 96
const NATIVE_CAP = Number(options['native-tokens'])
const catalogues = JSON.parse(readFileSync(new URL('prompts.json', import.meta.url), 'utf8'))
const engine = await load(options.model, { contextLength: 2048 })

const describe = ({ function: { name, description, parameters } }) =>
  `- ${name}${description ? `: ${description}` : ''} Arguments: ${JSON.stringify(parameters?.properties ?? {})}`
const systemOf = (tools) =>
  `Choose the next action for the user's message. Actions:\n${tools.map(describe).join('\n')}\n- none: no action is needed.`
// The grammar writes the form of a reply; without it a model has to be told.
const FORM = 'Reply with one JSON object and nothing else: {"tool":"<action>","arguments":{…}}, or {"tool":"none"}.'

const rows = []
for (const { name, tools, prompts } of catalogues) {
  const names = routeToolNames(tools)
  const checks = new Map(
    tools.map(({ function: f }) => [
      f.name,
      new Ajv2020({ strict: false }).compile(f.parameters ?? { maxProperties: 0 }),
    ]),
  )
  const grammar = route(tools, { maxStringLength: 60 })
  const row = { catalogue: name, prompts: 0, cut: 0, valid: 0, invalid: 0, right: 0, none: 0, noneRight: 0 }
  Object.assign(row, { tokens: 0, nativeRight: 0, nativeValid: 0, nativeCalls: 0, nativeTokens: 0, nativeCut: 0 })
  Object.assign(row, { seconds: 0, nativeSeconds: 0, freeValid: 0, freeRight: 0, random: 0 })
  for (const [index, [text, expected]] of prompts.entries()) {
    const messages = [
      { role: 'system', content: systemOf(tools) },
      { role: 'user', content: text },
    ]
    const sampling = { seed: index, temperature: 0.7 }
    const started = performance.now()
    const reply = await engine.generate({ messages, grammar, maxTokens: CAP, ...sampling })
    row.seconds += (performance.now() - started) / 1000
    row.random += 1 / (names.length + 1)
    row.prompts += 1
    row.tokens += reply.usage.completionTokens
    row.none += expected === 'none' ? 1 : 0
    if (reply.finishReason === 'length') {
      row.cut += 1
    } else {
      const action = parseRoute(reply.text, names)
      const valid = action.ok && (action.tool === 'none' || checks.get(action.tool)(action.arguments))
      row[valid ? 'valid' : 'invalid'] += 1
      if (valid && action.tool === expected) {
        row.right += 1
        row.noneRight += expected === 'none' ? 1 : 0
      }
    }
    const told = [
      { role: 'system', content: `${systemOf(tools)}\n${FORM}` },
      { role: 'user', content: text },
    ]
    const free = await engine.generate({ messages: told, maxTokens: CAP, ...sampling })
    const said = parseRoute(free.text, names)
    const freeValid = said.ok && (said.tool === 'none' || checks.get(said.tool)(said.arguments))
    row.freeValid += freeValid ? 1 : 0
    row.freeRight += freeValid && said.tool === expected ? 1 : 0

    const nativeStarted = performance.now()
    const native = await chat(engine, {
      messages: [{ role: 'user', content: text }],
      tools: tools.map(({ function: f }) => f),
      parallelToolCalls: false,
      maxTokens: NATIVE_CAP,
      ...sampling,
    })
    row.nativeSeconds += (performance.now() - nativeStarted) / 1000
    row.nativeTokens += native.usage.completionTokens
    row.nativeCut += native.finishReason === 'length' ? 1 : 0
    const [call] = native.calls
    row.nativeCalls += call === undefined ? 0 : 1
    row.nativeValid += call !== undefined && checks.get(call.name)(call.arguments) ? 1 : 0
    row.nativeRight += (call?.name ?? 'none') === expected && native.finishReason !== 'length' ? 1 : 0
  }
  rows.push(row)
}
const { name: model } = engine.info
await engine.close()

const total = { catalogue: 'all' }
for (const key of Object.keys(rows[0]).filter((key) => key !== 'catalogue')) {
  total[key] = rows.reduce((sum, row) => sum + row[key], 0)
}
const share = (count, of) => (of === 0 ? '–' : `${Math.round((100 * count) / of)} %`)
const columns = [
  ['catalogue', (r) => r.catalogue],
  ['prompts', (r) => r.prompts],
  ['valid, of uncut', (r) => share(r.valid, r.prompts - r.cut)],
  ['cut', (r) => share(r.cut, r.prompts)],
  ['right action', (r) => share(r.right, r.prompts)],
  ['right `none`', (r) => `${r.noneRight} of ${r.none}`],
  ['without the grammar: valid', (r) => share(r.freeValid, r.prompts)],
  ['right', (r) => share(r.freeRight, r.prompts)],
  ['random: right', (r) => share(r.random, r.prompts)],
  ['native: right', (r) => share(r.nativeRight, r.prompts)],
  ['native: cut', (r) => share(r.nativeCut, r.prompts)],
  ['tokens, routed and native', (r) => per(r, 'tokens', 'nativeTokens')],
  ['seconds, routed and native', (r) => per(r, 'seconds', 'nativeSeconds')],
]
function per(r, ...keys) {
  return keys.map((key) => (r[key] / r.prompts).toFixed(key.toLowerCase().includes('seconds') ? 2 : 1)).join(', ')
}
const line = (cells) => `| ${cells.join(' | ')} |`
const table = [
  `\`${model}\`: routed decisions of at most ${CAP} tokens, native tool calling of at most ${NATIVE_CAP}.`,
  '',
  line(columns.map(([title]) => title)),
  line(columns.map((_, i) => (i === 0 ? '---' : '--:'))),
  ...[...rows, total].map((r) => line(columns.map(([, cell]) => cell(r)))),
  '',
].join('\n')
console.log(options.json ? JSON.stringify({ model, rows, total }) : table)
if (options.out !== undefined) writeFileSync(options.out, table)
if (total.invalid > 0) process.exitCode = 1
