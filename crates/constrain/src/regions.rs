//! The masks of states from which runs of characters are free, as within a string under a pattern.
//!
//! A **region** of a state is a set of characters, given by their first bytes, and a number `depth`
//! such that every string of at most that many of them keeps the state alive. It is found by
//! looking at the states that such strings lead to, and is the larger the less a pattern minds:
//! under a pattern that is searched for, any characters may come before and after it, and a part
//! like `[a-z0-9]+` goes on with its own. Of a region's tokens the vocabulary keeps tables; only
//! tokens that leave it, or that are longer, are walked. Everything is exact: a region found is
//! never larger than the truth, and what it does not cover is walked.
//!
//! Cost: looking for a region makes at most [`MOST_STATES`] rows of states; the walk visits the
//! beginnings of tokens that hold a byte at which the region is left.

use crate::ast::ByteSet;
use crate::compile::CompiledGrammar;
use crate::counted::Bits;
use crate::determinize::{DEAD_STATE, Determinizer, State};
use crate::error::ConstrainError;
use crate::mask::Mask;
use crate::masks::Lazy;
use crate::nfa::{Nfa, Op, UNBOUNDED};
use crate::subtrees::Kinds;
use crate::trie::ROOT;
use crate::utf8;
use crate::vocabulary::Vocabulary;
use crate::walk::{Automaton, walk_from};
use rustc_hash::FxHashMap;

/// States that can begin fewer tokens than this, or by fewer bytes, are walked as they are.
const WORTH: usize = 2_000;
const WORTH_BYTES: u32 = 16;

/// States looked at for one region.
const MOST_STATES: usize = 64;

/// Characters looked ahead: few tokens are longer, and those are walked.
const MOST_DEPTH: u32 = 20;

/// Times that a set of characters is made smaller before the search is given up.
const MOST_ATTEMPTS: usize = 6;

/// A set that stays alive for so many characters is not made smaller.
const DEEP: u32 = 4;

/// What begins an escape or ends a string is never part of a region.
const BORDERS: ByteSet = ByteSet::of(b"\"\\");

/// Control characters.
const CONTROL: ByteSet = ByteSet::range(0, 0x1f);

/// Characters of a string that are written as they are.
pub(crate) const RAW: ByteSet = utf8::LEADS.intersection(&CONTROL.union(&BORDERS).complement());

struct Region {
    /// First bytes of its characters.
    leads: ByteSet,
    /// Kinds of bytes at which it may be left.
    leaving: Kinds,
    /// So many characters keep the state alive.
    depth: u32,
    /// Whether one character more never does.
    dead_beyond: bool,
}

/// The mask of a state with a region worth it; `None` when it has none.
pub(crate) fn mask(
    grammar: &CompiledGrammar,
    automaton: &mut Determinizer,
    state: State,
) -> Result<Option<Mask>, ConstrainError> {
    let vocabulary = &grammar.vocabulary;
    let live = automaton.live(&grammar.nfa, state);
    if live.len() < WORTH_BYTES || vocabulary.beginning_with(&live) < WORTH {
        return Ok(None);
    }
    let Some(region) = find(&grammar.nfa, automaton, state, &live) else {
        return Ok(None);
    };
    let shallow = region.depth < DEEP && !region.dead_beyond;
    if shallow || vocabulary.beginning_with(&region.leads) < WORTH {
        return Ok(None);
    }
    let mut bits = vocabulary.run(&region.leads).within(vocabulary, region.depth);
    walk_rest(vocabulary, &mut Lazy::new(grammar, automaton), &region, state, &mut bits)?;
    if automaton.accepts(state)
        && let Some(eos) = vocabulary.eos()
    {
        bits.allow(eos);
    }
    // The ordinary walk says what is missing.
    Ok((bits.count > 0).then(|| Mask::counted(bits.words, bits.count)))
}

/// Allows the tokens that leave the region or are longer than it is deep, where they stay alive.
fn walk_rest(
    vocabulary: &Vocabulary,
    lazy: &mut Lazy<'_>,
    region: &Region,
    state: State,
    bits: &mut Bits,
) -> Result<(), ConstrainError> {
    let (trie, subtrees) = (&vocabulary.trie, vocabulary.subtrees());
    let mut outside: Vec<(u32, State)> = Vec::new();
    // Node, state, place within a character, characters begun.
    let mut stack = vec![(ROOT, state, utf8::BETWEEN, 0_u32)];
    let mut check = 0_u32;
    while let Some((node, state, within, chars)) = stack.pop() {
        check = check.wrapping_add(1);
        if check.is_multiple_of(1024) {
            lazy.check()?;
        }
        let parent = trie.node(node);
        for (index, child) in trie.children(parent).iter().enumerate() {
            let index = parent.child + index as u32;
            let begins = within == utf8::BETWEEN;
            let after = utf8::step(within, child.byte);
            if after == utf8::ILL || (begins && !region.leads.contains(child.byte)) {
                if let Some(next) = lazy.step(state, child.byte) {
                    bits.also_allow_all(trie.tokens(&child.token));
                    if child.children > 0 {
                        outside.push((index, next));
                    }
                }
                continue;
            }
            let chars = chars + u32::from(begins);
            let beyond = !region.dead_beyond && chars + subtrees.height(index) > region.depth;
            if !beyond && !subtrees.kinds(index).meets(region.leaving) {
                continue;
            }
            let Some(next) = lazy.step(state, child.byte) else { continue };
            if chars > region.depth {
                bits.also_allow_all(trie.tokens(&child.token));
            }
            stack.push((index, next, after, chars));
        }
    }
    walk_from(trie, lazy, outside, |tokens, _| bits.also_allow_all(tokens))
}

