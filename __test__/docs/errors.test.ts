import { readFileSync } from 'node:fs'
import path from 'node:path'
import { ERROR_TABLE } from '../../src/errors.js'

test('docs/errors.md lists every code, with its HTTP status and type', () => {
  const text = readFileSync(path.join(__dirname, '../../docs/errors.md'), 'utf8')
  const rows = [...text.matchAll(/^\| `(ERR_\w+)` +\| `\w+` +\| (\d+) +\| `(\w+)`/gm)]
  const documented = rows.map(([, code, status, type]) => [code, { status: Number(status), type }] as const)
  const table = Object.entries(ERROR_TABLE).map(([code, { status, type }]) => [code, { status, type }] as const)
  expect(new Map(documented)).toEqual(new Map(table))
})
