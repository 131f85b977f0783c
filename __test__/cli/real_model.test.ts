/** The commands with the addon and the default model. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { EXIT } from '../../src/cli/failure.js'
import { runCli } from '../../src/cli/program.js'
import { fakeTerminal, run } from './terminal.js'

const root = path.join(__dirname, '..', '..')
const question = 'Is the sky blue? Answer yes or no.'

describe('generate', () => {
  test('answers what the grammar allows, and nothing else', async () => {
    const { code, out } = await run(['generate', question, '--regex', '(yes|no)', '--offline'])
    expect(out).toMatch(/^(yes|no)\n$/)
    expect(code).toBe(EXIT.ok)
    expect((await run(['generate', question, '--choice', 'maybe', '--choice', 'never', '--offline'])).out).toMatch(
      /^(maybe|never)\n$/,
    )
  })

  test('takes the prompt from standard input, and gives the whole result as JSON', async () => {
    const schema =
      '{"type":"object","properties":{"blue":{"type":"boolean"}},"required":["blue"],"additionalProperties":false}'
    const { code, out } = await run(
      ['generate', '-', '--schema', schema, '--json', '--logprobs', '2', '--offline'],
      question,
    )
    expect(code).toBe(EXIT.ok)
    const result = JSON.parse(out) as Record<string, unknown>
    expect(result).toMatchObject({ text: expect.stringMatching(/^\{"blue":(true|false)\}$/), finishReason: 'stop' })
    expect(result.value).toEqual(JSON.parse(result.text as string))
    expect((result.tokens as number[]).every(Number.isInteger)).toBe(true)
    expect((result.logprobs as unknown[]).length).toBe((result.tokens as number[]).length)
  })

  test('says when the answer is cut before the grammar is satisfied', async () => {
    const { code, err } = await run(['generate', question, '--regex', '[a-z]{200}', '--max-tokens', '3', '--offline'])
    expect(code).toBe(EXIT.failure)
    expect(err).toContain('stopped at 3 tokens, the answer is not complete')
  })

  test('gives the same answer for the same seed, streamed as whole', async () => {
    const args = [
      'generate',
      'Tell me a story.',
      '--temperature',
      '1',
      '--seed',
      '18446744073709551615',
      '-n',
      '12',
      '--offline',
    ]
    const first = await run(args)
    expect(first.out.length).toBeGreaterThan(5)
    expect(await run(args)).toEqual(first)
    expect(`${(JSON.parse((await run([...args, '--json'])).out) as { text: string }).text}\n`).toBe(first.out)
  })

  test('says where a pattern is wrong', async () => {
    const { code, err } = await run(['generate', question, '--regex', '(yes', '--offline'])
    expect(code).toBe(EXIT.failure)
    expect(err).toMatch(/^tinyllm: .+\n$/)
  })
})

test('route prints one of the offered actions, and says when it was cut', async () => {
  const parameters = { type: 'object', properties: { day: { enum: ['today', 'tomorrow'] } }, required: ['day'] }
  const tools = JSON.stringify([{ type: 'function', function: { name: 'weather', parameters } }])
  const decided = await run(['route', '--tools', tools, 'Will it rain?', '--offline'])
  expect(decided.out).toMatch(/^\{"tool":("none"|"weather","arguments":\{"day":"(today|tomorrow)"\})\}\n$/)
  expect(decided.code).toBe(EXIT.ok)
  const cut = await run(['route', '--tools', tools, '--max-tokens', '2', 'Will it rain?', '--offline'])
  expect([cut.code, cut.err]).toEqual([EXIT.failure, 'tinyllm: stopped at 2 tokens, this is no action\n'])
})

test('route refuses a catalogue that cannot be offered, before any model is loaded', async () => {
  const unusable = await run(['route', '--tools', '[{"type":"function"}]', 'Will it rain?', '--offline'])
  expect(unusable).toMatchObject({ code: EXIT.failure, err: 'tinyllm: tools[0]: function must be an object\n' })
  const missing = await run(['route', '--tools', 'no_such_file.json', 'Will it rain?', '--offline'])
  expect(missing.err).toMatch(/^tinyllm: the tools no_such_file\.json cannot be read: .+\n$/)
  expect((await run(['route', 'Will it rain?'])).code).toBe(EXIT.usage)
})

test('chat keeps a conversation, forgets it on /clear, and ends on /exit', async () => {
  const lines = ['hello', '/help', '/clear', 'hello', '/exit', 'never read'].map((line) => `${line}\n`).join('')
  const { code, out, err } = await run(['chat', '--max-tokens', '6', '--offline'], lines)
  expect(code).toBe(EXIT.ok)
  const answers = out.trim().split('\n').filter(Boolean)
  // Greedy: the conversation that was forgotten begins the same way again.
  expect(answers).toHaveLength(2)
  expect(answers[0]).toBe(answers[1])
  expect(err).toContain('/clear forgets the conversation')
})

test('inspect tells what a model file is', async () => {
  const { code, out } = await run(['inspect', 'smollm2-135m-instruct', '--offline'])
  expect(code).toBe(EXIT.ok)
  expect(out).toMatch(/general\.architecture +"llama"/)
  expect(out).toMatch(/parameters +134\.5 million/)
  expect(JSON.parse((await run(['inspect', 'smollm2-135m-instruct', '--json', '--offline'])).out)).toBeInstanceOf(
    Object,
  )
})

test('inspect --cpu tells which kernels are used and why', async () => {
  const { code, out } = await run(['inspect', '--cpu'])
  expect(code).toBe(EXIT.ok)
  expect(out).toMatch(/^kernels +(portable|avx2|avx512|amx) \(the best that runs here\)$/m)
  expect(out).toMatch(/^ +portable +runs here$/m)
  expect(out).toMatch(/^fast prefill +(runs here|not here: .+)$/m)
  expect(await run(['inspect'])).toMatchObject({
    code: EXIT.failure,
    err: 'tinyllm: inspect takes a model file, or --cpu\n',
  })
})

describe('grammar --json is the recorded automaton', () => {
  interface Golden {
    readonly name: string
    readonly pattern?: string
    readonly schema?: string
    readonly regex?: string
    readonly n_states: number
    readonly accept: number[]
    readonly runs: number[][][]
    readonly sha256: string
  }
  const golden = JSON.parse(readFileSync(path.join(root, 'fixtures', 'golden', 'constrain.json'), 'utf8')) as {
    patterns: Golden[]
    schemas: Golden[]
    refused_patterns: string[]
  }

  test.each(golden.patterns.map((entry) => [entry.name, entry] as const))('of the pattern %s', async (_name, entry) => {
    const { out } = await run(['grammar', `--regex=${entry.pattern}`, '--json'])
    const { n_states, accept, runs, sha256 } = entry
    expect(JSON.parse(out)).toEqual({ regex: entry.pattern, n_states, accept, runs, sha256 })
  })

  test.each(golden.schemas.map((entry) => [entry.name, entry] as const))('of the schema %s', async (_name, entry) => {
    const { regex, n_states, accept, runs, sha256 } = entry
    const { out } = await run(['grammar', '--schema', entry.schema ?? '', '--json'])
    expect(JSON.parse(out)).toEqual({ regex, n_states, accept, runs, sha256 })
  })

  test.each(golden.refused_patterns)('and the pattern %j is refused', async (pattern) => {
    const { code, out, err } = await run(['grammar', `--regex=${pattern}`, '--json'])
    expect({ code, out }).toEqual({ code: EXIT.failure, out: '' })
    expect(err.trim().split('\n')).toHaveLength(1)
  })
})

describe('serve', () => {
  test('serves the model under its name until it is told to stop', async () => {
    const terminal = fakeTerminal()
    const ended = runCli(['serve', '--port', '0', '--offline', '--log-level', 'silent'], terminal)
    await terminal.saw('/v1\n')
    const url = /at (\S+)/.exec(terminal.written().out)?.[1]
    const models = (await (await fetch(`${url}/models`)).json()) as { data: { id: string }[] }
    expect(models.data.map(({ id }) => id)).toEqual(['smollm2-135m-instruct'])
    terminal.interrupt()
    expect(await ended).toBe(EXIT.ok)
  })

  test('says that a port is taken', async () => {
    const terminal = fakeTerminal()
    const ended = runCli(['serve', '--port', '0', '--offline', '--log-level', 'silent'], terminal)
    await terminal.saw('/v1\n')
    const port = /:(\d+)\/v1/.exec(terminal.written().out)?.[1] ?? ''
    const { code, err } = await run(['serve', '--port', port, '--offline'])
    expect(code).toBe(EXIT.failure)
    expect(err).toMatch(/the port is taken; choose another with --port/)
    terminal.interrupt()
    await ended
  })

  test('ends cleanly on SIGTERM as the installed command', async () => {
    const args = [path.join(root, 'bin', 'tinyllm.js'), 'serve', '--port', '0', '--offline']
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], env: { ...process.env } })
    const exit = once(child, 'exit')
    // Should it not come up, its exit is what comes first, and the expectation below fails.
    await Promise.race([once(child.stdout, 'data'), exit])
    child.kill('SIGTERM')
    expect(await exit).toEqual([0, null])
  })
})
