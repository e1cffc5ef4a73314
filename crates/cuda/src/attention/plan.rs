//! The plan of one step's attention: rows, sequences and items, on the device.

use std::ops::Range;

use muser_kernels::attention::{AttentionShape, KvLayout};

use super::AttentionWorkspace;
use super::items::{Cutting, ITEM_WORDS, Items};
use super::prefill::{EXPANSION_WORDS, PREFILL_WORDS};
use super::scratch::Sizes;
use crate::driver::{Context, CudaEvent, DeviceBuffer, DriverError, PinnedBuffer};
use crate::queue::Queue;

/// 32-bit words of a sequence on the device.
const SEQUENCE_WORDS: usize = 5;
/// Items per row beyond the tiles: room for the pages or segments of decoding sequences.
const CUT_ITEMS_MAX: usize = 8192;

/// One sequence's rows of a step: consecutive rows at consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSequence {
    /// First of its rows among the step's rows.
    pub first_row: usize,
    /// Its rows, at least one.
    pub rows: usize,
    /// Absolute position of the first row.
    pub position: usize,
    /// Absolute index of the page at `table`.
    pub first_page: usize,
    /// Index of its first entry in a layer's part of the page table; the entries of the following pages follow.
    pub table: usize,
}

impl StepSequence {
    pub(super) fn positions(&self) -> Range<usize> {
        self.position..self.position + self.rows
    }
}

/// Largest step of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    /// Rows.
    pub rows_max: usize,
    /// Sequences.
    pub sequences_max: usize,
    /// Positions of the longest sequence: bounds the workspace for its pages.
    pub positions_max: usize,
}

/// Attention of one step over all layers with one window. Buffers are allocated once, and keep their addresses.
#[derive(Debug)]
pub struct AttentionPlan {
    shape: AttentionShape,
    layout: KvLayout,
    cutting: Cutting,
    limits: PlanLimits,
    sizes: Sizes,
    rows: usize,
    items: Items,
    /// Sequences, row sequences, items, tiles to merge: at the offsets of `parts`.
    words: DeviceBuffer<u32>,
    pinned: PinnedBuffer<u32>,
    /// The last upload.
    uploaded: CudaEvent,
}

impl AttentionPlan {
    /// A plan for layers of `shape` and `window` in `scratch`, which was made for the same shape and layout.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    ///
    /// # Panics
    /// If the window is 0.
    pub fn new(
        context: &Context,
        shape: AttentionShape,
        layout: KvLayout,
        window: Option<u32>,
        scratch: &AttentionWorkspace,
        limits: PlanLimits,
    ) -> Result<Self, DriverError> {
        assert_ne!(window, Some(0), "a window of 0 positions shows nothing");
        let mut cutting = Cutting {
            group: shape.heads_per_kv(),
            kv_heads: shape.kv_heads(),
            window,
            partials_max: scratch.sizes.partials_max,
            items_max: 0,
            prefill: scratch.sizes.prefill,
        };
        cutting.items_max = cutting.tiles(limits.rows_max) + limits.sequences_max + CUT_ITEMS_MAX;
        let words = Parts::of(&limits, &cutting).end;
        Ok(Self {
            shape,
            layout,
            cutting,
            limits,
            sizes: scratch.sizes,
            rows: 0,
            items: Items::default(),
            words: DeviceBuffer::new(context, words)?,
            pinned: PinnedBuffer::new(context, words)?,
            uploaded: CudaEvent::new(context)?,
        })
    }

    /// Plans a step and enqueues the upload. Waits only if the upload of the step before has not run yet.
    ///
    /// # Errors
    /// The error of this or of earlier work.
    ///
    /// # Panics
    /// If the step exceeds the limits, a sequence has no row, or a position passes 2^31.
    pub fn set(&mut self, queue: &mut Queue, sequences: &[StepSequence]) -> Result<(), DriverError> {
        let rows = sequences.iter().map(|sequence| sequence.rows).sum();
        let PlanLimits { rows_max, sequences_max, .. } = self.limits;
        assert!(rows <= rows_max, "{rows} rows in a plan for {rows_max}");
        assert!(sequences.len() <= sequences_max, "{} sequences in a plan for {sequences_max}", sequences.len());
        for sequence in sequences {
            assert!(sequence.rows > 0, "a sequence without rows");
            assert!(i32::try_from(sequence.positions().end).is_ok(), "position {}", sequence.positions().end);
        }
        self.rows = rows;
        self.items.cut(&self.cutting, sequences);
        self.uploaded.synchronize()?;
        self.write_words(sequences);
        let parts = Parts::of(&self.limits, &self.cutting);
        let used = [
            parts.sequences..parts.sequences + sequences.len() * SEQUENCE_WORDS,
            parts.row_sequences..parts.row_sequences + rows,
            parts.items..parts.items + self.items.words.len(),
            parts.merges..parts.merges + self.items.merge_words.len(),
            parts.prefill_items..parts.prefill_items + self.items.prefill.items.len() * PREFILL_WORDS,
            parts.expansions..parts.expansions + self.items.prefill.pages.len() * EXPANSION_WORDS,
            parts.tiles..parts.tiles + self.items.prefill.tiles.len() * EXPANSION_WORDS,
        ];
        for range in used.into_iter().filter(|range| !range.is_empty()) {
            let at = range.start;
            // SAFETY: the pinned words change only here, after the event below, and are dropped with the event's buffers.
            unsafe { queue.stream().upload_pinned(&self.pinned, range, &mut self.words, at)? };
        }
        self.uploaded.record(queue.stream())
    }

