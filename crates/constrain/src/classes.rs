//! Byte classes: bytes that no transition of an automaton tells apart.
//!
//! A JSON grammar has some 30 to 100 classes, so rows of the inner tables are that long, not 256.
//! Computed by splitting, once per distinct byte set; sets of one byte are collected and split
//! off together, because literal text makes many of them.

use crate::ast::ByteSet;
use crate::dfa::Dfa;
use rustc_hash::FxHashMap;

/// A partition of the bytes.
#[derive(Debug, Clone)]
pub(crate) struct ByteClasses {
    /// The class of each byte; classes are numbered by their first byte.
    pub(crate) of: [u8; 256],
    /// The first byte of each class.
    pub(crate) first: Vec<u8>,
}

impl ByteClasses {
    /// The coarsest partition that every set and every partition respects.
    pub(crate) fn new<'a>(
        sets: &[ByteSet],
        partitions: impl Iterator<Item = &'a ByteClasses>,
    ) -> Self {
        let mut split = Splitter { of: [0; 256], count: 1 };
        let mut singles = ByteSet::EMPTY;
        for set in sets {
            if set.len() == 1 {
                singles = singles.union(set);
            } else {
                split.by(|byte| u16::from(set.contains(byte)));
            }
        }
        for partition in partitions {
            split.by(|byte| u16::from(partition.of[byte as usize]));
        }
        // Every single byte is a class of its own; a class left without a byte is not numbered.
        for byte in singles.iter() {
            split.of[byte as usize] = split.count;
            split.count += 1;
        }
        split.finish()
    }

    /// Bytes with the same column in a dense table.
    pub(crate) fn of_table(dfa: &Dfa) -> Self {
        let mut split = Splitter { of: [0; 256], count: 1 };
        for row in dfa.trans.chunks_exact(256) {
            if split.count == 256 {
                break;
            }
            let mut targets = FxHashMap::default();
            split.by(|byte| {
                let fresh = targets.len() as u16;
                *targets.entry(row[byte as usize]).or_insert(fresh)
            });
        }
        split.finish()
    }

    /// Number of classes.
    pub(crate) fn len(&self) -> usize {
        self.first.len()
    }
}

struct Splitter {
    of: [u16; 256],
    count: u16,
}

impl Splitter {
    /// Splits every class by a key below 257.
    fn by(&mut self, mut key: impl FnMut(u8) -> u16) {
        // The class's first key keeps the class; every other key gets a fresh one.
        let mut first = [u16::MAX; 256];
        let mut others: Vec<(u16, u16, u16)> = Vec::new();
        for byte in 0..=255_u8 {
            let class = self.of[byte as usize];
            let key = key(byte);
            let kept = &mut first[class as usize];
            if *kept == u16::MAX {
                *kept = key;
            }
            if *kept == key {
                continue;
            }
            let known = others.iter().find(|(c, k, _)| (*c, *k) == (class, key));
            if let Some((_, _, fresh)) = known {
                self.of[byte as usize] = *fresh;
                continue;
            }
            others.push((class, key, self.count));
            self.of[byte as usize] = self.count;
            self.count += 1;
        }
    }

    fn finish(self) -> ByteClasses {
        let mut renamed = [u8::MAX; 512];
        let mut first = Vec::with_capacity(self.count as usize);
        let mut of = [0; 256];
        let mut named = [false; 512];
        for byte in 0..=255_u8 {
            let class = self.of[byte as usize] as usize;
            if !named[class] {
                named[class] = true;
                renamed[class] = first.len() as u8;
                first.push(byte);
            }
            of[byte as usize] = renamed[class];
        }
        ByteClasses { of, first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_is_the_coarsest() {
        let sets = [ByteSet::range(b'0', b'9'), ByteSet::single(b'5'), ByteSet::range(b'5', b'z')];
        let classes = ByteClasses::new(&sets, std::iter::empty());
        let signature = |b: u8| sets.map(|s| s.contains(b));
        for a in 0..=255 {
            for b in 0..=255 {
                let same = classes.of[a as usize] == classes.of[b as usize];
                assert_eq!(same, signature(a) == signature(b), "{a} {b}");
            }
        }
        assert_eq!(classes.len(), 5);
        assert!(classes.first.iter().enumerate().all(|(i, b)| classes.of[*b as usize] == i as u8));
    }

    #[test]
    fn all_bytes_apart() {
        let sets: Vec<_> = (0..=255).map(ByteSet::single).collect();
        assert_eq!(ByteClasses::new(&sets, std::iter::empty()).len(), 256);
    }
}
