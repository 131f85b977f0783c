//! Integers between bounds, digit by digit.

use super::lexeme::{FINITE_DIGITS, byte, optional, range, repeat};
use crate::ast::Node;

/// The largest integer of the finite form.
pub(crate) const LARGEST: i128 = 10i128.pow(FINITE_DIGITS) - 1;

/// The integers from `low` to `high`, both included, in the finite form; none when there are
/// none. `-0` is written for 0 as freely as where there are no bounds.
pub(crate) fn between(low: i128, high: i128) -> Option<Node> {
    let (low, high) = (low.max(-LARGEST), high.min(LARGEST));
    if low > high {
        return None;
    }
    let mut options = Vec::new();
    if low <= 0 && high >= 0 {
        options.push(Node::Concat(vec![optional(byte(b'-')), byte(b'0')]));
    }
    if low < 0 {
        let magnitudes = positive((-high).max(1) as u64, (-low) as u64);
        options.push(Node::Concat(vec![byte(b'-'), magnitudes]));
    }
    if high > 0 {
        options.push(positive(low.max(1) as u64, high as u64));
    }
    Some(Node::Alt(options))
}

/// The integers from `low` to `high` without a sign; none when there are none.
pub(crate) fn natural(low: u64, high: u64) -> Option<Node> {
    if low > high {
        return None;
    }
    let mut options = Vec::new();
    if low == 0 {
        options.push(byte(b'0'));
    }
    if high > 0 {
        options.push(positive(low.max(1), high));
    }
    Some(Node::Alt(options))
}

/// `low` to `high`, 1 at least, without leading zeros.
fn positive(low: u64, high: u64) -> Node {
    let length = |x: u64| x.ilog10() + 1;
    let smallest = |digits: u32| 10u64.pow(digits - 1);
    let largest = |digits: u32| 10u64.pow(digits) - 1;
    let (mut first, mut last) = (length(low), length(high));
    if first == last {
        return same_length(&low.to_string(), &high.to_string());
    }
    let mut options = Vec::new();
    if low > smallest(first) {
        options.push(same_length(&low.to_string(), &largest(first).to_string()));
        first += 1;
    }
    if high < largest(last) {
        options.push(same_length(&smallest(last).to_string(), &high.to_string()));
        last -= 1;
    }
    if first <= last {
        let rest = repeat(range(b'0', b'9'), first - 1, Some(last - 1));
        options.push(Node::Concat(vec![range(b'1', b'9'), rest]));
    }
    Node::Alt(options)
}

/// The digit strings from `low` to `high`, which are of one length.
fn same_length(low: &str, high: &str) -> Node {
    let (Some(l), Some(h)) = (low.bytes().next(), high.bytes().next()) else {
        return Node::Empty;
    };
    let rest = low.len() - 1;
    let any = || repeat(range(b'0', b'9'), rest as u32, Some(rest as u32));
    let (low_rest, high_rest) = (&low[1..], &high[1..]);
    if l == h {
        return Node::Concat(vec![byte(l), same_length(low_rest, high_rest)]);
    }
    let (mut from, mut to) = (l, h);
    let mut options = Vec::new();
    if low_rest.bytes().any(|b| b != b'0') {
        options.push(Node::Concat(vec![byte(l), same_length(low_rest, &"9".repeat(rest))]));
        from += 1;
    }
    if high_rest.bytes().any(|b| b != b'9') {
        options.push(Node::Concat(vec![byte(h), same_length(&"0".repeat(rest), high_rest)]));
        to -= 1;
    }
    if from <= to {
        options.push(Node::Concat(vec![range(from, to), any()]));
    }
    Node::Alt(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::node_to_dfa;
    use crate::limits::Limits;

    fn check(low: i128, high: i128, values: impl Iterator<Item = i128>) {
        let node = between(low, high);
        let dfa = node.map(|node| node_to_dfa(&node, &Limits::default()).unwrap().unwrap());
        for value in values {
            let inside = dfa.as_ref().is_some_and(|dfa| dfa.matches(value.to_string().as_bytes()));
            assert_eq!(inside, (low..=high).contains(&value), "{value} in {low}..={high}");
        }
        if let Some(dfa) = dfa {
            assert_eq!(dfa.matches(b"-0"), low <= 0 && high >= 0);
            for text in ["", "-", "01", "-01", "00", "1.0", "1e0", "+1"] {
                assert!(!dfa.matches(text.as_bytes()), "{text}");
            }
        }
    }

    #[test]
    fn small_bounds_are_exact() {
        for low in -23..=23 {
            for high in -23..=23 {
                check(low, high, -130..=130);
            }
        }
        for (low, high) in
            [(95, 1203), (-1203, 95), (100, 999), (1, 1000), (-1000, -1), (7, 7), (199, 201)]
        {
            check(low, high, -1500..=1500);
        }
    }

    #[test]
    fn large_bounds_are_exact_at_their_edges() {
        let safe = 9_007_199_254_740_991;
        check(
            -safe,
            safe,
            [-safe - 1, -safe, safe, safe + 1, 0, 9_007_199_254_740_990].into_iter(),
        );
        check(i128::MIN, i128::MAX, [LARGEST, -LARGEST, 0, 5].into_iter());
        assert!(between(LARGEST + 1, i128::MAX).is_none());
    }
}
