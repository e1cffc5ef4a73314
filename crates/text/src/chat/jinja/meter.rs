//! Budget of one filling: work, bytes of values, nesting, and the caller's deadline.

use super::fault::Trouble;
use std::cell::Cell;

/// Work of one expression or statement.
const STEP: u64 = 64;

/// Work and bytes of one item of a list.
const ITEM: u64 = 32;

/// Work between two looks at the deadline.
const DEADLINE_INTERVAL: u64 = 1 << 20;

/// Most expressions, statements and calls in each other.
const NESTING_MAX: usize = 600;

/// Limits of one filling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Steps: one for an expression or a statement, and one for every 64 bytes that are read or made.
    pub(crate) steps: u64,
    /// Bytes of all values made, freed ones included.
    pub(crate) value_bytes: u64,
    /// Bytes of the text.
    pub(crate) text_bytes: usize,
}

/// Callback: true once the caller's deadline has passed.
pub(crate) type Expired<'a> = &'a dyn Fn() -> bool;

/// Remaining budget. Charges come before the work and before the allocation that they are for, so that no single
/// operation exceeds it.
pub(super) struct Meter<'a> {
    work: Cell<u64>,
    bytes: Cell<u64>,
    until_deadline: Cell<u64>,
    nesting: Cell<usize>,
    expired: Expired<'a>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(limits: &Limits, expired: Expired<'a>) -> Self {
        Self {
            work: Cell::new(limits.steps.saturating_mul(STEP)),
            bytes: Cell::new(limits.value_bytes),
            until_deadline: Cell::new(0),
            nesting: Cell::new(0),
            expired,
        }
    }

    /// Charges one expression or statement.
    pub(super) fn step(&self) -> Result<(), Trouble> {
        self.work(STEP)
    }

    /// Charges `bytes` that are read.
    pub(super) fn read(&self, bytes: usize) -> Result<(), Trouble> {
        self.work(units(bytes))
    }

    /// Charges `bytes` that are about to be made.
    pub(super) fn make(&self, bytes: usize) -> Result<(), Trouble> {
        let left = self.bytes.get().checked_sub(units(bytes)).ok_or(Trouble::Memory)?;
        self.bytes.set(left);
        self.work(units(bytes))
    }

    /// Charges a visit to each of `count` items.
    pub(super) fn visit(&self, count: usize) -> Result<(), Trouble> {
        self.work(units(count).saturating_mul(ITEM))
    }

    /// Charges `count` items of a list that is about to be made.
    pub(super) fn make_items(&self, count: usize) -> Result<(), Trouble> {
        self.make(count.saturating_mul(usize::try_from(ITEM).unwrap_or(usize::MAX)))
    }

    /// Begins a level of nesting.
    pub(super) fn enter(&self) -> Result<(), Trouble> {
        let nesting = self.nesting.get() + 1;
        if nesting > NESTING_MAX {
            let detail = format!("more than {NESTING_MAX} expressions, blocks and calls are nested in each other");
            return Err(Trouble::Failed(detail));
        }
        self.nesting.set(nesting);
        Ok(())
    }

    /// Ends a level of nesting.
    pub(super) fn leave(&self) {
        self.nesting.set(self.nesting.get() - 1);
    }

    fn work(&self, units: u64) -> Result<(), Trouble> {
        let left = self.work.get().checked_sub(units).ok_or(Trouble::Work)?;
        self.work.set(left);
        match self.until_deadline.get().checked_sub(units) {
            Some(left) => self.until_deadline.set(left),
            None if (self.expired)() => return Err(Trouble::Deadline),
            None => self.until_deadline.set(DEADLINE_INTERVAL),
        }
        Ok(())
    }
}

fn units(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
