//! `npm run bench:grammar`: this engine and llguidance over the same documents and positions.
//!
//! One process, one pinned thread. Per schema and vocabulary, for both engines:
//! - *first mask*: schema text in, first mask out;
//! - *cold mask*: every position of a document on the first walk of a fresh grammar;
//! - *new mask*: those of them for which this engine had to make a mask, for both engines;
//! - *warm mask*: the same positions again; *advance*: taking the document's next token.
//!
//! Only schemas both engines compile and documents both accept count. Documents are compact and
//! tokenised greedily, so both see the same tokens. `--check N` compares N sampled masks with a
//! brute-force walk of every token over the canonical automaton instead.

mod corpus;
mod gguf;
mod stats;

use corpus::Case;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde::Serialize;
use serde_json::{Value, json};
use stats::{Summary, Times};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tinyllm_constrain::{
    CompiledGrammar, ConstrainError, ConstraintOptions, Dfa, Grammar, Limits, Subset, Vocabulary,
    Whitespace, compile, grammar_to_node, node_to_dfa,
};

struct Options {
    corpus: PathBuf,
    models: Vec<PathBuf>,
    most: usize,
    check: usize,
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
}

const USAGE: &str =
    "usage: npm run bench:grammar -- --corpus maskbench.jsonl[.xz] --model FILE.gguf \
[--model FILE.gguf] [--most N] [--check N] [--json FILE] [--markdown FILE]
The corpus may also be given as MASKBENCH, the models as BENCH_MODELS (separated by colons).";

fn options() -> Result<Options, String> {
    let paths = |name: &str| std::env::var(name).unwrap_or_default();
    let mut options = Options {
        corpus: PathBuf::from(paths("MASKBENCH")),
        models: paths("BENCH_MODELS")
            .split(':')
            .filter(|p| !p.is_empty())
            .map(PathBuf::from)
            .collect(),
        most: usize::MAX,
        check: 0,
        json: None,
        markdown: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        let count = || value.parse::<usize>().map_err(|_| format!("{name} {value}: not a count"));
        match name.as_str() {
            "--corpus" => options.corpus = value.into(),
            "--model" => options.models.push(value.into()),
            "--most" => options.most = count()?,
            "--check" => options.check = count()?,
            "--json" => options.json = Some(value.into()),
            "--markdown" => options.markdown = Some(value.into()),
            _ => return Err(USAGE.into()),
        }
    }
    if !options.corpus.is_file() {
        return Err(format!(
            "no corpus at \"{}\": MaskBench's schemas as JSON lines are needed\n{USAGE}",
            options.corpus.display()
        ));
    }
    if options.models.is_empty() {
        return Err(format!("no model: a GGUF file gives the vocabulary\n{USAGE}"));
    }
    Ok(options)
}

/// One engine's times on one slice.
#[derive(Default)]
struct Measured {
    first: Times,
    cold: Times,
    made: Times,
    warm: Times,
    advance: Times,
}

#[derive(Serialize)]
struct Row {
    first: Summary,
    cold: Summary,
    made: Summary,
    warm: Summary,
    advance: Summary,
}

impl Measured {
    fn row(&self) -> Row {
        Row {
            first: self.first.summary(),
            cold: self.cold.summary(),
            made: self.made.summary(),
            warm: self.warm.summary(),
            advance: self.advance.summary(),
        }
    }
}

struct Slice {
    name: &'static str,
    subset: Subset,
}

const SLICES: [Slice; 2] = [
    Slice { name: "strict", subset: Subset::Strict },
    Slice { name: "general", subset: Subset::General },
];

fn description(schema: &str, subset: Subset) -> Grammar {
    Grammar::Schema {
        text: schema.to_owned(),
        subset,
        whitespace: Whitespace::Compact,
        max_string_length: None,
    }
}

struct Bench {
    ours: Arc<Vocabulary>,
    factory: ParserFactory,
    env: TokEnv,
    tokens: Vec<Option<Vec<u8>>>,
    eos: u32,
}