    fn write_words(&mut self, sequences: &[StepSequence]) {
        let parts = Parts::of(&self.limits, &self.cutting);
        let word =
            |value: usize| u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a word of the plan"));
        let words = self.pinned.as_mut_slice();
        for (number, sequence) in sequences.iter().enumerate() {
            let StepSequence { first_row, rows, position, first_page, table } = *sequence;
            let fields = [first_row, rows, position, first_page, table].map(word);
            words[parts.sequences + number * SEQUENCE_WORDS..][..SEQUENCE_WORDS].copy_from_slice(&fields);
            words[parts.row_sequences + first_row..][..rows].fill(word(number));
        }
        words[parts.items..][..self.items.words.len()].copy_from_slice(&self.items.words);
        words[parts.merges..][..self.items.merge_words.len()].copy_from_slice(&self.items.merge_words);
        let prefill = &self.items.prefill;
        let mut put = |at: usize, values: &[u32]| words[at..][..values.len()].copy_from_slice(values);
        put(parts.prefill_items, prefill.items.as_flattened());
        put(parts.expansions, prefill.pages.as_flattened());
        put(parts.tiles, prefill.tiles.as_flattened());
    }

    /// Absolute pages of which some row of `sequence` sees a key: those that the page table must hold.
    pub fn visible_pages(&self, sequence: &StepSequence) -> Range<usize> {
        self.cutting.visible_pages(sequence.positions())
    }

    /// Heads of the layers.
    pub fn shape(&self) -> &AttentionShape {
        &self.shape
    }

    /// Form of the pages.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Rows of the step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn window(&self) -> u32 {
        // A window beyond every position is none.
        self.cutting.window.filter(|&window| i32::try_from(window).is_ok()).unwrap_or(0)
    }

    pub(crate) fn sequences(&self) -> u64 {
        self.words.address_at(Parts::of(&self.limits, &self.cutting).sequences)
    }

    pub(crate) fn row_sequences(&self) -> u64 {
        self.words.address_at(Parts::of(&self.limits, &self.cutting).row_sequences)
    }

    pub(crate) fn items(&self) -> (u64, usize) {
        (self.words.address_at(Parts::of(&self.limits, &self.cutting).items), self.items.count())
    }

    pub(crate) fn merges(&self) -> (u64, usize) {
        (self.words.address_at(Parts::of(&self.limits, &self.cutting).merges), self.items.merges())
    }

    /// The work of the sequences with many rows, if there is any.
    pub(crate) fn prefill(&self) -> Option<PrefillPlan> {
        let (parts, prefill) = (Parts::of(&self.limits, &self.cutting), &self.items.prefill);
        (!prefill.items.is_empty()).then(|| PrefillPlan {
            items: self.words.address_at(parts.prefill_items),
            item_count: prefill.items.len(),
            expansions: self.words.address_at(parts.expansions),
            page_count: prefill.pages.len(),
            tiles: self.words.address_at(parts.tiles),
            tile_count: prefill.tiles.len(),
        })
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }
}

/// Device addresses and counts of the work for many rows (`kernels/attend_prefill.cu`).
pub(crate) struct PrefillPlan {
    pub items: u64,
    pub item_count: usize,
    pub expansions: u64,
    pub page_count: usize,
    pub tiles: u64,
    pub tile_count: usize,
}

/// Offsets of the plan's parts, in words.
struct Parts {
    sequences: usize,
    row_sequences: usize,
    items: usize,
    merges: usize,
    prefill_items: usize,
    expansions: usize,
    tiles: usize,
    end: usize,
}

impl Parts {
    fn of(limits: &PlanLimits, cutting: &Cutting) -> Self {
        let row_sequences = limits.sequences_max * SEQUENCE_WORDS;
        let items = row_sequences + limits.rows_max;
        let merges = items + cutting.items_max * ITEM_WORDS;
        let prefill_items = merges + cutting.items_max * ITEM_WORDS;
        let expansions = prefill_items + cutting.prefill.items_max * PREFILL_WORDS;
        let tiles = expansions + cutting.prefill.pages_max * EXPANSION_WORDS;
        let end = tiles + cutting.prefill.tiles_max * EXPANSION_WORDS;
        Self { sequences: 0, row_sequences, items, merges, prefill_items, expansions, tiles, end }
    }
}

/// A step's pages of one layer: the plan, and the layer's part of the table of device page addresses.
#[derive(Clone, Copy, Debug)]
pub struct DeviceLayerPages<'a> {
    pub(crate) plan: &'a AttentionPlan,
    table: &'a DeviceBuffer<u64>,
    start: usize,
}

impl<'a> DeviceLayerPages<'a> {
    /// The layer whose part of `table` begins at entry `start`.
    ///
    /// # Safety
    /// When the operations that use this run, the table must hold, for every sequence of the plan, the address of each of its
    /// visible pages at `start + table + page - first_page`. Each must be that of a device page of the plan's shape and layout,
    /// at a multiple of 256 bytes, that stays allocated until the operations have run; no page may be written by two
    /// sequences.
    pub unsafe fn new(plan: &'a AttentionPlan, table: &'a DeviceBuffer<u64>, start: usize) -> Self {
        Self { plan, table, start }
    }

    pub(crate) fn table_address(&self) -> u64 {
        self.table.address_at(self.start)
    }
}
