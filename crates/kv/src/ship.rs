//! Payload of a handoff: rows and pages that a receiver lacks.
//!
//! Two figures exist. Counted in *rows*, a local layer sends at most its window: the measure in which handoffs are
//! compared, independent of page size. Counted in *pages*, it sends every page that the receiver's next query sees, whole:
//! what the wire carries.

use std::ops::Range;

use crate::layout::PAGE_ROWS;
use crate::spec::{CacheSpec, LayerSpec, PageSet};

impl LayerSpec {
    /// Rows of this layer to send so that a receiver which holds the first `held_rows` rows holds `total_rows`.
    ///
    /// `total_rows` leaves out the boundary token: the receiver computes it.
    pub fn rows_to_ship(&self, total_rows: usize, held_rows: usize) -> usize {
        let missing = total_rows.saturating_sub(held_rows);
        self.window.map_or(missing, |window| missing.min(window as usize))
    }
}

impl CacheSpec {
    /// Bytes to send, counted in rows: the sum of [`LayerSpec::rows_to_ship`] over the layers.
    pub fn row_payload_bytes(&self, total_rows: usize, held_rows: usize) -> u64 {
        let rows: u64 = self.layers().iter().map(|layer| layer.rows_to_ship(total_rows, held_rows) as u64).sum();
        rows * self.layout().row_bytes() as u64
    }

    /// The pages of `layer` to send, by absolute index. A partly held page counts as not held.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn pages_to_ship(&self, layer: usize, total_rows: usize, held_rows: usize) -> Range<usize> {
        let needed = self.pages_at(layer, total_rows, PageSet::Window);
        needed.start.max(held_rows / PAGE_ROWS).min(needed.end)..needed.end
    }

    /// Bytes to send, counted in whole pages: the sum of [`Self::pages_to_ship`] over the layers.
    pub fn page_payload_bytes(&self, total_rows: usize, held_rows: usize) -> u64 {
        let layers = 0..self.layers().len();
        let pages: u64 = layers.map(|layer| self.pages_to_ship(layer, total_rows, held_rows).len() as u64).sum();
        pages * self.layout().page_bytes() as u64
    }
}