impl Bench {
    fn new(vocab: gguf::Vocab) -> Result<Self, Box<dyn std::error::Error>> {
        let words: Vec<Vec<u8>> = vocab
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token)| token.clone().unwrap_or_else(|| format!("\u{0}<{id}>").into_bytes()))
            .map(|mut word| {
                // The peer marks special tokens by a leading 0xFF.
                if word.first() == Some(&0) && word.len() > 1 {
                    word[0] = TokTrie::SPECIAL_TOKEN_MARKER;
                }
                word
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, vocab.eos), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env)?;
        factory.quiet();
        let ours = Vocabulary::new(vocab.tokens.clone(), Some(vocab.eos))?;
        Ok(Self { ours, factory, env, tokens: vocab.tokens, eos: vocab.eos })
    }

    fn compile_ours(
        &self,
        text: &str,
        subset: Subset,
    ) -> Result<Arc<CompiledGrammar>, ConstrainError> {
        compile(&description(text, subset), &self.ours, &Limits::default())
    }

    fn compile_peer(&self, text: &str) -> Option<Matcher> {
        let mut schema: Value = serde_json::from_str(text).ok()?;
        schema.as_object_mut()?.insert(
            "x-guidance".into(),
            json!({"item_separator": ",", "key_separator": ":", "whitespace_flexible": false}),
        );
        let parser = self.factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let matcher = Matcher::new(parser);
        (!matcher.is_error()).then_some(matcher)
    }

    /// The document's tokens when both engines accept it whole.
    fn accepted(&self, text: &str, subset: Subset, document: &str) -> Option<Vec<u32>> {
        let tokens = self.env.tok_trie().greedy_tokenize(document.as_bytes());
        let ours = self.compile_ours(text, subset).ok()?;
        let mut constraint = ours.constraint(ConstraintOptions::default());
        let mut peer = self.compile_peer(text)?;
        for token in &tokens {
            constraint.advance(*token).ok()?;
            peer.consume_token(*token).ok()?;
        }
        (constraint.is_complete() && peer.is_accepting().ok()?).then_some(tokens)
    }

    fn measure_ours(
        &self,
        text: &str,
        subset: Subset,
        documents: &[Vec<u32>],
        out: &mut Measured,
    ) -> Result<Vec<bool>, ConstrainError> {
        // Whether a mask was made, by position of the first walk.
        let mut new = Vec::new();
        let start = Instant::now();
        let compiled = self.compile_ours(text, subset)?;
        let mut constraint = compiled.constraint(ConstraintOptions::default());
        std::hint::black_box(constraint.mask(None)?.words());
        out.first.0.push(nanos(start));
        // A fresh grammar, so that its first position is cold too.
        let compiled = self.compile_ours(text, subset)?;
        for warm in [false, true] {
            for document in documents {
                let mut constraint = compiled.constraint(ConstraintOptions::default());
                for token in document {
                    let made = compiled.masks_made();
                    let start = Instant::now();
                    let mask = constraint.mask(None)?;
                    // What the engine takes: the ids of a small mask, the words of a large one.
                    if mask.allowed() <= 64 {
                        std::hint::black_box(mask.iter().fold(0, |a, b| a ^ b));
                    } else {
                        std::hint::black_box(mask.words());
                    }
                    let time = nanos(start);
                    if warm {
                        out.warm.0.push(time);
                    } else {
                        out.cold.0.push(time);
                        new.push(compiled.masks_made() > made);
                        if new.last() == Some(&true) {
                            out.made.0.push(time);
                        }
                    }
                    assert!(mask.is_allowed(*token), "the document's token is allowed");
                    let start = Instant::now();
                    constraint.advance(*token)?;
                    out.advance.0.push(nanos(start));
                }
            }
        }
        Ok(new)
    }

    /// `new`: the positions of the first walk at which this engine made a mask.
    fn measure_peer(
        &self,
        text: &str,
        documents: &[Vec<u32>],
        new: &[bool],
        out: &mut Measured,
    ) -> Option<()> {
        let start = Instant::now();
        let mut peer = self.compile_peer(text)?;
        std::hint::black_box(peer.compute_mask().ok()?);
        out.first.0.push(nanos(start));
        let mut peer = self.compile_peer(text)?;
        let mut new = new.iter();
        for warm in [false, true] {
            for document in documents {
                peer.reset().ok()?;
                for token in document {
                    let start = Instant::now();
                    let mask = peer.compute_mask().ok()?;
                    std::hint::black_box(&mask);
                    let time = nanos(start);
                    if warm {
                        out.warm.0.push(time);
                    } else {
                        out.cold.0.push(time);
                        if new.next() == Some(&true) {
                            out.made.0.push(time);
                        }
                    }
                    let start = Instant::now();
                    peer.consume_token(*token).ok()?;
                    out.advance.0.push(nanos(start));
                }
            }
        }
        Some(())
    }

    /// Masks sampled along documents against every token walked byte by byte; how many were
    /// compared and how many differ.
    fn check(&self, cases: &[Case], wanted: usize) -> (usize, usize) {
        let (mut compared, mut differ) = (0, 0);
        let mut random = 1_u64;
        // So many of each schema that they come from all of the corpus.
        let share = (3 * wanted).div_ceil(cases.len().max(1));
        for case in cases {
            if compared >= wanted {
                break;
            }
            let text = case.schema.to_string();
            let grammar = description(&text, Subset::General);
            let Ok(compiled) = compile(&grammar, &self.ours, &Limits::default()) else { continue };
            let node = grammar_to_node(&grammar, &Limits::default());
            let Ok(Some(dfa)) = node.and_then(|node| node_to_dfa(&node, &Limits::default())) else {
                continue;
            };
            let mut here = 0;
            for document in &case.documents {
                let mut constraint = compiled.constraint(ConstraintOptions::default());
                let mut state = 0;
                for token in self.env.tok_trie().greedy_tokenize(document.as_bytes()) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if random >> 61 == 0 && here < share && compared < wanted {
                        here += 1;
                        compared += 1;
                        let same = constraint
                            .mask(None)
                            .is_ok_and(|mask| self.is_brute_force(&mask, &dfa, state));
                        if !same {
                            differ += 1;
                            println!("differs: {} in {document}", case.name);
                        }
                    }
                    if constraint.advance(token).is_err() {
                        break;
                    }
                    let bytes = self.tokens[token as usize].as_deref().unwrap_or_default();
                    state = dfa.step(state, bytes).unwrap_or(-1);
                }
            }
        }
        (compared, differ)
    }

    fn is_brute_force(&self, mask: &tinyllm_constrain::Mask, dfa: &Dfa, state: i32) -> bool {
        self.tokens.iter().enumerate().all(|(id, bytes)| {
            let expected = match bytes {
                _ if id as u32 == self.eos => dfa.accept[state as usize],
                Some(bytes) if !bytes.is_empty() => dfa.step(state, bytes).is_ok_and(|s| s >= 0),
                _ => false,
            };
            mask.is_allowed(id as u32) == expected
        })
    }
}

