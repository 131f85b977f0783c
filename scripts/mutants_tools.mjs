// Changes the tool-calling code in the ways people get it wrong, one at a time and in a copy, and checks that the test
// which carries the promise fails. Writes the matrix to docs/mutants-tools.md; exits with 1 when a mutant survives.
//
//   node scripts/mutants_tools.mjs [name of a mutant]
import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { format } from 'prettier'

const root = fileURLToPath(new URL('..', import.meta.url))

/** `find` must be in the file exactly once. */
const mutants = [
  {
    name: 's12',
    promise: 'parameters outside the subset are accepted',
    file: 'src/tools/request.ts',
    find: "checkSchema(schema, profile, `${at}.function.parameters`, 'tools')",
    replace: '',
    test: 'parse_tool_request_hand_example',
  },
  {
    name: 's13',
    promise: 'a named tool_choice allows every tool',
    file: 'src/tools/request.ts',
    find: 'return tools.filter((tool) => tool.name === choice.name)',
    replace: 'return tools',
    test: 'grammar_by_tool_choice',
  },
  {
    name: 's14',
    promise: 'argument fragments are dropped',
    file: 'src/tools/parser.ts',
    find: "if (event.fragment === '') return",
    replace: "if (event.fragment !== '') return",
    test: 'parser_hand_example',
  },
  {
    name: 's15',
    promise: 'a partial <tool_call> is not held back',
    file: 'src/tools/parser.ts',
    find: 'text.indexOf(open.charAt(0), at)',
    replace: 'text.indexOf(open, at)',
    test: 'parser_holds_back_only_real_markup',
  },
  {
    name: 's16',
    promise: 'content is "" beside calls',
    file: 'src/tools/events.ts',
    find: "content: content === '' ? null : content",
    replace: "content: content ?? ''",
    test: 'message_and_delta_json_shapes',
  },
  {
    name: 'parallel-off',
    promise: 'parallel_tool_calls is off by default',
    file: 'src/tools/request.ts',
    find: 'if (value === undefined) return true\n',
    replace: 'if (value === undefined) return false\n',
    test: 'parse_tool_request_hand_example',
  },
  {
    name: 'five-calls',
    promise: 'required allows five calls',
    file: 'src/openai/profile.ts',
    find: 'maxCalls: 4,\n  maxAutoCalls: 1,',
    replace: 'maxCalls: 5,\n  maxAutoCalls: 1,',
    test: 'grammar_by_tool_choice',
  },
  {
    name: 'second-system',
    promise: 'the tools come in a second system message',
    file: 'src/tools/render.ts',
    find: 'if (existing === undefined) return',
    replace: 'if (existing === undefined || tools.length > 0) return',
    test: 'render_messages_with_tools',
  },
  {
    name: 'backslash',
    promise: 'a backslash never escapes',
    file: 'src/tools/value_scanner.ts',
    find: 'else if (unit === BACKSLASH) this.#escaped = true',
    replace: '',
    test: 'parser_is_split_invariant',
  },
  {
    name: 'held-lost',
    promise: 'held text is lost at the end',
    file: 'src/tools/parser.ts',
    find: "} else if (this.#state === 'text' && this.#matched > 0) {",
    replace: "} else if (this.#state === 'text' && this.#matched < 0) {",
    test: 'parser_holds_back_only_real_markup',
  },
  {
    name: 'index-0',
    promise: 'every call has index 0',
    file: 'src/tools/parser.ts',
    find: 'const index = this.#calls\n',
    replace: 'const index = 0\n',
    test: 'parser_parallel_calls',
  },
  {
    name: 'newline-content',
    promise: 'the newline between calls is content',
    file: 'src/tools/parser.ts',
    find: 'this.#afterCall = true',
    replace: 'this.#afterCall = false',
    test: 'parser_parallel_calls',
  },
  {
    name: 'first-delta',
    promise: "a call's first delta has no arguments",
    file: 'src/tools/events.ts',
    find: "function: { name, arguments: '' }",
    replace: 'function: { name } as { name: string; arguments: string }',
    test: 'message_and_delta_json_shapes',
  },
  {
    name: 'no-opening',
    promise: "the prompt does not open the assistant's turn",
    file: 'src/tools/render.ts',
    find: 'addGenerationPrompt: true',
    replace: 'addGenerationPrompt: false',
    test: 'render_messages_with_tools',
  },
  {
    name: '422-as-400',
    promise: 'what is not served is answered as malformed',
    file: 'src/openai/tool_error.ts',
    find: "new ToolError(422, param, 'unsupported_parameter', message",
    replace: 'new ToolError(400, param, null, message',
    test: 'parse_tool_request_hand_example',
  },
  {
    name: 'specials',
    promise: 'control tokens keep their bytes in the vocabulary of the masks',
    file: 'crates/tokenizer/src/tokenizer.rs',
    find: '(!self.is_special(id)).then(|| self.token_bytes(id).to_vec())',
    replace: 'Some(self.token_bytes(id).to_vec())',
    test: 'vocab_bytes_marks_specials',
    crate: 'tinyllm-tokenizer',
  },
]

