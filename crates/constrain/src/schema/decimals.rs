//! Numbers between bounds, digit by digit.
//!
//! A bounded number is written without an exponent: an integer part and, where it fits, a
//! fraction. Bounds are compared as decimals. A validator compares doubles, and rounding is
//! monotonic, so a text within inclusive bounds stays within them; next to an exclusive bound a
//! text could round onto the bound, so there the fraction is kept so short that every text near
//! the bound has at most 15 digits, which doubles tell apart.

use super::integers::{self, LARGEST};
use super::lexeme::{FINITE_FRACTION, byte, optional, repeat};
use crate::ast::{ByteSet, Node};

/// One end of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bound {
    negative: bool,
    /// The integer part, up to one past [`LARGEST`].
    whole: u64,
    /// Digits of the fraction, without trailing zeros.
    fraction: Vec<u8>,
    /// Whether the bound itself is left out.
    strict: bool,
}

/// Digits that a double keeps apart.
const DOUBLE_DIGITS: usize = 15;

impl Bound {
    /// Reads a number as Python prints it; none when it has digits beyond the finite form, or
    /// more than an exclusive bound may have.
    pub(crate) fn read(text: &str, strict: bool) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (digits, exponent) = match text.split_once('e') {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let mut all: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let mut point = whole.len() as i32 + exponent;
        if !(-400..=400).contains(&point) {
            return None;
        }
        while point > all.len() as i32 {
            all.push(b'0');
        }
        while point < 0 {
            all.insert(0, b'0');
            point += 1;
        }
        let mut fraction = all.split_off(point as usize);
        while fraction.last() == Some(&b'0') {
            fraction.pop();
        }
        let whole = std::str::from_utf8(&all).ok()?.trim_start_matches('0');
        // Past the finite form every bound is as good as any other.
        let beyond = LARGEST as u64 + 1;
        let whole = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(beyond).min(beyond) };
        let bound = Self { negative, whole, fraction, strict };
        let most = if strict { bound.safe_fraction() } else { FINITE_FRACTION as usize };
        (bound.fraction.len() <= most && !(strict && bound.safe_fraction() == 0)).then_some(bound)
    }

    /// Digits of a fraction up to which no text near the bound rounds onto it.
    fn safe_fraction(&self) -> usize {
        let whole = self.whole.checked_ilog10().map_or(1, |log| log as usize + 1);
        DOUBLE_DIGITS.saturating_sub(whole).min(FINITE_FRACTION as usize)
    }

    fn is_zero(&self) -> bool {
        self.whole == 0 && self.fraction.is_empty()
    }

    /// The bound on magnitudes that this is for numbers of the given sign; `Err(fits)` when it
    /// leaves all of them or none.
    fn on(&self, negative: bool, is_low: bool) -> Result<Magnitude, bool> {
        if self.negative == negative || self.is_zero() {
            return Ok(Magnitude {
                whole: self.whole,
                edge: Edge { rest: self.fraction.clone(), strict: self.strict },
            });
        }
        // A negative low bound lets every positive number in, and so on.
        Err(self.negative == is_low)
    }
}

#[derive(Debug, Clone)]
struct Magnitude {
    whole: u64,
    edge: Edge,
}

/// The fraction's digits that are still to be matched against a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    rest: Vec<u8>,
    strict: bool,
}

/// The numbers within the bounds; none when there are none.
pub(crate) fn between(low: &[Bound], high: &[Bound]) -> Option<Node> {
    let strict = low.iter().chain(high).filter(|bound| bound.strict);
    let digits = strict.map(Bound::safe_fraction).fold(FINITE_FRACTION as usize, usize::min);
    let mut options = Vec::new();
    for negative in [false, true] {
        // For negative numbers the ends change places.
        let (floors, ceilings) = if negative { (high, low) } else { (low, high) };
        let collect = |bounds: &[Bound], is_low: bool| -> Option<Vec<Magnitude>> {
            let mut magnitudes = Vec::new();
            for bound in bounds {
                match bound.on(negative, is_low) {
                    Ok(magnitude) => magnitudes.push(magnitude),
                    Err(true) => {}
                    Err(false) => return None,
                }
            }
            Some(magnitudes)
        };
        let (Some(floors), Some(ceilings)) =
            (collect(floors, !negative), collect(ceilings, negative))
        else {
            continue;
        };
        let magnitudes = of_magnitude(tightest(floors, true), tightest(ceilings, false), digits);
        options.extend(
            magnitudes.map(
                |node| {
                    if negative { Node::Concat(vec![byte(b'-'), node]) } else { node }
                },
            ),
        );
    }
    (!options.is_empty()).then_some(Node::Alt(options))
}

