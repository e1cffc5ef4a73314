//! State shared by every part of a world: clock, random numbers, model shape, event counts and the story.

use std::collections::{BTreeMap, BTreeSet};

use muser_ledger::LedgerEntry;

use crate::coverage::{Coverage, Mark};
use crate::shape::Shape;

/// Interval of an end's timer.
pub(crate) const TICK_MS: u64 = 50;
/// Largest step of the world's clock.
pub(crate) const STEP_MS_MAX: u64 = 12;

/// Shared by all parts of a world.
pub(crate) struct Context {
    pub(crate) now_ms: u64,
    pub(crate) random: fastrand::Rng,
    /// Random numbers for everything about trust, apart from `random` so that the stories of other seeds stay the same.
    pub(crate) trust_random: fastrand::Rng,
    pub(crate) trust_changes: bool,
    /// Nodes that ever sent wrong pages.
    pub(crate) liars: BTreeSet<[u8; 32]>,
    pub(crate) shape: Shape,
    pub(crate) stall_limit_ms: u64,
    /// While set, faults are drawn.
    pub(crate) stormy: bool,
    pub(crate) coverage: Coverage,
    pub(crate) accepted: AcceptedHandoffs,
    pub(crate) story: Option<Vec<String>>,
}

/// By decoder, key id and nonce, the last entry of every handoff that a ledger ever let in.
pub(crate) type AcceptedHandoffs = BTreeMap<(usize, u32, [u8; 32]), LedgerEntry>;

impl Context {
    /// Adds a line to the story, if one is kept.
    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        let now_ms = self.now_ms;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:>6} ms  {}", what()));
        }
    }

    pub(crate) fn mark(&mut self, mark: Mark) {
        self.coverage.count(mark);
    }

    /// True once in `n` times.
    pub(crate) fn once_in(&mut self, n: u32) -> bool {
        self.random.u32(0..n) == 0
    }

    /// True once in `n` times while faults are drawn.
    pub(crate) fn fault_in(&mut self, n: u32) -> bool {
        self.stormy && self.once_in(n)
    }

    pub(crate) fn trust_bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.trust_random.u8(..))
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.random.u8(..))
    }
}
