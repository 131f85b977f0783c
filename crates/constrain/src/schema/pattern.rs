//! `pattern`: regular expressions of ECMA-262 with search semantics, over decoded text.
//!
//! Parsed by `regex-syntax`; where its syntax and ECMA-262's differ, the pattern is read as
//! ECMA-262 does (with the `u` flag) or refused: `\d` and `\w` are ASCII, `\s` is ECMA's white
//! space, `.` is not a line terminator, `[` and `&&` in brackets are literal. Lookahead is taken
//! right after a `^` that begins the pattern, where it is a condition on the whole text: an
//! intersection or a difference of automata. Other lookaround, back references, word boundaries
//! and flags are refused.
//!
//! `^` and `$` may stand anywhere. A part of a pattern denotes four languages, by whether it asks
//! to begin at the start of the text and whether it asks to end at its end; putting parts together
//! is then exact. Each character of the result is written in any way JSON allows
//! ([`super::spelling`]).

use super::product;
use super::spelling::{CharSet, spelling};
use crate::ast::Node;
use crate::error::ConstrainError;
use crate::limits::Limits;
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem, GroupKind,
    HexLiteralKind, Literal, LiteralKind, RepetitionKind, RepetitionRange, SpecialLiteralKind,
};
use regex_syntax::hir::{Class, HirKind};
use std::borrow::Cow;

/// The texts in which a pattern finds a match, without the quotes, and how long they are.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) node: Node,
    /// Fewest characters.
    pub(crate) min: u32,
    /// Most characters; none when there is no bound.
    pub(crate) max: Option<u32>,
}

/// Why a pattern is not taken.
pub(crate) enum Refusal {
    /// What to say of the pattern.
    Pattern(String),
    /// An error that knows its own words.
    Error(ConstrainError),
}

impl From<ConstrainError> for Refusal {
    fn from(error: ConstrainError) -> Self {
        Self::Error(error)
    }
}

/// Reads a pattern.
pub(crate) fn search(pattern: &str, limits: &mut Limits) -> Result<Found, Refusal> {
    Limits::check("pattern_bytes", limits.pattern_bytes, pattern.len(), "", "shorten the pattern")?;
    let prepared = as_regex_syntax(pattern)?;
    let (conditions, rest) = leading_lookaheads(&prepared);
    let mut found = search_plain(&rest, limits)?;
    for (positive, condition) in conditions {
        let condition = search_plain(&format!("^(?:{condition})"), limits)?;
        let node = if positive {
            product::both(&found.node, &condition.node, limits)?
        } else {
            product::without(&found.node, &condition.node, limits)?
        };
        found.node = node.unwrap_or(Node::Alt(Vec::new()));
    }
    Ok(found)
}

/// Takes the lookaheads right after a leading `^` out of a pattern: whether each is positive, its
/// text, and the pattern that is left. A pattern with an alternative at the top keeps its own.
fn leading_lookaheads(pattern: &str) -> (Vec<(bool, &str)>, Cow<'_, str>) {
    let whole = (Vec::new(), Cow::Borrowed(pattern));
    let Some(mut rest) = pattern.strip_prefix('^') else { return whole };
    let mut conditions = Vec::new();
    loop {
        let (positive, inside) = match (rest.strip_prefix("(?="), rest.strip_prefix("(?!")) {
            (Some(inside), _) => (true, inside),
            (_, Some(inside)) => (false, inside),
            _ => break,
        };
        let Some(end) = closing(inside) else { return whole };
        conditions.push((positive, &inside[..end]));
        rest = &inside[end + 1..];
        // A quantifier on a lookahead is something else.
        if rest.starts_with(['*', '+', '?', '{']) {
            return whole;
        }
    }
    if conditions.is_empty() || has_top_alternative(rest) {
        return whole;
    }
    (conditions, Cow::Owned(format!("^{rest}")))
}

