//! Minimisation by partition refinement (Hopcroft) and breadth-first numbering.
//!
//! Input is a partial automaton in which every state is reachable and alive; a missing transition
//! counts as a transition to one dead state, which is why refinement also splits by "has a
//! transition into the splitter". Cost: O(classes · n · log n) time, O(edges) memory.

use crate::classes::ByteClasses;
use crate::dfa::Dfa;
use crate::error::ConstrainError;
use crate::limits::Limits;

/// A deterministic automaton over byte classes: state 0 is the start, `u32::MAX` is dead.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) classes: [u8; 256],
    pub(crate) n_classes: usize,
    pub(crate) table: Vec<u32>,
    pub(crate) accept: Vec<bool>,
    /// Steps that making it took.
    pub(crate) work: u64,
}

/// No target; as an `i32` this is [`DEAD`](crate::DEAD).
pub(crate) const NO_TARGET: u32 = u32::MAX;

/// The canonical automaton of a partial one.
pub(crate) fn canonical(partial: &Partial, limits: &Limits) -> Result<Dfa, ConstrainError> {
    let blocks = refine(partial, limits)?;
    Limits::check(
        "automaton_bytes",
        limits.automaton_bytes,
        blocks.from.len() * 256 * size_of::<i32>(),
        "",
        "use smaller repeat counts or fewer alternatives",
    )?;
    Ok(number(partial, &blocks).widen())
}

/// States by block, and where each block lies in that order.
struct Blocks {
    /// States, grouped by block.
    order: Vec<u32>,
    /// Position of each state in `order`.
    place: Vec<u32>,
    /// Block of each state.
    of: Vec<u32>,
    /// First position of each block.
    from: Vec<u32>,
    /// One past the last position of each block.
    to: Vec<u32>,
    /// How many states at the front of each block are marked.
    marked: Vec<u32>,
}

impl Blocks {
    fn new(accept: &[bool]) -> Self {
        let n = accept.len();
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|s| accept[*s as usize]);
        let rejecting = accept.iter().filter(|a| !**a).count();
        let mut blocks = Self {
            place: vec![0; n],
            of: vec![0; n],
            from: Vec::new(),
            to: Vec::new(),
            marked: Vec::new(),
            order,
        };
        for range in [0..rejecting, rejecting..n] {
            if range.is_empty() {
                continue;
            }
            let block = blocks.from.len() as u32;
            blocks.from.push(range.start as u32);
            blocks.to.push(range.end as u32);
            blocks.marked.push(0);
            for place in range {
                let state = blocks.order[place] as usize;
                blocks.place[state] = place as u32;
                blocks.of[state] = block;
            }
        }
        blocks
    }

    /// Moves a state to the marked front of its block; true when it is the block's first mark.
    fn mark(&mut self, state: u32) -> bool {
        let block = self.of[state as usize] as usize;
        let (here, front) = (self.place[state as usize], self.from[block] + self.marked[block]);
        if here < front {
            return false;
        }
        let other = self.order[front as usize];
        self.order.swap(here as usize, front as usize);
        self.place[state as usize] = front;
        self.place[other as usize] = here;
        self.marked[block] += 1;
        self.marked[block] == 1
    }

    /// Splits the marked states off; the smaller part becomes a new block, which is returned.
    fn split(&mut self, block: u32) -> Option<u32> {
        let b = block as usize;
        let (from, to, marked) = (self.from[b], self.to[b], self.marked[b]);
        self.marked[b] = 0;
        if marked == to - from {
            return None;
        }
        let middle = from + marked;
        let fresh = self.from.len() as u32;
        let part = if marked <= to - middle {
            self.from[b] = middle;
            from..middle
        } else {
            self.to[b] = middle;
            middle..to
        };
        self.from.push(part.start);
        self.to.push(part.end);
        self.marked.push(0);
        for place in part {
            self.of[self.order[place as usize] as usize] = fresh;
        }
        Some(fresh)
    }
}

fn refine(partial: &Partial, limits: &Limits) -> Result<Blocks, ConstrainError> {
    let n = partial.accept.len();
    let k = partial.n_classes;
    // Sources of each (class, target), as one counting sort.
    let slot = |class: usize, target: u32| class * n + target as usize;
    let mut first = vec![0_u32; k * n + 1];
    for (i, &target) in partial.table.iter().enumerate() {
        if target != NO_TARGET {
            first[slot(i % k, target)] += 1;
        }
    }
    for i in 0..k * n {
        first[i + 1] += first[i];
    }
    // Each entry now is its group's end; filling downwards turns it into the group's start.
    let mut sources = vec![0_u32; first[k * n] as usize];
    for (i, &target) in partial.table.iter().enumerate() {
        if target != NO_TARGET {
            let at = &mut first[slot(i % k, target)];
            *at -= 1;
            sources[*at as usize] = (i / k) as u32;
        }
    }

    let mut blocks = Blocks::new(&partial.accept);
    // Every block is a splitter at the start: the dead state's block is the one left out.
    let mut waiting: Vec<u32> = (0..blocks.from.len() as u32).collect();
    let mut queued = vec![true; blocks.from.len()];
    let mut touched: Vec<u32> = Vec::new();
    let mut work = 0_u64;
    let mut members: Vec<u32> = Vec::new();
    while let Some(splitter) = waiting.pop() {
        queued[splitter as usize] = false;
        members.clear();
        let range = blocks.from[splitter as usize]..blocks.to[splitter as usize];
        members.extend(&blocks.order[range.start as usize..range.end as usize]);
        for class in 0..k {
            work += members.len() as u64;
            for &member in &members {
                let at = slot(class, member);
                for &source in &sources[first[at] as usize..first[at + 1] as usize] {
                    work += 1;
                    if blocks.mark(source) {
                        touched.push(blocks.of[source as usize]);
                    }
                }
            }
            for block in touched.drain(..) {
                if let Some(fresh) = blocks.split(block) {
                    // The smaller part is queued; the larger one stays queued if it was.
                    queued.push(true);
                    waiting.push(fresh);
                }
            }
        }
        if work > limits.compile_work {
            return Err(crate::determinize::out_of_work(limits));
        }
    }
    Ok(blocks)
}

fn number(partial: &Partial, blocks: &Blocks) -> Partial {
    let k = partial.n_classes;
    let mut name = vec![NO_TARGET; blocks.from.len()];
    let mut queue = vec![blocks.of[0]];
    name[blocks.of[0] as usize] = 0;
    let mut table = Vec::with_capacity(blocks.from.len() * k);
    let mut accept = Vec::with_capacity(blocks.from.len());
    // Classes are numbered by their first byte, so class order is byte order.
    let mut next = 0;
    while next < queue.len() {
        let state = blocks.order[blocks.from[queue[next] as usize] as usize] as usize;
        next += 1;
        accept.push(partial.accept[state]);
        for class in 0..k {
            let target = partial.table[state * k + class];
            if target == NO_TARGET {
                table.push(NO_TARGET);
                continue;
            }
            let block = blocks.of[target as usize];
            if name[block as usize] == NO_TARGET {
                name[block as usize] = queue.len() as u32;
                queue.push(block);
            }
            table.push(name[block as usize]);
        }
    }
    Partial { classes: partial.classes, n_classes: k, table, accept, work: partial.work }
}

impl Partial {
    /// A partial automaton over the given classes.
    pub(crate) fn new(classes: &ByteClasses, table: Vec<u32>, accept: Vec<bool>) -> Self {
        Self { classes: classes.of, n_classes: classes.len(), table, accept, work: 0 }
    }
}
