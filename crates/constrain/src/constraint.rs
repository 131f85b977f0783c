//! What the engine holds per sequence.

use crate::error::ConstrainError;
use crate::mask::Mask;

/// A constraint on one output in the making.
///
/// Implementations hold a place in a shared automaton; they may be asked on another thread than
/// the one that runs the layers.
pub trait TokenConstraint: Send + std::fmt::Debug {
    /// Which tokens may come next; none after the end token. `remaining` is how many tokens the
    /// output may still take, the end token included; it matters only to a constraint that
    /// closes within its budget.
    ///
    /// A state that is not complete and allows nothing is an error that names the bytes that no
    /// token spells.
    fn mask(&mut self, remaining: Option<u32>) -> Result<Mask, ConstrainError>;

    /// The mask where it is known or takes microseconds; `None` where it takes longer (or may, when
    /// it must be found out by trying: what was tried then helps [`Self::mask`]). A mask under a
    /// budget that matters is given whatever it takes.
    fn quick_mask(&mut self, remaining: Option<u32>) -> Result<Option<Mask>, ConstrainError> {
        self.mask(remaining).map(Some)
    }

    /// Takes a token. A token that the grammar does not allow is an error and changes nothing.
    fn advance(&mut self, token: u32) -> Result<(), ConstrainError>;

    /// Takes the last `n` tokens back; more than were taken is an error and changes nothing.
    fn rollback(&mut self, n: usize) -> Result<(), ConstrainError>;

    /// A copy that goes its own way.
    fn fork(&self) -> Box<dyn TokenConstraint>;

    /// Whether the output so far is a whole string of the language.
    fn is_complete(&self) -> bool;

    /// Whether the output is over: the end token was taken, or the output is complete and no
    /// token can follow, or none did in the last mask under a budget.
    fn is_done(&self) -> bool;

    /// The bytes that every continuation begins with, up to some thousand.
    fn forced_bytes(&self) -> Vec<u8>;
}

/// How a compiled grammar constrains one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConstraintOptions {
    /// Keep only tokens after which the output can still end within the tokens that remain, as
    /// soon as that rules any out. Default false.
    pub close_within_budget: bool,
}