/// The bound that the others follow from.
fn tightest(bounds: Vec<Magnitude>, low: bool) -> Option<Magnitude> {
    bounds.into_iter().max_by(|a, b| {
        // Of equal ends the strict one is tighter. Digits compare as text: no trailing zeros.
        let ends = (a.whole, &a.edge.rest).cmp(&(b.whole, &b.edge.rest));
        let ends = if low { ends } else { ends.reverse() };
        ends.then(a.edge.strict.cmp(&b.edge.strict))
    })
}

fn of_magnitude(low: Option<Magnitude>, high: Option<Magnitude>, digits: usize) -> Option<Node> {
    let largest = LARGEST as u64;
    let low = low.unwrap_or(Magnitude { whole: 0, edge: Edge { rest: Vec::new(), strict: false } });
    let (top, top_edge) = match high {
        Some(high) if high.whole <= largest => (high.whole, Some(high.edge)),
        _ => (largest, None),
    };
    if low.whole > top {
        return None;
    }
    let mut options = Vec::new();
    let mut push = |from: u64, to: u64, low: Option<&Edge>, high: Option<&Edge>| {
        if from <= to
            && let Some(whole) = integers::natural(from, to)
            && let Some(fraction) = fraction(low, high, digits)
        {
            options.push(Node::Concat(vec![whole, fraction]));
        }
    };
    if low.whole == top {
        push(top, top, Some(&low.edge), top_edge.as_ref());
    } else {
        push(low.whole, low.whole, Some(&low.edge), None);
        push(low.whole + 1, top - u64::from(top_edge.is_some()), None, None);
        if let Some(edge) = &top_edge {
            push(top, top, None, Some(edge));
        }
    }
    (!options.is_empty()).then_some(Node::Alt(options))
}

/// Whether what is written so far may end here: nothing more counts as zeros.
fn may_end(low: Option<&Edge>, high: Option<&Edge>) -> bool {
    low.is_none_or(|low| low.rest.is_empty() && !low.strict)
        && high.is_none_or(|high| !high.rest.is_empty() || !high.strict)
}

/// The fraction with its point, where one may or must be.
fn fraction(low: Option<&Edge>, high: Option<&Edge>, digits: usize) -> Option<Node> {
    let written = tail(low, high, digits).map(|tail| Node::Concat(vec![byte(b'.'), tail]));
    match (may_end(low, high), written) {
        (true, Some(written)) => Some(optional(written)),
        (true, None) => Some(Node::Empty),
        (false, written) => written,
    }
}

/// One to `digits` digits between the edges.
fn tail(low: Option<&Edge>, high: Option<&Edge>, digits: usize) -> Option<Node> {
    if digits == 0 {
        return None;
    }
    if low.is_none() && high.is_none() {
        return Some(repeat(Node::Set(ByteSet::range(b'0', b'9')), 1, Some(digits as u32)));
    }
    // Digits that leave the same edges go together.
    let mut groups: Vec<(ByteSet, Option<Edge>, Option<Edge>)> = Vec::new();
    for digit in b'0'..=b'9' {
        let (Ok(low), Ok(high)) = (above(low, digit), below(high, digit)) else { continue };
        match groups.iter_mut().find(|(_, l, h)| *l == low && *h == high) {
            Some((set, ..)) => set.insert(digit),
            None => groups.push((ByteSet::single(digit), low, high)),
        }
    }
    let options = groups.into_iter().filter_map(|(set, low, high)| {
        let (low, high) = (low.as_ref(), high.as_ref());
        let rest = match (may_end(low, high), tail(low, high, digits - 1)) {
            (true, Some(rest)) => optional(rest),
            (true, None) => Node::Empty,
            (false, rest) => rest?,
        };
        Some(Node::Concat(vec![Node::Set(set), rest]))
    });
    let options: Vec<Node> = options.collect();
    (!options.is_empty()).then_some(Node::Alt(options))
}

/// A digit that leads past an edge.
struct Outside;

/// The low edge after a digit; none when every further digit keeps above it.
fn above(edge: Option<&Edge>, digit: u8) -> Result<Option<Edge>, Outside> {
    let Some(edge) = edge else { return Ok(None) };
    match edge.rest.split_first() {
        None if digit == b'0' && edge.strict => Ok(Some(edge.clone())),
        None => Ok(None),
        Some((first, _)) if digit < *first => Err(Outside),
        Some((first, _)) if digit > *first => Ok(None),
        Some((_, rest)) => Ok(Some(Edge { rest: rest.to_vec(), strict: edge.strict })),
    }
}

