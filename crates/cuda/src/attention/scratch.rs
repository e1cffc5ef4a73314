//! Room for what attention leaves between its kernels.

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};

use super::items::TILE_QUERIES;
use super::plan::PlanLimits;
use super::prefill::{PREFILL_QUERIES, PREFILL_QUERIES_MIN, PrefillLimits};
use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::queue::Queue;

/// Bytes of partial results at most.
const PARTIAL_BYTES_MAX: usize = 96 << 20;
/// Most partial results.
const PARTIALS_MAX: usize = 16_384;
/// Bytes of expanded pages at most: sequences whose pages do not fit go to the general kernels.
const EXPANDED_BYTES_MAX: usize = 1 << 30;
/// Bytes of a key-value head's part of an expanded page, as in `kernels/attend_prefill.cu`: codes as f16, and scales.
const EXPANDED_CODES: usize = 2 * PAGE_ROWS * PREFILL_HEAD_DIM * 2;
const EXPANDED_SCALES: usize = (3 * PAGE_ROWS + 4) * 4;
/// Items of sequences with many rows beyond one a tile.
const PREFILL_ITEMS_MAX: usize = 4096;
/// The one head size of the kernels for many rows.
const PREFILL_HEAD_DIM: usize = 128;

/// Workspace of attention, shared by all layers and plans of one stream.
#[derive(Debug)]
pub struct AttentionWorkspace {
    pub(super) sizes: Sizes,
    /// `[partials][kv_heads][16][4]`.
    pub(crate) sums: DeviceBuffer<f32>,
    /// `[partials][kv_heads][16][head_dim]`.
    pub(crate) outputs: DeviceBuffer<f32>,
    /// `[pages][kv_heads]` of codes as f16.
    pub(crate) pages: DeviceBuffer<u8>,
    /// `[pages][kv_heads]` of scales.
    pub(crate) scales: DeviceBuffer<u8>,
    /// `[tiles][kv_heads][128][128]` codes as f16.
    pub(crate) queries: DeviceBuffer<u16>,
    /// `[tiles][kv_heads][128]`.
    pub(crate) query_scales: DeviceBuffer<f32>,
}

impl AttentionWorkspace {
    /// Workspace for plans of layers of `shape` within `limits`.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    pub fn new(
        context: &Context,
        shape: AttentionShape,
        layout: KvLayout,
        limits: PlanLimits,
    ) -> Result<Self, DriverError> {
        let sizes = Sizes::of(&shape, layout, &limits, context.capability().is_hopper());
        let (partial_rows, tile_rows) = (sizes.partial_rows(), sizes.tile_rows());
        let pages = sizes.prefill.pages_max * sizes.kv_heads;
        Ok(Self {
            sizes,
            sums: DeviceBuffer::new(context, partial_rows * 4)?,
            outputs: DeviceBuffer::new(context, partial_rows * shape.head_dim())?,
            pages: DeviceBuffer::new(context, pages * EXPANDED_CODES)?,
            scales: DeviceBuffer::new(context, pages * EXPANDED_SCALES)?,
            queries: DeviceBuffer::new(context, tile_rows * PREFILL_HEAD_DIM)?,
            query_scales: DeviceBuffer::new(context, tile_rows)?,
        })
    }

    /// Bytes of device memory that [`AttentionWorkspace::new`] takes for the same arguments.
    pub fn bytes(shape: AttentionShape, layout: KvLayout, limits: PlanLimits, is_hopper: bool) -> usize {
        Sizes::of(&shape, layout, &limits, is_hopper).bytes()
    }

    /// Overwrites everything with bytes 0xff, so that a check sees what a kernel forgets.
    pub fn poison(&mut self, queue: &mut Queue) {
        queue.fill(&mut self.sums, 0xff);
        queue.fill(&mut self.outputs, 0xff);
        queue.fill(&mut self.pages, 0xff);
        queue.fill(&mut self.scales, 0xff);
        queue.fill(&mut self.queries, 0xff);
        queue.fill(&mut self.query_scales, 0xff);
    }

    /// True if `self` has the room that a plan for layers of `shape` was promised.
    pub(crate) fn serves(&self, sizes: &Sizes) -> bool {
        self.sizes == *sizes
    }
}