/// Calls `f` with the depth of groups before each character that is no escape and outside
/// brackets, until it gives something.
fn scan<T>(pattern: &str, mut f: impl FnMut(usize, usize, u8) -> Option<T>) -> Option<T> {
    let (mut depth, mut inside, mut escaped) = (0usize, false, false);
    for (at, b) in pattern.bytes().enumerate() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match b {
            b'\\' => escaped = true,
            b']' => inside = false,
            _ if inside => {}
            b'[' => inside = true,
            _ => {
                if let Some(found) = f(at, depth, b) {
                    return Some(found);
                }
                match b {
                    b'(' => depth += 1,
                    b')' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    None
}

/// Where the parenthesis that is open before `pattern` closes.
fn closing(pattern: &str) -> Option<usize> {
    scan(pattern, |at, depth, b| (b == b')' && depth == 0).then_some(at))
}

fn has_top_alternative(pattern: &str) -> bool {
    scan(pattern, |_, depth, b| (b == b'|' && depth == 0).then_some(())).is_some()
}

fn search_plain(pattern: &str, limits: &mut Limits) -> Result<Found, Refusal> {
    let nesting = limits.pattern_nesting.min(250) as u32;
    let ast = ast::parse::ParserBuilder::new()
        .nest_limit(nesting)
        .build()
        .parse(pattern)
        .map_err(|error| Refusal::Pattern(advice(error.kind())))?;
    let mut reader = Reader { text: pattern, limits };
    let part = reader.part(&ast)?;
    let any = reader.any()?;
    let [free, from_start, to_end, whole] = part.languages;
    let mut options = Vec::new();
    let (mut min, mut max) = (u32::MAX, Some(0));
    for (language, open_start, open_end) in [
        (free, true, true),
        (from_start, false, true),
        (to_end, true, false),
        (whole, false, false),
    ] {
        let Some(Measured { node, min: fewest, max: most }) = language else { continue };
        let mut sequence = Vec::with_capacity(3);
        sequence.extend(open_start.then(|| any.clone()));
        sequence.push(node);
        sequence.extend(open_end.then(|| any.clone()));
        options.push(Node::Concat(sequence));
        min = min.min(fewest);
        max = if open_start || open_end { None } else { longer(max, most) };
    }
    Ok(Found { node: Node::Alt(options), min, max })
}

fn longer(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    Some(a?.max(b?))
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Pattern(message.into()))
}

fn advice(kind: &ast::ErrorKind) -> String {
    use ast::ErrorKind;
    match kind {
        ErrorKind::UnsupportedLookAround => {
            "lookaround is supported right after a leading ^ only, and only ahead".to_owned()
        }
        ErrorKind::UnsupportedBackreference => {
            "back references are not regular; write the pattern without them".to_owned()
        }
        kind => format!("the pattern cannot be read: {kind}"),
    }
}

/// The pattern with what ECMA-262 takes literally inside brackets escaped for `regex-syntax`.
fn as_regex_syntax(pattern: &str) -> Result<String, Refusal> {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    let mut inside = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                out.push(c);
                out.extend(chars.next());
                continue;
            }
            '[' | '&' | '~' if inside => out.push('\\'),
            '[' => {
                inside = true;
                out.push(c);
                if chars.peek() == Some(&'^') {
                    chars.next();
                    out.push('^');
                }
                if chars.peek() == Some(&']') {
                    return refuse("an empty class; write \\] for a bracket in brackets");
                }
                continue;
            }
            ']' => inside = false,
            _ => {}
        }
        out.push(c);
    }
    Ok(out)
}

/// A language with the number of characters in its texts.
#[derive(Debug, Clone)]
struct Measured {
    node: Node,
    min: u32,
    max: Option<u32>,
}

impl Measured {
    fn empty() -> Self {
        Self { node: Node::Empty, min: 0, max: Some(0) }
    }

    fn then(self, next: Self) -> Self {
        let node = match (self.node, next.node) {
            (Node::Empty, node) | (node, Node::Empty) => node,
            (Node::Concat(mut items), Node::Concat(more)) => {
                items.extend(more);
                Node::Concat(items)
            }
            (Node::Concat(mut items), node) => {
                items.push(node);
                Node::Concat(items)
            }
            (first, second) => Node::Concat(vec![first, second]),
        };
        let max = self.max.zip(next.max).and_then(|(a, b)| a.checked_add(b));
        Self { node, min: self.min.saturating_add(next.min), max }
    }

    fn or(self, other: Self) -> Self {
        let node = match (self.node, other.node) {
            (Node::Alt(mut options), node) => {
                options.push(node);
                Node::Alt(options)
            }
            (first, second) => Node::Alt(vec![first, second]),
        };
        Self { node, min: self.min.min(other.min), max: longer(self.max, other.max) }
    }