/// The high edge after a digit; none when every further digit keeps below it.
fn below(edge: Option<&Edge>, digit: u8) -> Result<Option<Edge>, Outside> {
    let Some(edge) = edge else { return Ok(None) };
    match edge.rest.split_first() {
        None if digit == b'0' && !edge.strict => Ok(Some(edge.clone())),
        None => Err(Outside),
        Some((first, _)) if digit > *first => Err(Outside),
        Some((first, _)) if digit < *first => Ok(None),
        Some((_, rest)) => Ok(Some(Edge { rest: rest.to_vec(), strict: edge.strict })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dfa::node_to_dfa;
    use crate::limits::Limits;
    use proptest::prelude::*;

    /// Thousandths as a decimal with `digits` digits of a fraction, at least what is needed.
    fn written(thousandths: i64, digits: usize) -> String {
        let sign = if thousandths < 0 { "-" } else { "" };
        let (whole, part) = (thousandths.abs() / 1000, thousandths.abs() % 1000);
        let fraction = format!("{part:03}");
        let needed = fraction.trim_end_matches('0');
        let fraction = if needed.len() >= digits { needed } else { &fraction[..digits] };
        if fraction.is_empty() {
            format!("{sign}{whole}")
        } else {
            format!("{sign}{whole}.{fraction}")
        }
    }

    proptest! {
        #[test]
        fn numbers_within_the_bounds_and_no_others(
            low in prop::option::of((-12_000..12_000i64, any::<bool>())),
            high in prop::option::of((-12_000..12_000i64, any::<bool>())),
            near in prop::collection::vec((-3..=3i64, 0..4usize), 20),
            far in prop::collection::vec((-120_000..120_000i64, 0..4usize), 20),
        ) {
            let bound = |(value, strict): (i64, bool)| Bound::read(&written(value, 0), strict).unwrap();
            let lows: Vec<Bound> = low.into_iter().map(bound).collect();
            let highs: Vec<Bound> = high.into_iter().map(bound).collect();
            let node = between(&lows, &highs);
            let dfa = node.map(|node| node_to_dfa(&node, &Limits::default()).unwrap().unwrap());
            let ends = [low.map_or(0, |low| low.0), high.map_or(0, |high| high.0), 0];
            let near = near.iter().flat_map(|(d, digits)| ends.map(|end| (end + d, *digits)));
            for (value, digits) in near.chain(far) {
                let fits = low.is_none_or(|(low, strict)| value > low || value == low && !strict)
                    && high.is_none_or(|(high, strict)| value < high || value == high && !strict);
                let text = written(value, digits);
                let accepted = dfa.as_ref().is_some_and(|dfa| dfa.matches(text.as_bytes()));
                prop_assert_eq!(accepted, fits, "{} in {:?} {:?}", text, low, high);
            }
            if let Some(dfa) = dfa {
                for text in ["", "-", ".5", "1.", "01", "1e1", "--1", "1.0000000000000000000"] {
                    prop_assert!(!dfa.matches(text.as_bytes()), "{}", text);
                }
            }
        }
    }

    #[test]
    fn nothing_rounds_onto_an_exclusive_bound() {
        let bound = |text: &str, strict| Bound::read(text, strict).unwrap();
        let below_five = between(&[], &[bound("5.0", true)]).unwrap();
        let dfa = node_to_dfa(&below_five, &Limits::default()).unwrap().unwrap();
        assert!(dfa.matches(b"4.99999999999999"));
        assert!(!dfa.matches(b"4.999999999999999999"));
        assert!("4.99999999999999".parse::<f64>().unwrap() < 5.0);
        let positive = between(&[bound("0", true)], &[]).unwrap();
        let dfa = node_to_dfa(&positive, &Limits::default()).unwrap().unwrap();
        assert!(dfa.matches(b"0.00000000000001") && !dfa.matches(b"0.0") && !dfa.matches(b"-1"));
        assert!(dfa.matches(b"999999999999999999.5"));
        assert_eq!(Bound::read("0.1234567890123456", true), None);
        assert!(Bound::read("0.1234567890123456", false).is_some());
        assert_eq!(Bound::read("1e-20", false), None);
        assert!(Bound::read("1e+300", false).is_some());
        assert_eq!(Bound::read("1e+300", true), None);
    }
}