fn nanos(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

fn table(title: &str, ours: &Row, peer: &Row) -> String {
    let mut text = format!(
        "\n### {title}\n\n| µs | tinyllm p50 | p90 | p99 | max | llguidance p50 | p90 | p99 | max | ratio p50 | p99 |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    );
    let rows = [
        ("compile + first mask", &ours.first, &peer.first),
        ("cold mask, every position", &ours.cold, &peer.cold),
        ("cold mask, made for the first time", &ours.made, &peer.made),
        ("warm mask", &ours.warm, &peer.warm),
        ("advance", &ours.advance, &peer.advance),
    ];
    for (name, a, b) in rows {
        text += &format!(
            "| {name} | {:.2} | {:.2} | {:.2} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} | {:.1} |\n",
            a.p50,
            a.p90,
            a.p99,
            a.max,
            b.p50,
            b.p90,
            b.p99,
            b.max,
            b.p50 / a.p50,
            b.p99 / a.p99
        );
    }
    text
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        core_affinity::set_for_current(core);
    }
    let cases = corpus::read(&options.corpus, options.most)?;
    let mut report = Vec::new();
    let mut markdown = String::new();
    for model in &options.models {
        let bench = Bench::new(gguf::read(model)?)?;
        let size = bench.tokens.len();
        if options.check > 0 {
            let (compared, differ) = bench.check(&cases, options.check);
            println!("{size} tokens: {compared} masks compared with brute force, {differ} differ");
            if differ > 0 {
                return Err("masks differ".into());
            }
            continue;
        }
        bench.ours.prepare();
        for slice in &SLICES {
            let (mut ours, mut peer) = (Measured::default(), Measured::default());
            let (mut fit, mut documents) = (0, 0);
            for case in &cases {
                let text = case.schema.to_string();
                if bench.compile_ours(&text, slice.subset).is_err() {
                    continue;
                }
                fit += 1;
                let accepted: Vec<_> = case
                    .documents
                    .iter()
                    .filter_map(|d| bench.accepted(&text, slice.subset, d))
                    .collect();
                if accepted.is_empty() {
                    continue;
                }
                documents += accepted.len();
                let new = bench.measure_ours(&text, slice.subset, &accepted, &mut ours)?;
                bench.measure_peer(&text, &accepted, &new, &mut peer);
            }
            let title = format!(
                "{size} tokens, {} slice: {fit} of {} schemas fit, {documents} documents, {} positions",
                slice.name,
                cases.len(),
                ours.cold.0.len()
            );
            let (ours, peer) = (ours.row(), peer.row());
            let text = table(&title, &ours, &peer);
            println!("{text}");
            markdown += &text;
            report.push(json!({
                "tokens": size, "slice": slice.name, "schemas": cases.len(), "fit": fit,
                "documents": documents, "tinyllm": ours, "llguidance": peer,
            }));
        }
    }
    if let Some(path) = options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(path) = options.markdown {
        std::fs::write(path, markdown)?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
