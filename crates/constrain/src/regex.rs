//! The strict regex subset: pattern text to a tree of byte sets.
//!
//! The language is over bytes and the match is of the whole string. The subset has no anchors,
//! lookaround, back references, lazy quantifiers or flags; whatever it does not know it refuses,
//! with the position. The parser keeps its own stack, so nesting costs heap and not stack, and
//! the depth of the tree it returns is bounded. One pass, linear in the pattern.

use crate::ast::{ByteSet, Node};
use crate::error::ConstrainError;
use crate::limits::{Limits, REPEAT_MAX};

const DIGIT: ByteSet = ByteSet::range(b'0', b'9');
const WORD: ByteSet = DIGIT
    .union(&ByteSet::range(b'A', b'Z'))
    .union(&ByteSet::range(b'a', b'z'))
    .union(&ByteSet::single(b'_'));
const SPACE: ByteSet = ByteSet::of(b" \t\n\r\x0c\x0b");

/// Bytes that stand for themselves after a backslash.
const ESCAPABLE: &[u8] = b"\\.*+?()[]{}|^$/\"-,:#&~' ";

/// Parses a pattern of the strict subset, under the default [`Limits`].
pub fn parse(pattern: &str) -> Result<Node, ConstrainError> {
    parse_within(pattern, &Limits::default())
}

/// Parses a pattern of the strict subset.
pub fn parse_within(pattern: &str, limits: &Limits) -> Result<Node, ConstrainError> {
    Limits::check(
        "pattern_bytes",
        limits.pattern_bytes,
        pattern.len(),
        "",
        "shorten the pattern, or describe the grammar by its parts",
    )?;
    let mut parser = Parser { pattern, bytes: pattern.as_bytes(), at: 0, limits };
    if let Some(at) = pattern.bytes().position(|b| !b.is_ascii()) {
        return Err(parser.fail_at(at, "not an ASCII character; write it as \\xHH bytes"));
    }
    let node = parser.pattern()?;
    if matches_nothing(&node) {
        return Err(parser.fail_at(0, "the pattern matches nothing"));
    }
    Ok(node)
}

/// The text as a pattern of the strict subset that matches exactly it: letters and digits stay,
/// what a backslash may quote is quoted, every other byte becomes `\xHH`.
pub fn escape(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() {
            out.push(char::from(b));
        } else if ESCAPABLE.contains(&b) {
            out.push('\\');
            out.push(char::from(b));
        } else {
            out.push_str("\\x");
            out.push(char::from(HEX[usize::from(b >> 4)]));
            out.push(char::from(HEX[usize::from(b & 15)]));
        }
    }
    out
}

/// Whether the tree's language is empty. The tree's depth is bounded by the parser.
fn matches_nothing(node: &Node) -> bool {
    match node {
        Node::Set(set) => set.is_empty(),
        Node::Concat(items) => items.iter().any(matches_nothing),
        Node::Alt(options) => options.iter().all(matches_nothing),
        Node::Repeat { node, min, .. } => *min > 0 && matches_nothing(node),
        // The parser builds no other kind.
        _ => false,
    }
}

/// A node and the height of its tree in groups and quantifiers.
struct Tall {
    node: Node,
    height: usize,
}

/// An open group (or the whole pattern): the alternatives before the last `|`, and the sequence
/// after it.
#[derive(Default)]
struct Group {
    open: usize,
    options: Vec<Node>,
    sequence: Vec<Node>,
    last: Option<Tall>,
    height: usize,
}

impl Group {
    fn push(&mut self, item: Tall) {
        self.settle();
        self.last = Some(item);
    }

    /// Moves the item that a quantifier could still take into the sequence.
    fn settle(&mut self) {
        if let Some(item) = self.last.take() {
            self.height = self.height.max(item.height);
            self.sequence.push(item.node);
        }
    }

    fn end_option(&mut self) {
        self.settle();
        let sequence = std::mem::take(&mut self.sequence);
        self.options.push(unwrap_single(sequence, Node::Empty, Node::Concat));
    }

    fn close(mut self) -> Tall {
        self.end_option();
        let node = unwrap_single(self.options, Node::Empty, Node::Alt);
        Tall { node, height: self.height + 1 }
    }
}

