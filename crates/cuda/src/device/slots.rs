//! Room for copies of pages: which slot has the copy of which page. Knows no device: slots are numbers, and slabs of them are
//! added by the caller.
//!
//! A page carries a hint, which is the number of a slot, and a stamp, which names its content. Any store of any device may have
//! written the hint, so it only says where to look; the copy there is the page's if it has the page's stamp.

use std::sync::atomic::{AtomicU64, Ordering};

/// Stamp of a slot without a copy: no page has it.
const NO_STAMP: u64 = 0;

/// Slots, in slabs of equal size.
#[derive(Debug)]
pub(super) struct PageSlots {
    slots_per_slab: usize,
    slabs_max: usize,
    slots: Vec<Slot>,
    /// Slots without a copy.
    free: Vec<usize>,
    step: u64,
}

/// Room for one copy.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Stamp of the page when the copy was made or written.
    stamp: u64,
    /// Number of the last step that used it.
    step: u64,
}

/// A page as a store of copies sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageKey<'a> {
    /// Name of its content.
    pub stamp: u64,
    /// A slot in which a store has put its copy.
    pub hint: &'a AtomicU64,
}

/// Slot of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The slot has the page's copy.
    Copied(usize),
    /// The slot was taken for the page: the copy has to be made.
    Taken(usize),
}

/// There is no slot for another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot<E> {
    /// All slabs are there, and every slot is used by the current step.
    Exhausted,
    /// The caller has no room for a slab, and every slot is used by the current step.
    NoSlab(E),
}

impl PageSlots {
    /// No slots yet, and up to `slabs_max` slabs, at least one, of `slots_per_slab` slots.
    pub(super) fn new(slots_per_slab: usize, slabs_max: usize) -> Self {
        let (slots_per_slab, slabs_max) = (slots_per_slab.max(1), slabs_max.max(1));
        Self { slots_per_slab, slabs_max, slots: Vec::new(), free: Vec::new(), step: 0 }
    }

    /// Begins a step: slots that are found or marked from here on keep their copies until the next one begins.
    pub(super) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// The slot of `page`, used by the current step from here on. Where it has no copy, a slot is taken: a free one, or one of
    /// a new slab, for which `add_slab` makes room, or one whose copy the current step does not use. `mark_used` is called
    /// before a copy is dropped, and marks the slots that the step uses without having looked for them.
    pub(super) fn find<E>(
        &mut self,
        page: PageKey<'_>,
        add_slab: &mut dyn FnMut() -> Result<(), E>,
        mark_used: &mut dyn FnMut(&mut Self),
    ) -> Result<Found, NoSlot<E>> {
        if let Some(slot) = self.copy_of(page) {
            self.slots[slot].step = self.step;
            return Ok(Found::Copied(slot));
        }
        let slot = self.take(add_slab, mark_used)?;
        self.slots[slot] = Slot { stamp: page.stamp, step: self.step };
        page.hint.store(slot as u64 + 1, Ordering::Relaxed);
        Ok(Found::Taken(slot))
    }

    /// Marks a slot as used by the current step.
    pub(super) fn mark(&mut self, slot: usize) {
        self.slots[slot].step = self.step;
    }

    /// Marks the copy of `page`, where there is one, as used by the current step.
    pub(super) fn mark_page(&mut self, page: PageKey<'_>) {
        if let Some(slot) = self.copy_of(page) {
            self.mark(slot);
        }
    }

    /// Records that `slot`, which the current step uses, has the content of this stamp.
    pub(super) fn set_stamp(&mut self, slot: usize, stamp: u64) {
        self.slots[slot].stamp = stamp;
    }

    /// Drops the copy in `slot`.
    pub(super) fn forget(&mut self, slot: usize) {
        self.slots[slot].stamp = NO_STAMP;
        self.slots[slot].step = 0;
        self.free.push(slot);
    }

    /// Drops every copy.
    pub(super) fn forget_all(&mut self) {
        self.slots.fill(Slot { stamp: NO_STAMP, step: 0 });
        self.free.clear();
        self.free.extend((0..self.slots.len()).rev());
    }

    fn copy_of(&self, page: PageKey<'_>) -> Option<usize> {
        let hint = usize::try_from(page.hint.load(Ordering::Relaxed)).ok()?.checked_sub(1)?;
        self.slots.get(hint).is_some_and(|slot| slot.stamp == page.stamp).then_some(hint)
    }

    fn take<E>(
        &mut self,
        add_slab: &mut dyn FnMut() -> Result<(), E>,
        mark_used: &mut dyn FnMut(&mut Self),
    ) -> Result<usize, NoSlot<E>> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let first = self.slots.len();
        let refused = if first < self.slots_per_slab * self.slabs_max {
            add_slab().map_err(NoSlot::NoSlab)
        } else {
            Err(NoSlot::Exhausted)
        };
        match refused {
            Ok(()) => {
                self.slots.resize(first + self.slots_per_slab, Slot { stamp: NO_STAMP, step: 0 });
                self.free.extend((first..self.slots.len()).rev());
            }
            Err(_) => {
                mark_used(self);
                self.evict();
            }
        }
        self.free.pop().ok_or_else(|| refused.expect_err("a new slab has at least one slot"))
    }

    /// Drops the quarter of the copies that were not used for longest, at least one, and none of the current step.
    fn evict(&mut self) {
        let mut idle: Vec<usize> = (0..self.slots.len()).filter(|&slot| self.slots[slot].step < self.step).collect();
        idle.sort_unstable_by_key(|&slot| self.slots[slot].step);
        idle.truncate(idle.len().div_ceil(4));
        idle.into_iter().for_each(|slot| self.forget(slot));
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