/// A region of a state.
fn find(nfa: &Nfa, automaton: &mut Determinizer, state: State, live: &ByteSet) -> Option<Region> {
    if in_free_text(nfa, automaton, state) {
        let leaving = BORDERS.union(&CONTROL.intersection(&nfa.bytes));
        let leaving = Kinds::of(&leaving).union(Kinds::ILL);
        return Some(Region { leads: RAW, leaving, depth: u32::MAX, dead_beyond: true });
    }
    let candidates = live.intersection(&utf8::LEADS).intersection(&BORDERS.complement());
    let mut leads = candidates;
    // A set that leads back to the state is closed already.
    let mut back = ByteSet::EMPTY;
    for byte in candidates.iter().filter(u8::is_ascii) {
        if automaton.step(nfa, state, nfa.classes.of[byte as usize]) == state {
            back.insert(byte);
        }
    }
    if back.len() * 2 > candidates.intersection(&ByteSet::range(0, 0x7f)).len() {
        leads = back.union(&candidates.intersection(&ByteSet::range(0x80, 0xff)));
    }
    for _ in 0..MOST_ATTEMPTS {
        match Search::new(nfa, automaton, leads).run(state) {
            Ok(region) => return Some(region),
            Err(without) => leads = leads.intersection(&without.complement()),
        }
        if leads.is_empty() {
            break;
        }
    }
    None
}

/// Whether one way of having read the text so far is amid any number of any string characters:
/// then all of them keep the state alive, whatever else is going on.
fn in_free_text(nfa: &Nfa, automaton: &Determinizer, state: State) -> bool {
    automaton.threads(state).iter().any(|thread| {
        let counter = automaton.counter(thread.counter);
        let chars = nfa.loop_at(counter.hub).map(|looped| looped.chars);
        counter.left == UNBOUNDED
            && matches!(nfa.ops[thread.state as usize],
                Op::Table { table, local: 0, .. } if Some(table) == chars)
    })
}

/// The search for how deep a set of characters goes.
struct Search<'a> {
    nfa: &'a Nfa,
    automaton: &'a mut Determinizer,
    leads: ByteSet,
    /// One first byte of each class and kind of character.
    firsts: Vec<u8>,
    leaving: ByteSet,
    /// The depth at which each state was met.
    met: FxHashMap<State, u32>,
    /// Whether a state was met at two depths.
    again: bool,
}

impl<'a> Search<'a> {
    fn new(nfa: &'a Nfa, automaton: &'a mut Determinizer, leads: ByteSet) -> Self {
        let mut seen = Vec::new();
        let mut firsts = Vec::new();
        for byte in leads.iter() {
            let key = (nfa.classes.of[byte as usize], utf8::lead(byte));
            if !seen.contains(&key) {
                seen.push(key);
                firsts.push(byte);
            }
        }
        let (leaving, met) = (ByteSet::EMPTY, FxHashMap::default());
        Self { nfa, automaton, leads, firsts, leaving, met, again: false }
    }

    fn step(&mut self, state: State, byte: u8) -> State {
        self.automaton.step(self.nfa, state, self.nfa.classes.of[byte as usize])
    }

    fn region(&self, depth: u32, dead_beyond: bool) -> Region {
        // All other bytes are ill-formed where a character should begin.
        let leaving = self.leaving.intersection(&utf8::LEADS);
        let leaving = Kinds::of(&leaving).union(Kinds::ILL);
        Region { leads: self.leads, leaving, depth, dead_beyond }
    }

    /// The region, or the first bytes without which there may be a deeper one.
    fn run(mut self, start: State) -> Result<Region, ByteSet> {
        let mut level = vec![start];
        self.met.insert(start, 0);
        for depth in 0..MOST_DEPTH {
            let lives: Vec<ByteSet> =
                level.iter().map(|state| self.automaton.live(self.nfa, *state)).collect();
            let missing = |live: &ByteSet| self.leads.intersection(&live.complement());
            let lost = lives.iter().fold(ByteSet::EMPTY, |lost, live| lost.union(&missing(live)));
            if !lost.is_empty() {
                let dead = lives.iter().all(|live| missing(live) == self.leads);
                if lost != self.leads && depth < DEEP {
                    return Err(lost);
                }
                for live in &lives {
                    self.leaving = self.leaving.union(&live.intersection(&self.leads.complement()));
                }
                return Ok(self.region(depth, dead && !self.again));
            }
            let mut next = Vec::new();
            for (state, live) in level.iter().zip(&lives) {
                self.leaving = self.leaving.union(&live.intersection(&self.leads.complement()));
                for index in 0..self.firsts.len() {
                    let byte = self.firsts[index];
                    match self.after_character(*state, byte, depth + 1, &mut next) {
                        Ok(()) => {}
                        Err(()) if depth < DEEP => return Err(self.like(byte)),
                        Err(()) => return Ok(self.region(depth, false)),
                    }
                }
            }
            if next.is_empty() {
                return Ok(self.region(u32::MAX, true));
            }
            if self.met.len() > MOST_STATES {
                return Ok(self.region(depth + 1, false));
            }
            level = next;
        }
        Ok(self.region(MOST_DEPTH, false))
    }