    fn times(self, min: u32, max: Option<u32>) -> Self {
        let least = self.min.saturating_mul(min);
        let most = match (self.max, max) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (most, max) => most.zip(max).and_then(|(a, b)| a.checked_mul(b)),
        };
        let node = Node::Repeat { node: Box::new(self.node), min, max };
        Self { node, min: least, max: most }
    }
}

fn either(a: Option<Measured>, b: Option<Measured>) -> Option<Measured> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.or(b)),
        (a, b) => a.or(b),
    }
}

/// Index bit: the language's texts begin at the start of the whole text.
const START: usize = 1;
/// Index bit: the language's texts end at the end of the whole text.
const END: usize = 2;

/// What a part of a pattern denotes, by what it asks of its place.
#[derive(Debug, Clone, Default)]
struct Part {
    languages: [Option<Measured>; 4],
}

impl Part {
    fn of(index: usize, language: Measured) -> Self {
        let mut part = Self::default();
        part.languages[index] = Some(language);
        part
    }

    fn is_plain(&self) -> bool {
        self.languages[1..].iter().all(Option::is_none)
    }

    fn holds_empty(&self, index: usize) -> bool {
        self.languages[index].as_ref().is_some_and(|language| nullable(&language.node))
    }

    fn add(&mut self, index: usize, language: Option<Measured>) {
        let known = self.languages[index].take();
        self.languages[index] = either(known, language);
    }

    fn or(mut self, other: Self) -> Self {
        for (index, language) in other.languages.into_iter().enumerate() {
            self.add(index, language);
        }
        self
    }

    fn then(mut self, mut next: Self) -> Self {
        let mut whole = Self::default();
        if self.is_plain() && next.is_plain() {
            let both = self.languages[0].take().zip(next.languages[0].take());
            whole.languages[0] = both.map(|(a, b)| a.then(b));
            return whole;
        }
        for (i, a) in self.languages.iter().enumerate() {
            for (j, b) in next.languages.iter().enumerate() {
                let (Some(a), Some(b)) = (a, b) else { continue };
                // Nothing may follow an end, and nothing may precede a start.
                let only_a = i & END != 0;
                let only_b = j & START != 0;
                if (only_a && !next.holds_empty(j)) || (only_b && !self.holds_empty(i)) {
                    continue;
                }
                let language = match (only_a, only_b) {
                    (false, false) => a.clone().then(b.clone()),
                    (true, false) => a.clone(),
                    (false, true) => b.clone(),
                    (true, true) => Measured::empty(),
                };
                whole.add(i | j, Some(language));
            }
        }
        whole
    }

    /// Any number of times. Only the first factor that is not empty can begin at the start, and
    /// only the last can end at the end.
    fn star(self) -> Self {
        let [free, from_start, to_end, both] = self.languages;
        let middle = free.map_or_else(Measured::empty, |free| free.times(0, None));
        let mut star = Self::of(0, middle.clone());
        star.add(START, from_start.clone().map(|first| first.then(middle.clone())));
        star.add(END, to_end.clone().map(|last| middle.clone().then(last)));
        let ends = from_start.zip(to_end);
        star.add(START | END, ends.map(|(first, last)| first.then(middle).then(last)));
        star.add(START | END, both);
        star
    }
}

fn nullable(node: &Node) -> bool {
    match node {
        Node::Empty => true,
        Node::Concat(items) => items.iter().all(nullable),
        Node::Alt(options) => options.iter().any(nullable),
        Node::Repeat { node, min, .. } => *min == 0 || nullable(node),
        // Characters; the reader builds nothing else.
        _ => false,
    }
}

/// Repeats with anchors inside are written out, up to this many times.
const ANCHORED_REPEATS: u32 = 8;

struct Reader<'a> {
    text: &'a str,
    limits: &'a mut Limits,
}

