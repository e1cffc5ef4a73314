//! Byte counts of a handoff, term by term: exact rows, rounding up to whole pages, and framing.

use std::num::NonZeroUsize;
use std::ops::Range;

use muser_kv::{CacheSpec, PAGE_ROWS};
use muser_wire::{Framing, HandoffPlan, layer_groups};

use super::FRAME_BYTES;

/// The bytes of one handoff, as they travel unpacked. Other messages are not counted: the request has 4 bytes for each
/// token, all others together are small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffBytes {
    /// Layer groups, pages of each layer, and the size of a page.
    pub plan: HandoffPlan,
    /// Bytes of the missing rows that later tokens attend to.
    pub row_bytes: u64,
    /// Bytes of the other rows in the same pages, as pages travel whole.
    pub rounding_bytes: u64,
    /// Bytes that frames add to the pages.
    pub framing: Framing,
}

/// A handoff that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanRefused {
    /// More layers than can be numbered.
    #[error("{0} layers are more than handoffs can number")]
    Layers(usize),
    /// More pages, or longer ones, than can be counted.
    #[error("{rows} rows have more pages than handoffs can count")]
    Pages {
        /// Rows of the prompt.
        rows: usize,
    },
}

impl HandoffBytes {
    /// Byte counts of a handoff after which a decoder with `held_pages` pages has `rows` rows, from an otherwise idle
    /// producer that computes `chunk_rows` rows at a time from the first row on: each chunk is sent when ready, in
    /// frames of its own.
    ///
    /// # Errors
    /// [`PlanRefused`].
    pub fn of(spec: &CacheSpec, rows: usize, held_pages: usize, chunk_rows: NonZeroUsize) -> Result<Self, PlanRefused> {
        let (layers, held) = (spec.layers(), held_pages.saturating_mul(PAGE_ROWS));
        if u16::try_from(layers.len()).is_err() {
            return Err(PlanRefused::Layers(layers.len()));
        }
        let is_local: Vec<bool> = layers.iter().map(|layer| layer.window.is_some()).collect();
        let groups = layer_groups(&is_local);
        let pages: Vec<Range<usize>> = (0..layers.len()).map(|layer| spec.pages_to_ship(layer, rows, held)).collect();
        let page_bytes = spec.layout().page_bytes();
        let plan = |pages: &[Range<usize>]| plan(&groups, pages, page_bytes).ok_or(PlanRefused::Pages { rows });
        let whole = plan(&pages)?;
        let mut framing = Framing::default();
        let mut sent = 0;
        while sent < rows {
            let computed = sent.saturating_add(chunk_rows.get()).min(rows);
            let ready = complete(sent, rows)..complete(computed, rows);
            let of_chunk: Vec<_> = pages.iter().map(|pages| common(pages, &ready)).collect();
            add(&mut framing, plan(&of_chunk)?.framing(FRAME_BYTES));
            sent = computed;
        }
        let row_bytes = spec.row_payload_bytes(rows, held);
        let rounding_bytes = whole.payload_bytes().saturating_sub(row_bytes);
        Ok(Self { plan: whole, row_bytes, rounding_bytes, framing })
    }

    /// Bytes of whole pages.
    pub fn payload_bytes(&self) -> u64 {
        self.row_bytes + self.rounding_bytes
    }

    /// Bytes of all frames with pages.
    pub fn wire_bytes(&self) -> u64 {
        self.payload_bytes() + self.framing.total_bytes()
    }
}

/// The plan of these pages of each layer; `None` if they cannot be counted.
pub(super) fn plan(groups: &[Vec<u16>], pages: &[Range<usize>], page_bytes: usize) -> Option<HandoffPlan> {
    let number = |index: usize| u32::try_from(index).ok();
    let layers: Option<Vec<_>> = pages.iter().map(|pages| Some(number(pages.start)?..number(pages.end)?)).collect();
    HandoffPlan::new(groups.to_vec(), layers?, number(page_bytes)?).ok()
}

/// Pages that are complete once `computed` of `rows` rows are there: the last one may have fewer rows than others.
fn complete(computed: usize, rows: usize) -> usize {
    if computed == rows { rows.div_ceil(PAGE_ROWS) } else { computed / PAGE_ROWS }
}

/// Intersection of two page ranges; empty if they do not overlap.
fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

fn add(sum: &mut Framing, more: Framing) {
    sum.frames += more.frames;
    sum.header_bytes += more.header_bytes;
    sum.digest_bytes += more.digest_bytes;
    sum.range_bytes += more.range_bytes;
    sum.entry_bytes += more.entry_bytes;
}