fn unwrap_single(mut nodes: Vec<Node>, none: Node, many: impl Fn(Vec<Node>) -> Node) -> Node {
    match nodes.len() {
        0 => none,
        1 => nodes.remove(0),
        _ => many(nodes),
    }
}

/// What an escape or a bracket item stands for.
enum Item {
    Byte(u8),
    Class(ByteSet),
}

struct Parser<'a> {
    pattern: &'a str,
    bytes: &'a [u8],
    at: usize,
    limits: &'a Limits,
}

impl Parser<'_> {
    fn fail_at(&self, position: usize, message: impl Into<String>) -> ConstrainError {
        ConstrainError::Regex {
            message: message.into(),
            position,
            pattern: self.pattern.to_owned(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn check_height(&self, height: usize) -> Result<(), ConstrainError> {
        Limits::check(
            "pattern_nesting",
            self.limits.pattern_nesting,
            height,
            "",
            "nest fewer groups and quantifiers",
        )
    }

    fn pattern(&mut self) -> Result<Node, ConstrainError> {
        let mut open: Vec<Group> = Vec::new();
        let mut group = Group::default();
        while let Some(b) = self.peek() {
            let start = self.at;
            self.at += 1;
            match b {
                b'(' => {
                    if self.eat(b'?') && !self.eat(b':') {
                        return Err(self.fail_at(start, "only (?:…) groups are in the subset"));
                    }
                    self.check_height(open.len() + 1)?;
                    open.push(std::mem::replace(
                        &mut group,
                        Group { open: start, ..Group::default() },
                    ));
                }
                b')' => {
                    let Some(outer) = open.pop() else {
                        return Err(self.fail_at(start, "unmatched )"));
                    };
                    let inner = std::mem::replace(&mut group, outer).close();
                    self.check_height(inner.height)?;
                    group.push(inner);
                }
                b'|' => group.end_option(),
                b'*' | b'+' | b'?' | b'{' => {
                    let Some(Tall { node, height }) = group.last.take() else {
                        return Err(self.fail_at(start, "nothing to repeat"));
                    };
                    let (min, max) = match b {
                        b'*' => (0, None),
                        b'+' => (1, None),
                        b'?' => (0, Some(1)),
                        _ => self.counts(start)?,
                    };
                    if self.peek() == Some(b'?') {
                        return Err(self.fail_at(self.at, "lazy quantifiers are not in the subset"));
                    }
                    self.check_height(height + 1)?;
                    let node = Node::Repeat { node: Box::new(node), min, max };
                    group.push(Tall { node, height: height + 1 });
                }
                b'^' | b'$' => {
                    return Err(self.fail_at(start, "anchors are not in the subset"));
                }
                b']' | b'}' => {
                    let what = format!("unmatched {}", char::from(b));
                    return Err(self.fail_at(start, what));
                }
                b'.' => {
                    let set = ByteSet::single(b'\n').complement();
                    group.push(Tall { node: Node::Set(set), height: 0 });
                }
                b'[' => {
                    let set = self.bracket(start)?;
                    group.push(Tall { node: Node::Set(set), height: 0 });
                }
                b'\\' => {
                    let set = match self.escaped(start)? {
                        Item::Byte(b) => ByteSet::single(b),
                        Item::Class(set) => set,
                    };
                    group.push(Tall { node: Node::Set(set), height: 0 });
                }
                _ => group.push(Tall { node: Node::Set(ByteSet::single(b)), height: 0 }),
            }
        }
        if !open.is_empty() {
            return Err(self.fail_at(group.open, "unmatched ("));
        }
        Ok(group.close().node)
    }

    /// The rest of `{m}`, `{m,}` or `{m,n}` after the brace at `start`.
    fn counts(&mut self, start: usize) -> Result<(u32, Option<u32>), ConstrainError> {
        let Some(length) = self.bytes[self.at..].iter().position(|b| *b == b'}') else {
            return Err(self.fail_at(start, "unmatched {"));
        };
        let body = &self.pattern[self.at..self.at + length];
        self.at += length + 1;
        let bad = || self.fail_at(start, "expected {m}, {m,} or {m,n}");
        let (min, max) = match body.split_once(',') {
            None => {
                let count = read_count(body).ok_or_else(bad)?;
                (count, Some(count))
            }
            Some((min, "")) => (read_count(min).ok_or_else(bad)?, None),
            Some((min, max)) => {
                (read_count(min).ok_or_else(bad)?, Some(read_count(max).ok_or_else(bad)?))
            }
        };
        if min > REPEAT_MAX || max.is_some_and(|max| max > REPEAT_MAX) {
            return Err(self.fail_at(start, format!("a repeat count is above {REPEAT_MAX}")));
        }
        if max.is_some_and(|max| max < min) {
            return Err(self.fail_at(start, "the repeat counts are out of order"));
        }
        Ok((min, max))
    }

    /// The escape whose backslash at `start` has been read.
    fn escaped(&mut self, start: usize) -> Result<Item, ConstrainError> {
        let Some(b) = self.peek() else {
            return Err(self.fail_at(start, "the pattern ends in a backslash"));
        };
        self.at += 1;
        Ok(match b {
            b'd' => Item::Class(DIGIT),
            b'w' => Item::Class(WORD),
            b's' => Item::Class(SPACE),
            b'D' => Item::Class(DIGIT.complement()),
            b'W' => Item::Class(WORD.complement()),
            b'S' => Item::Class(SPACE.complement()),
            b'n' => Item::Byte(b'\n'),
            b't' => Item::Byte(b'\t'),
            b'r' => Item::Byte(b'\r'),
            b'f' => Item::Byte(0x0c),
            b'v' => Item::Byte(0x0b),
            b'x' => {
                let digit = |i: usize| {
                    self.bytes.get(self.at + i).and_then(|b| char::from(*b).to_digit(16))
                };
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return Err(self.fail_at(start, "\\x needs two hexadecimal digits"));
                };
                self.at += 2;
                Item::Byte((high * 16 + low) as u8)
            }
            _ if ESCAPABLE.contains(&b) => Item::Byte(b),
            _ => {
                let what = format!("the escape \\{} is not in the subset", char::from(b));
                return Err(self.fail_at(start, what));
            }
        })
    }

    /// The rest of a bracket expression after the `[` at `start`.
    fn bracket(&mut self, start: usize) -> Result<ByteSet, ConstrainError> {
        let negated = self.eat(b'^');
        let mut set = ByteSet::EMPTY;
        let mut first = true;
        loop {
            if !first && self.eat(b']') {
                return Ok(if negated { set.complement() } else { set });
            }
            first = false;
            let at = self.at;
            let low = match self.bracket_item(start)? {
                Item::Class(class) => {
                    set = set.union(&class);
                    continue;
                }
                Item::Byte(b) => b,
            };
            // A dash before the closing bracket is literal.
            if self.peek() != Some(b'-') || matches!(self.bytes.get(self.at + 1), None | Some(b']'))
            {
                set.insert(low);
                continue;
            }
            self.at += 1;
            match self.bracket_item(start)? {
                Item::Class(_) => return Err(self.fail_at(at, "a class cannot end a range")),
                Item::Byte(high) if high < low => {
                    return Err(self.fail_at(at, "the range is out of order"));
                }
                Item::Byte(high) => set = set.union(&ByteSet::range(low, high)),
            }
        }
    }

    fn bracket_item(&mut self, open: usize) -> Result<Item, ConstrainError> {
        let at = self.at;
        let Some(b) = self.peek() else {
            return Err(self.fail_at(open, "unmatched ["));
        };
        self.at += 1;
        if b == b'\\' { self.escaped(at) } else { Ok(Item::Byte(b)) }
    }
}

/// A count, with the white space and the leading plus that are tolerated around it. Counts past
/// the range of `u32` saturate.
fn read_count(text: &str) -> Option<u32> {
    let text = text.trim_matches(|c: char| SPACE.contains(c as u8));
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(pattern: &str) -> ByteSet {
        match parse(pattern) {
            Ok(Node::Set(set)) => set,
            other => panic!("{pattern}: {other:?}"),
        }
    }

    #[test]
    fn brackets_follow_the_specification() {
        assert_eq!(set_of("[]a]"), ByteSet::of(b"]a"));
        assert_eq!(set_of("[^]a]"), ByteSet::of(b"]a").complement());
        assert_eq!(set_of("[-a]"), ByteSet::of(b"-a"));
        assert_eq!(set_of("[a-]"), ByteSet::of(b"-a"));
        assert_eq!(set_of(r"[\d-z]"), DIGIT.union(&ByteSet::of(b"-z")));
        assert_eq!(set_of("[[.^]"), ByteSet::of(b"[.^"));
        assert_eq!(set_of(r"[\x41-\x43]"), ByteSet::of(b"ABC"));
        assert_eq!(set_of(r"[\]\\]"), ByteSet::of(b"]\\"));
        assert_eq!(set_of("."), ByteSet::single(b'\n').complement());
        assert_eq!(set_of(r"\W"), WORD.complement());
        assert_eq!(set_of(r"\s"), ByteSet::of(b" \t\n\r\x0b\x0c"));
    }

    #[test]
    fn counts_follow_the_specification() {
        for (pattern, counts) in [
            ("a{2}", (2, Some(2))),
            ("a{2,}", (2, None)),
            ("a{2,3}", (2, Some(3))),
            ("a{ +2 ,\t3}", (2, Some(3))),
            ("a{0,256}", (0, Some(256))),
            ("a{007}", (7, Some(7))),
        ] {
            match parse(pattern) {
                Ok(Node::Repeat { min, max, .. }) => assert_eq!((min, max), counts, "{pattern}"),
                other => panic!("{pattern}: {other:?}"),
            }
        }
    }

    #[test]
    fn refusals_name_the_position() {
        for (pattern, position) in [
            ("^a", 0),
            ("a$", 1),
            ("a*?", 2),
            ("a??", 2),
            ("a{2}?", 4),
            ("(?=a)", 0),
            (r"\1", 0),
            ("é", 0),
            ("[a", 0),
            ("a(b", 1),
            ("a)", 1),
            ("a{3,2}", 1),
            ("a{257}", 1),
            ("a{2, }", 1),
            ("a{}", 1),
            ("a{,2}", 1),
            ("a{-1}", 1),
            ("a{1_0}", 1),
            ("a{1,2,3}", 1),
            ("a{2", 1),
            ("a{99999999999999999999}", 1),
            (r"ab\q", 2),
            ("x[z-a]", 2),
            (r"[a-\d]", 1),
            ("*a", 0),
            ("a|*", 2),
            ("(+)", 1),
            ("{1}", 0),
            ("]", 0),
            ("}", 0),
            ("a\\", 1),
            (r"\x4", 0),
            (r"[\b]", 1),
            ("[]", 0),
            ("[^\\x00-\\xff]", 0),
            ("a[^\\x00-\\xff]|b[^\\x00-\\xff]", 0),
            ("+", 0),
        ] {
            let error = parse(pattern).expect_err(pattern);
            assert_eq!(
                (error.code(), error.position()),
                ("ERR_TINYLLM_REGEX", Some(position)),
                "{pattern}"
            );
            let text = error.to_string();
            let tail = format!(" at position {position} in {pattern}");
            assert!(text.starts_with("regex: ") && text.ends_with(&tail), "{text}");
        }
    }

    #[test]
    fn empty_alternatives_and_stacked_quantifiers_are_legal() {
        for pattern in [
            "",
            "|",
            "a||b",
            "()",
            "a*+",
            "a{2}{3}",
            "(a|)*",
            "[^\\x00-\\xff]*",
            "a|[^\\x00-\\xff]",
        ] {
            assert!(parse(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn nesting_and_length_end_in_a_named_limit() {
        let limit = |pattern: &str| parse(pattern).unwrap_err().limit();
        assert_eq!(limit(&"(".repeat(100_000)), Some("pattern_nesting"));
        assert_eq!(limit(&format!("a{}", "*".repeat(100_000))), Some("pattern_nesting"));
        assert_eq!(limit(&"a".repeat((1 << 20) + 1)), Some("pattern_bytes"));
        let deep = Limits::default().pattern_nesting;
        assert!(deep <= 300, "the automaton's builder follows some 1,000 levels of trees");
        assert!(parse(&format!("{}a{}", "(".repeat(deep), ")".repeat(deep))).is_ok());
    }

    #[test]
    fn escape_quotes_every_byte_but_letters_and_digits() {
        assert_eq!(escape("aZ09"), "aZ09");
        assert_eq!(escape("_< é\n"), "\\x5f\\x3c\\ \\xc3\\xa9\\x0a");
        let all: String = (0..128u8).map(char::from).collect();
        assert!(parse(&escape(&all)).is_ok());
    }
}