impl Reader<'_> {
    fn any(&mut self) -> Result<Node, ConstrainError> {
        let node = Box::new(spelling(&CharSet::all(), self.limits)?);
        Ok(Node::Repeat { node, min: 0, max: None })
    }

    fn chars(&mut self, set: &CharSet) -> Result<Part, Refusal> {
        if set.ranges().is_empty() {
            return Ok(Part::default());
        }
        let node = spelling(set, self.limits)?;
        Ok(Part::of(0, Measured { node, min: 1, max: Some(1) }))
    }

    // Depth is bounded by the parser's nest limit.
    fn part(&mut self, ast: &Ast) -> Result<Part, Refusal> {
        match ast {
            Ast::Empty(_) => Ok(Part::of(0, Measured::empty())),
            Ast::Flags(_) => refuse("flags are not part of ECMA-262 patterns"),
            Ast::Literal(literal) => {
                let c = self.literal(literal)?;
                self.chars(&CharSet::new(vec![(c, c)]))
            }
            Ast::Dot(_) => {
                let lines = vec![(0x0a, 0x0a), (0x0d, 0x0d), (0x2028, 0x2029)];
                self.chars(&CharSet::new(lines).complement())
            }
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::StartLine => Ok(Part::of(START, Measured::empty())),
                AssertionKind::EndLine => Ok(Part::of(END, Measured::empty())),
                _ => refuse("word boundaries and \\A, \\z are not supported; use ^, $ and classes"),
            },
            Ast::ClassUnicode(class) => {
                let set = self.unicode(&class.span)?;
                self.chars(&set)
            }
            Ast::ClassPerl(class) => self.chars(&perl(class)),
            Ast::ClassBracketed(class) => {
                let mut ranges = Vec::new();
                self.items(&class.kind, &mut ranges)?;
                let set = CharSet::new(ranges);
                self.chars(&if class.negated { set.complement() } else { set })
            }
            Ast::Group(group) => {
                match &group.kind {
                    GroupKind::CaptureIndex(_)
                    | GroupKind::CaptureName { starts_with_p: false, .. } => {}
                    GroupKind::NonCapturing(flags) if flags.items.is_empty() => {}
                    _ => return refuse("flags and (?P<…>) are not part of ECMA-262 patterns"),
                }
                self.part(&group.ast)
            }
            Ast::Alternation(alternation) => {
                let mut part = Part::default();
                for option in &alternation.asts {
                    part = part.or(self.part(option)?);
                }
                Ok(part)
            }
            Ast::Concat(concat) => {
                let mut part = Part::of(0, Measured::empty());
                for item in &concat.asts {
                    part = part.then(self.part(item)?);
                }
                Ok(part)
            }
            Ast::Repetition(repetition) => {
                let (min, max) = match &repetition.op.kind {
                    RepetitionKind::ZeroOrOne => (0, Some(1)),
                    RepetitionKind::ZeroOrMore => (0, None),
                    RepetitionKind::OneOrMore => (1, None),
                    RepetitionKind::Range(range) => match range {
                        RepetitionRange::Exactly(n) => (*n, Some(*n)),
                        RepetitionRange::AtLeast(n) => (*n, None),
                        RepetitionRange::Bounded(m, n) => (*m, Some(*n)),
                    },
                };
                let part = self.part(&repetition.ast)?;
                self.repeated(part, min, max)
            }
        }
    }

    fn repeated(&self, mut part: Part, min: u32, max: Option<u32>) -> Result<Part, Refusal> {
        Limits::check(
            "repeat_count",
            self.limits.repeat_count as usize,
            max.unwrap_or(min) as usize,
            "",
            "use a smaller repeat count",
        )?;
        if part.is_plain() {
            let Some(language) = part.languages[0].take() else {
                // Nothing can be repeated only no times.
                return Ok(if min == 0 { Part::of(0, Measured::empty()) } else { part });
            };
            return Ok(Part::of(0, language.times(min, max)));
        }
        if min > ANCHORED_REPEATS || max.is_some_and(|max| max > ANCHORED_REPEATS) {
            return refuse(format!(
                "^ or $ inside a repeat of more than {ANCHORED_REPEATS} times is not supported"
            ));
        }
        let mut whole = Part::of(0, Measured::empty());
        for _ in 0..min {
            whole = whole.then(part.clone());
        }
        match max {
            None => whole = whole.then(part.star()),
            Some(max) => {
                for _ in min..max {
                    whole = whole.then(Part::of(0, Measured::empty()).or(part.clone()));
                }
            }
        }
        Ok(whole)
    }

    fn literal(&self, literal: &Literal) -> Result<u32, Refusal> {
        let known = match &literal.kind {
            LiteralKind::Verbatim
            | LiteralKind::Meta
            | LiteralKind::Superfluous
            | LiteralKind::HexFixed(HexLiteralKind::X | HexLiteralKind::UnicodeShort)
            | LiteralKind::HexBrace(HexLiteralKind::UnicodeShort) => true,
            LiteralKind::Special(kind) => *kind != SpecialLiteralKind::Bell,
            _ => false,
        };
        if known {
            return Ok(literal.c as u32);
        }
        let text = self.text.get(literal.span.start.offset..literal.span.end.offset);
        refuse(format!("{} is not an escape of ECMA-262 patterns", text.unwrap_or_default()))
    }

    /// A `\p{…}` class, whose tables `regex-syntax` has.
    fn unicode(&self, span: &ast::Span) -> Result<CharSet, Refusal> {
        let text = self.text.get(span.start.offset..span.end.offset).unwrap_or_default();
        match regex_syntax::Parser::new().parse(text).map(regex_syntax::hir::Hir::into_kind) {
            Ok(HirKind::Class(Class::Unicode(class))) => {
                let ranges = class.iter().map(|r| (r.start() as u32, r.end() as u32));
                Ok(CharSet::new(ranges.collect()))
            }
            Ok(HirKind::Literal(literal)) => {
                let c = std::str::from_utf8(&literal.0).ok().and_then(|s| s.chars().next());
                let ranges = c.map(|c| (c as u32, c as u32));
                Ok(CharSet::new(ranges.into_iter().collect()))
            }
            _ => refuse(format!("{text} is not a known class")),
        }
    }

    fn items(&mut self, set: &ClassSet, ranges: &mut Vec<(u32, u32)>) -> Result<(), Refusal> {
        match set {
            ClassSet::BinaryOp(_) => refuse("-- in brackets is not supported; escape the dashes"),
            ClassSet::Item(item) => self.item(item, ranges),
        }
    }

    fn item(&mut self, item: &ClassSetItem, ranges: &mut Vec<(u32, u32)>) -> Result<(), Refusal> {
        match item {
            ClassSetItem::Empty(_) => {}
            ClassSetItem::Literal(literal) => {
                let c = self.literal(literal)?;
                ranges.push((c, c));
            }
            ClassSetItem::Range(range) => {
                ranges.push((self.literal(&range.start)?, self.literal(&range.end)?));
            }
            ClassSetItem::Perl(class) => ranges.extend_from_slice(perl(class).ranges()),
            ClassSetItem::Unicode(class) => {
                ranges.extend_from_slice(self.unicode(&class.span)?.ranges());
            }
            ClassSetItem::Union(union) => {
                for item in &union.items {
                    self.item(item, ranges)?;
                }
            }
            ClassSetItem::Ascii(_) | ClassSetItem::Bracketed(_) => {
                return refuse("nested brackets are not part of ECMA-262 patterns");
            }
        }
        Ok(())
    }
}