const wanted = process.argv[2]
const chosen = mutants.filter(({ name }) => wanted === undefined || wanted === name)

const copy = mkdtempSync(join(tmpdir(), 'mutants-'))
try {
  for (const name of ['src', '__test__', 'crates', 'Cargo.toml', 'Cargo.lock'])
    cpSync(join(root, name), join(copy, name), { recursive: true })
  const beside = readdirSync(root).filter((name) =>
    /^(binding\.|.*\.node$|package\.json$|jest\.config|fixtures$|node_modules$)/.test(name),
  )
  for (const name of beside) symlinkSync(join(root, name), join(copy, name))

  const clean = run(chosen.filter((mutant) => !mutant.crate).map(({ test }) => test))
  if (!clean.passed && chosen.some((mutant) => !mutant.crate)) {
    console.error(clean.output)
    throw new Error('the tests fail without any mutant')
  }
  const rows = chosen.map((mutant) => {
    const path = join(copy, mutant.file)
    const source = readFileSync(path, 'utf8')
    if (source.split(mutant.find).length !== 2)
      throw new Error(`${mutant.name}: "${mutant.find}" is not once in ${mutant.file}`)
    writeFileSync(
      path,
      source.replace(mutant.find, () => mutant.replace),
    )
    const { passed, ran } = mutant.crate ? runCargo(mutant) : run([mutant.test])
    writeFileSync(path, source)
    if (!passed && !ran) throw new Error(`${mutant.name}: the mutant does not compile`)
    console.log(`${passed ? 'SURVIVED' : 'killed  '}  ${mutant.name.padEnd(16)} ${mutant.test}`)
    return { ...mutant, killed: !passed }
  })
  if (wanted === undefined) {
    const text = await format(table(rows), { parser: 'markdown', printWidth: 120 })
    writeFileSync(join(root, 'docs', 'mutants-tools.md'), text)
  }
  process.exitCode = rows.every(({ killed }) => killed) ? 0 : 1
} finally {
  rmSync(copy, { recursive: true, force: true })
}

function run(tests) {
  const jest = join(root, 'node_modules', 'jest', 'bin', 'jest.js')
  const pattern = `^(${[...new Set(tests)].join('|')})\\b`
  const args = [jest, '--rootDir', copy, '__test__/tools', '-t', pattern, '--json', '--silent', '--runInBand']
  const { stdout, stderr } = spawnSync(process.execPath, args, { cwd: copy, encoding: 'utf8' })
  const result = stdout === '' ? null : JSON.parse(stdout)
  return {
    passed: result?.success === true && result.numPassedTests > 0,
    ran: result?.numFailedTests > 0,
    output: stderr,
  }
}

/** A test of a crate; what the mutant does not touch is compiled already. */
function runCargo({ crate, test }) {
  const args = ['test', '--release', '-p', crate, test]
  const env = { ...process.env, CARGO_TARGET_DIR: join(root, 'target') }
  const { status, stdout } = spawnSync('cargo', args, { cwd: copy, encoding: 'utf8', env })
  return { passed: status === 0, ran: /^test .*\.\.\. FAILED$/m.test(stdout) }
}

function table(rows) {
  const lines = rows.map(
    ({ name, promise, test, killed }) => `| ${name} | ${promise} | \`${test}\` | ${killed ? 'yes' : '**no**'} |`,
  )
  return `# Mutants of the tool-calling code

Each row is a way to get tool calls wrong, and the test that carries the promise and fails under it. Made by
\`node scripts/mutants_tools.mjs\`, which applies each mutant in a copy.

| mutant | what it does | test | killed |
| --- | --- | --- | --- |
${lines.join('\n')}
`
}
