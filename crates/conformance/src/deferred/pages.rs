//! Copies of pages: found by the page's hint, believed by its stamp, dropped when there are too many.
//!
//! Rows that hold no position are junk in a copy, so that an operation that reads them, or sends them to a cache, is
//! noticed.

use std::ops::Range;
use std::sync::atomic::Ordering;

use muser_kv::{KvLayout, PAGE_ROWS, Page, PageLayout};

/// Every byte of junk: a NaN in every scale and every f16.
const JUNK: u8 = 0xff;
/// Stamp of a slot without a copy: no page has it.
const NO_STAMP: u64 = 0;

/// Copies of pages of all layouts, by slot.
#[derive(Debug)]
pub(super) struct PageStore {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Copies beyond this many make those go that the step does not use.
    copies_max: usize,
    step: u64,
    counts: CopyCounts,
}

/// Lookups of page copies, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Lookups that found a good copy.
    pub found: u64,
    /// Lookups after which a copy was made.
    pub made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Stamp of the page when the copy was made or written.
    stamp: u64,
    /// Number of the last step that used it.
    step: u64,
}

/// Slot of a page's copy.
pub(super) enum Place {
    /// A good copy is there.
    Found(usize),
    /// A copy has to be made there.
    New(usize),
}

impl PageStore {
    pub(super) fn new(copies_max: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), copies_max, step: 0, counts: CopyCounts::default() }
    }

    /// Copies found from here on stay until the next step begins.
    pub(super) fn begin_step(&mut self) {
        self.step += 1;
    }

    pub(super) fn counts(&self) -> CopyCounts {
        self.counts
    }

    pub(super) fn find(&mut self, page: &Page) -> Place {
        let known = self.slot_of(page).filter(|&slot| self.slots[slot].stamp == page.stamp());
        let slot = known.unwrap_or_else(|| self.take());
        self.slots[slot] = Slot { stamp: page.stamp(), step: self.step };
        if known.is_some() {
            self.counts.found += 1;
            return Place::Found(slot);
        }
        self.counts.made += 1;
        page.hint().store(slot as u64 + 1, Ordering::Relaxed);
        Place::New(slot)
    }

    /// Records that the copy in `slot` has the present content of `page`.
    pub(super) fn has_written(&mut self, slot: usize, page: &Page) {
        self.slots[slot].stamp = page.stamp();
    }

    /// Drops every copy.
    pub(super) fn forget(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.stamp = NO_STAMP);
    }

    fn slot_of(&self, page: &Page) -> Option<usize> {
        let hint = usize::try_from(page.hint().load(Ordering::Relaxed)).ok()?;
        hint.checked_sub(1).filter(|slot| *slot < self.slots.len())
    }

    fn take(&mut self) -> usize {
        if self.free.is_empty() && self.slots.len() >= self.copies_max {
            let idle = (0..self.slots.len()).filter(|&slot| self.slots[slot].step < self.step);
            self.free = idle.collect();
            self.free.iter().for_each(|&slot| self.slots[slot].stamp = NO_STAMP);
        }
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { stamp: NO_STAMP, step: 0 });
            self.slots.len() - 1
        })
    }
}

/// A copy of the first `rows` rows of a page; the others are junk.
pub(super) fn copy_of(layout: PageLayout, bytes: &[u8], rows: usize) -> Box<[u8]> {
    let mut copy = vec![JUNK; layout.page_bytes()].into_boxed_slice();
    copy_rows(layout, bytes, &mut copy, 0..rows);
    copy
}

/// Copies rows from page to page.
pub(super) fn copy_rows(layout: PageLayout, from: &[u8], to: &mut [u8], rows: Range<usize>) {
    debug_assert!(rows.end <= PAGE_ROWS);
    let mut copy = |place: Range<usize>| to[place.clone()].copy_from_slice(&from[place]);
    for head in 0..layout.kv_heads() {
        copy(layout.k_rows(head, rows.clone()));
        copy(layout.v_rows(head, rows.clone()));
        if layout.layout() == KvLayout::Q8 {
            copy(layout.k_scales(head, rows.clone()));
            copy(layout.v_scales(head, rows.clone()));
        }
    }
}