    /// The first bytes that cannot be told from `byte`.
    fn like(&self, byte: u8) -> ByteSet {
        let mut like = ByteSet::EMPTY;
        let same = |other: u8| (self.nfa.classes.of[other as usize], utf8::lead(other));
        for other in self.leads.iter().filter(|other| same(*other) == same(byte)) {
            like.insert(other);
        }
        like
    }

    /// Puts the states after the characters that begin with `byte` into `next`; fails when one of
    /// them is dead.
    fn after_character(
        &mut self,
        state: State,
        byte: u8,
        depth: u32,
        next: &mut Vec<State>,
    ) -> Result<(), ()> {
        let mut inside = vec![(self.step(state, byte), utf8::lead(byte))];
        let mut at = 0;
        while let Some(&(state, within)) = inside.get(at) {
            at += 1;
            if state == DEAD_STATE {
                return Err(());
            }
            if within == utf8::BETWEEN {
                let known = *self.met.entry(state).or_insert_with(|| {
                    next.push(state);
                    depth
                });
                self.again |= known < depth;
                continue;
            }
            let more = utf8::more(within);
            let live = self.automaton.live(self.nfa, state);
            if !more.intersection(&live.complement()).is_empty() {
                return Err(());
            }
            let mut class = None;
            for byte in more.iter() {
                let of = self.nfa.classes.of[byte as usize];
                if class.replace(of) == Some(of) {
                    continue;
                }
                let target = (self.step(state, byte), utf8::step(within, byte));
                if !inside.contains(&target) {
                    inside.push(target);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::{Grammar, Subset, Whitespace};
    use crate::limits::Limits;
    use crate::lower::lower;
    use crate::nfa::Counting;

    /// The first bytes of the region after `text`, in ASCII, its depth, and whether it is dead
    /// beyond.
    fn region(keywords: &str, text: &str) -> Option<(String, u32, bool)> {
        let grammar = Grammar::Schema {
            text: format!(r#"{{"type":"string",{keywords}}}"#),
            subset: Subset::General,
            whitespace: Whitespace::Compact,
            max_string_length: None,
        };
        let limits = Limits::default();
        let node = lower(&grammar, &limits).unwrap();
        let nfa = Nfa::build(&node, Counting::Counters, &limits).unwrap().unwrap();
        let mut automaton = Determinizer::new(&nfa);
        let state = automaton.replay(&nfa, text.bytes()).unwrap();
        let live = automaton.live(&nfa, state);
        let region = find(&nfa, &mut automaton, state, &live)?;
        let ascii = region.leads.iter().filter(u8::is_ascii).map(char::from).collect();
        Some((ascii, region.depth, region.dead_beyond))
    }

    fn of(ranges: &[(u8, u8)]) -> String {
        let mut all: Vec<u8> = ranges.iter().flat_map(|(a, b)| *a..=*b).collect();
        all.sort_unstable();
        all.into_iter().map(char::from).collect()
    }

    #[test]
    fn regions_are_as_large_as_a_pattern_lets_them_be() {
        let (digits, lower, upper) = ((b'0', b'9'), (b'a', b'z'), (b'A', b'Z'));
        let raw: String = RAW.iter().filter(u8::is_ascii).map(char::from).collect();
        for (keywords, text, leads, depth, dead_beyond) in [
            (r#""pattern":"\\d{4}-""#, "\"20", raw.clone(), u32::MAX, true),
            (
                r#""pattern":"^[a-z0-9]+(-[a-z0-9]+)*$""#,
                "\"a",
                of(&[lower, digits]),
                u32::MAX,
                true,
            ),
            (
                r#""pattern":"^[a-z0-9]+(-[a-z0-9]+)*$""#,
                "\"a-",
                of(&[lower, digits]),
                u32::MAX,
                true,
            ),
            (r#""pattern":"^[0-9A-Z]{8}-[0-9]{4}$""#, "\"1", of(&[digits, upper]), 7, true),
            (r#""pattern":"^[a-z]{1,15}$""#, "\"", of(&[lower]), 15, true),
            (r#""pattern":"^[a-z]{1,90}$""#, "\"", of(&[lower]), MOST_DEPTH, false),
            (r#""pattern":"^[A-Z][a-z]+$""#, "\"Qa", of(&[lower]), u32::MAX, true),
            (r#""pattern":"[a-z]","maxLength":9"#, "\"", raw.clone(), 8, false),
        ] {
            assert_eq!(region(keywords, text), Some((leads, depth, dead_beyond)), "{keywords}");
        }
    }
}
