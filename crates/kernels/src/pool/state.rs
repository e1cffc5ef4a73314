//! State word shared by all threads of a pool.
//!
//! | bits   | field      | meaning                                                                   |
//! |--------|------------|---------------------------------------------------------------------------|
//! | 0..16  | active     | workers inside the region; the caller is not counted                       |
//! | 16..32 | sleepers   | workers that parked, or woke and have not said so yet                      |
//! | 32     | open       | workers may enter the region                                               |
//! | 33     | waiting    | the caller parked until `active` is zero                                   |
//! | 34     | stop       | the pool is being dropped                                                  |
//! | 40..64 | generation | counts regions, wrapping, so that a worker enters each at most once        |
//!
//! Keeping these in one word makes every decision a single read-modify-write: a worker cannot fall asleep after a region
//! was published, nor enter one after it was closed.

/// A value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(pub(super) u64);

/// One worker inside the region.
pub(super) const ACTIVE: u64 = 1;
/// One parked worker.
pub(super) const SLEEPER: u64 = 1 << 16;
/// See the table.
pub(super) const OPEN: u64 = 1 << 32;
/// See the table.
pub(super) const WAITING: u64 = 1 << 33;
/// See the table.
pub(super) const STOP: u64 = 1 << 34;
/// One generation; adding it wraps within the top bits.
pub(super) const GENERATION: u64 = 1 << 40;

impl State {
    /// Workers inside the region.
    pub(super) const fn active(self) -> u64 {
        self.0 & 0xffff
    }

    /// True if any worker may be parked.
    pub(super) const fn has_sleepers(self) -> bool {
        self.0 & 0xffff_0000 != 0
    }

    /// True if workers may enter.
    pub(super) const fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// True if the caller parked.
    pub(super) const fn is_waiting(self) -> bool {
        self.0 & WAITING != 0
    }

    /// True if the pool is being dropped.
    pub(super) const fn is_stopping(self) -> bool {
        self.0 & STOP != 0
    }

    /// Number of the region that is, or was last, open; wraps.
    pub(super) const fn generation(self) -> u64 {
        self.0 >> 40
    }
}
