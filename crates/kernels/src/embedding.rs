//! The embedding table: one row per token, kept as in the file and widened when it is looked up (rule 6a).

use std::sync::Arc;

use crate::arena::{Arena, ArenaRange};
use crate::formats::{WeightType, dequantise_row};

/// Rows of weights in the file's own blocks, `[rows, cols]`, in memory of the process.
#[derive(Clone, Debug)]
pub struct EmbeddingTable {
    ty: WeightType,
    cols: usize,
    row_bytes: usize,
    arena: Arc<Arena>,
    range: ArenaRange,
}

impl EmbeddingTable {
    /// A table of `rows` rows of `cols` elements whose bytes were copied into `range` of `arena`.
    ///
    /// # Panics
    /// If `range` has not the size of that many rows.
    pub fn new(ty: WeightType, [rows, cols]: [usize; 2], arena: Arc<Arena>, range: ArenaRange) -> Self {
        let row_bytes = range.bytes() / rows.max(1);
        assert_eq!(ty.row_bytes(cols), Some(row_bytes), "bytes of a row of an embedding table");
        Self { ty, cols, row_bytes, arena, range }
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Widens row `row` into `out`, `[cols]`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let bytes = &self.arena.bytes(self.range)[row * self.row_bytes..][..self.row_bytes];
        dequantise_row(self.ty, bytes, out);
    }
}