fn perl(class: &ClassPerl) -> CharSet {
    let set = CharSet::new(match class.kind {
        ClassPerlKind::Digit => vec![(0x30, 0x39)],
        ClassPerlKind::Word => vec![(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)],
        ClassPerlKind::Space => vec![
            (0x09, 0x0d),
            (0x20, 0x20),
            (0xa0, 0xa0),
            (0x1680, 0x1680),
            (0x2000, 0x200a),
            (0x2028, 0x2029),
            (0x202f, 0x202f),
            (0x205f, 0x205f),
            (0x3000, 0x3000),
            (0xfeff, 0xfeff),
        ],
    });
    if class.negated { set.complement() } else { set }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::{Dfa, node_to_dfa};

    fn automaton(pattern: &str) -> Result<Option<Dfa>, Refusal> {
        let mut limits = Limits::default();
        let found = search(pattern, &mut limits)?;
        Ok(node_to_dfa(&found.node, &limits)?)
    }

    fn finds(pattern: &str, text: &str) -> bool {
        match automaton(pattern) {
            Ok(dfa) => dfa.is_some_and(|dfa| dfa.matches(text.as_bytes())),
            Err(Refusal::Pattern(message)) => panic!("{pattern}: {message}"),
            Err(Refusal::Error(error)) => panic!("{pattern}: {error}"),
        }
    }

    #[test]
    fn patterns_search() {
        for (pattern, yes, no) in [
            ("b", vec!["b", "abc", "\\u0062"], vec!["", "ac", "\\\\u0062"]),
            ("^b", vec!["b", "bc"], vec!["ab"]),
            ("b$", vec!["b", "ab"], vec!["ba"]),
            ("^a|b$", vec!["ax", "xb"], vec!["xa", "bx"]),
            ("^(a|b)$", vec!["a", "b"], vec!["ab", ""]),
            ("(^a|b)c", vec!["ac", "xbc"], vec!["xac"]),
            ("^(\\d+(,|$))+$", vec!["1", "1,2", "12,3,"], vec!["", ",", "1,,2"]),
            ("a^b", vec![], vec!["ab", "a", "b"]),
            ("$^", vec![""], vec!["a"]),
            ("(a|^)*b$", vec!["b", "ab", "aab", "xb"], vec!["a"]),
            (
                "^[^a]$",
                vec!["b", "é", "😀", "\\n", "\\u00e9", "\\ud83d\\ude00"],
                vec!["a", "\\u0061", "bb"],
            ),
            ("^.$", vec!["b", "\\t"], vec!["\\n", "\\u000A", "\\r", "\u{2028}"]),
            ("^[a-z]{2,3}$", vec!["ab", "abc", "\\u0061b"], vec!["a", "abcd"]),
            ("^\\s$", vec![" ", "\\t", "\\u00a0", "\u{3000}"], vec!["a"]),
            ("^\\w+$", vec!["aZ_9"], vec!["é", "-"]),
            ("^\\p{L}+$", vec!["é", "abc", "\\u00E9"], vec!["1"]),
            ("^[[a]+$", vec!["[a"], vec!["]"]),
            ("^[a&&b]+$", vec!["a&b"], vec!["c"]),
            ("^\\/x\\/$", vec!["/x/", "\\/x/"], vec!["x"]),
            ("^\"$", vec!["\\\"", "\\u0022"], vec!["a"]),
            ("", vec!["", "a"], vec!["\"", "\\x"]),
            ("^(?:a?){3}$", vec!["", "aaa"], vec!["aaaa"]),
            ("^(?<year>\\d{4})$", vec!["2024"], vec!["24"]),
            ("^(?!a)[a-c]+$", vec!["b", "ba"], vec!["a", "\\u0061b", "d"]),
            ("^(?=.*b)(?!.*cc)[a-c]+$", vec!["b", "cabc"], vec!["a", "bcc"]),
            ("^(?!\\s*$).+", vec!["a", " a "], vec!["", " ", "\\t"]),
            ("^(?!a|[)]b)", vec!["", "b", ")"], vec!["a", ")b"]),
            ("^\\u{1F600}$", vec!["😀", "\\uD83D\\uDE00"], vec!["a"]),
        ] {
            for text in yes {
                assert!(finds(pattern, text), "{pattern} finds a match in {text}");
            }
            for text in no {
                assert!(!finds(pattern, text), "{pattern} finds no match in {text}");
            }
        }
    }

    #[test]
    fn what_is_not_regular_or_not_ecma_is_refused() {
        for pattern in [
            "(?=a)",
            "^(?!a)b|c",
            "^a(?!b)",
            "^(?!a)*b",
            "(?!a)b",
            "(?<=a)b",
            "(a)\\1",
            "\\bword\\b",
            "(?i)a",
            "(?i:a)",
            "(?P<n>a)",
            "[]a]",
            "[^]",
            "\\Aa",
            "a\\z",
            "[a--b]",
            "\\a",
            "(",
            "[b-a]",
            "\\x{41}",
            "a{2,1}",
            "\\p{Nope}",
            "(^a){9}",
        ] {
            assert!(matches!(automaton(pattern), Err(Refusal::Pattern(_))), "{pattern}");
        }
    }

    #[test]
    fn lengths_are_known_where_they_are_bounded() {
        let lengths = |pattern: &str| {
            let found = search(pattern, &mut Limits::default());
            found.map(|found| (found.min, found.max)).ok()
        };
        assert_eq!(lengths("^[a-z]{2,3}-\\d+?$"), Some((4, None)));
        assert_eq!(lengths("^[a-z]{2,3}(-\\d)?$"), Some((2, Some(5))));
        assert_eq!(lengths("ab|c"), Some((1, None)));
        assert_eq!(lengths("^(ab|c)$"), Some((1, Some(2))));
        assert_eq!(lengths("^abc"), Some((3, None)));
    }
}