/// Counts of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    kv_heads: usize,
    head_dim: usize,
    pub(super) partials_max: usize,
    pub(super) prefill: PrefillLimits,
}

impl Sizes {
    fn of(shape: &AttentionShape, layout: KvLayout, limits: &PlanLimits, hopper: bool) -> Self {
        let (kv_heads, head_dim) = (shape.kv_heads(), shape.head_dim());
        let partial_bytes = kv_heads * TILE_QUERIES * (4 + head_dim) * size_of::<f32>();
        let mut prefill = PrefillLimits::NONE;
        if hopper && layout == KvLayout::Q8 && head_dim == PREFILL_HEAD_DIM {
            let queries = limits.rows_max * shape.heads_per_kv();
            // Each of those sequences may have a tile that is not full, and begin and end within a page.
            let sequences_max = limits.sequences_max.min(queries / PREFILL_QUERIES_MIN);
            let tiles_max = queries.div_ceil(PREFILL_QUERIES) + sequences_max;
            let pages = limits.positions_max.div_ceil(PAGE_ROWS) + sequences_max;
            let pages_max = pages.min(EXPANDED_BYTES_MAX / (kv_heads * (EXPANDED_CODES + EXPANDED_SCALES)));
            prefill = PrefillLimits { pages_max, tiles_max, items_max: tiles_max + PREFILL_ITEMS_MAX };
        }
        let partials_max = (PARTIAL_BYTES_MAX / partial_bytes).min(PARTIALS_MAX);
        Self { kv_heads, head_dim, partials_max, prefill }
    }

    fn partial_rows(&self) -> usize {
        self.partials_max * self.kv_heads * TILE_QUERIES
    }

    fn tile_rows(&self) -> usize {
        self.prefill.tiles_max * self.kv_heads * PREFILL_QUERIES
    }

    fn bytes(&self) -> usize {
        let pages = self.prefill.pages_max * self.kv_heads * (EXPANDED_CODES + EXPANDED_SCALES);
        let partials = self.partial_rows() * (4 + self.head_dim) * size_of::<f32>();
        partials + pages + self.tile_rows() * (2 * PREFILL_HEAD_DIM + size_of::<f32>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PlanLimits = PlanLimits { rows_max: 2048, sequences_max: 8, positions_max: 131_072 };

    #[test]
    fn only_hopper_with_q8_pages_of_128_dimensions_has_room_for_expanded_pages() {
        let shape = AttentionShape::new(32, 2, 128).unwrap();
        let sizes = Sizes::of(&shape, KvLayout::Q8, &LIMITS, true);
        assert_eq!(sizes.prefill, PrefillLimits { pages_max: 2056, tiles_max: 264, items_max: 264 + 4096 });
        assert_eq!(Sizes::of(&shape, KvLayout::Q8, &LIMITS, false).prefill, PrefillLimits::NONE);
        assert_eq!(Sizes::of(&shape, KvLayout::F16, &LIMITS, true).prefill, PrefillLimits::NONE);
        let many = PlanLimits { sequences_max: 2048, ..LIMITS };
        assert_eq!(Sizes::of(&shape, KvLayout::Q8, &many, true).prefill.tiles_max, 256 + 128, "16 rows each");
        let other = AttentionShape::new(32, 2, 64).unwrap();
        assert_eq!(Sizes::of(&other, KvLayout::Q8, &LIMITS, true).prefill, PrefillLimits::NONE);
    }

    #[test]
    fn expanded_pages_and_partial_results_are_bounded() {
        for kv_heads in [1, 2, 8, 64] {
            let shape = AttentionShape::new(64, kv_heads, 128).unwrap();
            let limits = PlanLimits { rows_max: 1, positions_max: 1 << 30, ..LIMITS };
            let bytes = Sizes::of(&shape, KvLayout::Q8, &limits, true).bytes();
            assert!(bytes < (1 << 30) + (120 << 20), "{kv_heads} heads: {bytes} bytes");
        }
    }
}
