// Changes the constraint engine in the ways people get it wrong and checks that the test which carries the promise
// fails. All mutants are compiled once, into a copy of the tree, each behind a switch; then the tests run once per
// mutant. Writes the matrix to crates/constrain/MUTANTS.md; exits with 1 when a mutant survives.
//
//   node scripts/mutants_constrain.mjs [name of a mutant]
import { spawnSync } from 'node:child_process'
import { appendFileSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const copy = join(root, 'target', 'mutants-constrain')
const constrain = 'crates/constrain/src'

/** In `replace`, ON is the mutant's switch. Each `find` must be in its file exactly once. */
const mutants = [
  {
    name: 's01',
    what: 'minimisation stops after one refinement',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/minimize.rs`,
        find: '        queued[splitter as usize] = false;\n',
        replace: '        queued[splitter as usize] = false;\n        if ON && work > 0 { break; }\n',
      },
    ],
  },
  {
    name: 's02',
    what: 'properties are sorted by name',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: '        Ok(Form::Object(forms))',
        replace: '        if ON { forms.sort_by(|a, b| a.key.cmp(b.key)); }\n        Ok(Form::Object(forms))',
      },
    ],
  },
  {
    name: 's03',
    what: 'no comma before a later optional member',
    test: 'constrained_output_always_parses',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: 'join(&["(?:,", &member, ")?", &after], limits)?',
        replace: 'join(&[if ON { "(?:" } else { "(?:," }, &member, ")?", &after], limits)?',
      },
      {
        file: `${constrain}/nfa.rs`,
        find: '                Some(written) => self.node(separator, written)?,',
        replace:
          '                Some(written) if ON && !member.required => Some(written),\n                Some(written) => self.node(separator, written)?,',
      },
    ],
  },
  {
    name: 's04',
    what: 'enum values are inserted unescaped',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: '.map(|value| escape(&value.dumps()))',
        replace: '.map(|value| if ON { value.dumps() } else { escape(&value.dumps()) })',
      },
    ],
  },
  {
    name: 's05',
    what: 'maxItems is off by one',
    test: 'constrained_output_always_parses',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: 'max.map(|max| (max - 1).to_string())',
        replace: 'max.map(|max| (max - u64::from(!ON)).to_string())',
      },
      {
        file: `${constrain}/schema/strict.rs`,
        find: 'max: high.map(|high| high + 1),',
        replace: 'max: high.map(|high| high + 1 + u32::from(ON)),',
      },
    ],
  },
  {
    name: 's06',
    what: "a token's later bytes are walked from the wrong state",
    test: 'masks_match_python_l8_7',
    edits: [
      {
        file: `${constrain}/walk.rs`,
        find: 'stack.push((node.child + index as u32, next));',
        replace: 'stack.push((node.child + index as u32, if ON { state } else { next }));',
      },
    ],
  },
  {
    name: 's07',
    what: 'the end token is allowed before a whole string',
    test: 'token_index_rules',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: '            && self.dfa.accept[state as usize]\n        {',
        replace: '            && (ON || self.dfa.accept[state as usize])\n        {',
      },
    ],
  },
  {
    name: 's08',
    what: 'an empty language is not refused',
    test: 'subset_errors_are_refused',
    edits: [
      {
        file: `${constrain}/regex.rs`,
        find: '    if matches_nothing(&node) {',
        replace: '    if !ON && matches_nothing(&node) {',
      },
    ],
  },
  {
    name: 's09',
    what: 'floats are printed unlike Python',
    test: 'dumps_matches_python',
    edits: [
      {
        file: `${constrain}/json.rs`,
        find: '    if !(-4..16).contains(&exponent) {',
        replace: '    if !(if ON { -7..21 } else { -4..16 }).contains(&exponent) {',
      },
    ],
  },
  {
    name: 's10',
    what: 'tokens are still allowed after the end token',
    test: 'masks_match_python_l8_7',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: '        if self.done { Ok(vec![false',
        replace: '        if self.done && !ON { Ok(vec![false',
      },
    ],
  },
  {
    name: 's11',
    what: 'the sampler sees the unmasked logits',
    test: 'constrained_sample_hand_example',
    edits: [
      {
        file: 'crates/sampler/src/constrained.rs',
        find: 'let mut masked = apply_mask(logits, &constraint.mask()?)?;',
        replace: 'let mut masked = if ON { logits.to_vec() } else { apply_mask(logits, &constraint.mask()?)? };',
      },
    ],
  },
  {
    name: 'leading-zeros',
    what: 'integers may begin with zeros',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: 'Form::Integer => lexeme::INTEGER.to_owned(),',
        replace: 'Form::Integer => (if ON { "-?[0-9]+" } else { lexeme::INTEGER }).to_owned(),',
      },
    ],
  },
  {
    name: 'slash',
    what: 'the escape \\/ is refused',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/regex.rs`,
        find: "            b'd' => Item::Class(DIGIT),",
        replace:
          "            b'/' if ON => return Err(self.fail_at(start, \"refused\")),\n            b'd' => Item::Class(DIGIT),",
      },
    ],
  },
  {
    name: 'all-required',
    what: 'every property is required',
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/schema/strict.rs`,
        find: 'required: required.contains(key.as_str())',
        replace: 'required: ON || required.contains(key.as_str())',
      },
    ],
  },
  {
    name: 'complement',
    what: "a class's complement is dropped",
    test: 'dfa_matches_python_l8_7',
    edits: [
      {
        file: `${constrain}/regex.rs`,
        find: 'return Ok(if negated { set.complement() } else { set });',
        replace: 'return Ok(if negated && !ON { set.complement() } else { set });',
      },
    ],
  },
  {
    name: 'one-slot',
    what: 'all states share one mask slot',
    test: 'masks_match_python_l8_7',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: 'let slot = &self.masks[state as usize];',
        replace: 'let slot = &self.masks[if ON { 0 } else { state as usize }];',
      },
    ],
  },
  {
    name: 'end-to-start',
    what: 'the end token leads to state 0',
    test: 'token_index_rules',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: 'return Ok(if self.dfa.accept[state as usize] { state } else { DEAD });',
        replace: 'return Ok(if self.dfa.accept[state as usize] { if ON { 0 } else { state } } else { DEAD });',
      },
    ],
  },
  {
    name: 'lazy',
    what: 'lazy quantifiers are accepted',
    test: 'subset_errors_are_refused',
    edits: [
      {
        file: `${constrain}/regex.rs`,
        find: "if self.peek() == Some(b'?') {",
        replace: "if !ON && self.peek() == Some(b'?') {",
      },
    ],
  },
  {
    name: 'backspace',
    what: '\\b is printed as \\u0008',
    test: 'dumps_matches_python',
    edits: [
      {
        file: `${constrain}/json.rs`,
        find: '            \'\\u{8}\' => out.push_str("\\\\b"),',
        replace: '            \'\\u{8}\' if !ON => out.push_str("\\\\b"),',
      },
    ],
  },
  {
    name: 'no-end',
    what: 'the end token does not end',
    test: 'token_index_rules',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: 'self.done = self.index.eos_id == Some(token_id);',
        replace: 'self.done = !ON && self.index.eos_id == Some(token_id);',
      },
    ],
  },
  {
    name: 'empty-mask',
    what: 'a mask that allows nothing is accepted',
    test: 'token_index_rules',
    edits: [
      {
        file: `${constrain}/index.rs`,
        find: '    if !mask.contains(&true) {',
        replace: '    if !ON && !mask.contains(&true) {',
      },
    ],
  },
  {
    name: 'nesting',
    what: 'json_object nests one level deeper',
    test: 'json_object_grammar',
    edits: [
      {
        file: `${constrain}/json_object.rs`,
        find: '    for _ in 1..depth {\n        let (object, array)',
        replace: '    for _ in 1..depth + usize::from(ON) {\n        let (object, array)',
      },
    ],
  },
]

/** The test binaries that hold the tests below. */
const binaries = ['--lib', ...['automata', 'tokens', 'walks', 'frontends'].flatMap((name) => ['--test', name])]

const tests = [
  'dfa_matches_python_l8_7',
  'masks_match_python_l8_7',
  'token_index_rules',
  'constrained_sample_hand_example',
  'constrained_output_always_parses',
  'subset_errors_are_refused',
  'dumps_matches_python',
  'json_object_grammar',
]

function prepare() {
  rmSync(join(copy, 'crates'), { recursive: true, force: true })
  mkdirSync(copy, { recursive: true })
  for (const path of ['crates/constrain', 'crates/sampler', 'crates/testkit', 'fixtures/golden', 'Cargo.lock']) {
    cpSync(join(root, path), join(copy, path), { recursive: true })
  }
  const manifest = readFileSync(join(root, 'Cargo.toml'), 'utf8')
  const members = 'members = ["crates/constrain", "crates/sampler", "crates/testkit"]'
  writeFileSync(join(copy, 'Cargo.toml'), manifest.replace('members = ["crates/*"]', members))
  appendFileSync(
    join(copy, constrain, 'lib.rs'),
    '\n#[doc(hidden)]\npub fn mutant(name: &str) -> bool {\n' +
      '    static ON: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| std::env::var("MUTANT").unwrap_or_default());\n' +
      '    *ON == name\n}\n',
  )
  for (const { name, edits } of mutants) {
    for (const { file, find, replace } of edits) {
      const path = join(copy, file)
      const text = readFileSync(path, 'utf8')
      if (text.split(find).length !== 2) throw new Error(`${name}: not exactly once in ${file}: ${find}`)
      const scope = file.startsWith(constrain) ? 'crate' : 'tinyllm_constrain'
      writeFileSync(
        path,
        text.replace(find, () => replace.replaceAll('ON', `${scope}::mutant("${name}")`)),
      )
    }
  }
}

function cargo(mutant, ...last) {
  // A target folder of its own: cargo takes the copy's packages for the tree's and would mix their builds.
  const env = { ...process.env, MUTANT: mutant, RUST_BACKTRACE: '0', CARGO_TARGET_DIR: join(copy, 'target') }
  const args = ['test', '--release', '-p', 'tinyllm-constrain', '-p', 'tinyllm-sampler', ...last]
  return spawnSync('cargo', args, { cwd: copy, env, encoding: 'utf8', maxBuffer: 1 << 28 })
}

/** Which of the tests fail under a mutant; tests are found by the beginning of their names. */
function failing(mutant) {
  const run = cargo(mutant, '--no-fail-fast', ...binaries, '--', ...tests)
  const failed = [...run.stdout.matchAll(/^test (?:\S+::)?(\S+) \.\.\. FAILED/gm)].map((match) => match[1])
  return tests.filter((test) => failed.some((name) => name.startsWith(test)))
}

prepare()
const build = cargo('', '--no-run', ...binaries)
if (build.status !== 0) throw new Error(build.stderr)
const before = failing('')
if (before.length > 0) throw new Error(`without a mutant these fail: ${before.join(', ')}`)

const only = process.argv[2]
const rows = []
let survivors = 0
for (const { name, what, test } of mutants.filter((mutant) => !only || mutant.name === only)) {
  const failed = failing(name)
  const killed = failed.includes(test)
  if (!killed) survivors += 1
  rows.push({ name, what, test, failed })
  console.log(`${killed ? 'killed  ' : 'SURVIVED'} ${name}: ${what} (${failed.join(', ') || 'no test fails'})`)
}
if (!only) {
  const line = (cells) => `| ${cells.join(' | ')} |`
  const table = [
    line(['mutant', 'what it does', ...tests.map((test) => `\`${test}\``)]),
    line(['---', '---', ...tests.map(() => ':-:')]),
    ...rows.map(({ name, what, test, failed }) =>
      line([name, what, ...tests.map((t) => (failed.includes(t) ? (t === test ? '**killed**' : 'killed') : ''))]),
    ),
  ]
  writeFileSync(
    join(root, 'crates', 'constrain', 'MUTANTS.md'),
    `# Mutants of the constraint engine

Each row is a way to get constrained decoding wrong; each column is a test. Bold is the test that carries the promise.
Made by \`node scripts/mutants_constrain.mjs\`, which compiles every mutant behind a switch into a copy of the tree.

${table.join('\n')}
`,
  )
}
process.exit(survivors > 0 ? 1 : 0)
