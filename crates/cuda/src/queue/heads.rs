//! Head vectors between the projections and attention: norm, rotary embedding and Hadamard transform (rules 5, 7, 8b), and the
//! storing of keys and values in device pages (rule 9).

use muser_kernels::attention::{KvLayout, PAGE_ROWS};
use muser_kernels::rope::RopeStyle;

use super::quantise::DeviceNorm;
use super::{Failures, Queue, dimension};
use crate::attention::DeviceLayerPages;
use crate::driver::{Arguments, DeviceBuffer, Launch, pair};

/// Head vectors per block, as in `kernels/heads.cu`.
const HEAD_WARPS: usize = 8;

/// Every kernel: for each operation, one per head size 32, 64, ... 256.
#[rustfmt::skip]
pub(crate) const KERNELS: &[&str] = &[
    "place_heads_d32", "place_heads_d64", "place_heads_d96", "place_heads_d128",
    "place_heads_d160", "place_heads_d192", "place_heads_d224", "place_heads_d256",
    "store_q8_d32", "store_q8_d64", "store_q8_d96", "store_q8_d128",
    "store_q8_d160", "store_q8_d192", "store_q8_d224", "store_q8_d256",
    "store_f16_d32", "store_f16_d64", "store_f16_d96", "store_f16_d128",
    "store_f16_d160", "store_f16_d192", "store_f16_d224", "store_f16_d256",
];
const PLACE: usize = 0;
const STORE_Q8: usize = 8;
const STORE_F16: usize = 16;

/// One kind of head vector of a step: its queries, keys or values.
#[derive(Debug)]
pub struct HeadVectors<'a> {
    /// `[rows, heads * head_dim]`, changed in place.
    pub x: &'a mut DeviceBuffer<f32>,
    /// Heads of a row.
    pub heads: usize,
    /// Norm over each head.
    pub norm: Option<DeviceNorm<'a>>,
    /// True if the rotary embedding applies.
    pub rotates: bool,
    /// Factor of the Hadamard transform, in `q8` caches.
    pub hadamard: Option<f32>,
}

/// Rotary embedding of a model.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRope<'a> {
    /// `muser_kernels::rope::RopeTable::values`: `[positions][2][pairs]`.
    pub angles: &'a DeviceBuffer<f32>,
    /// Pairs of rotated dimensions.
    pub pairs: usize,
    /// Dimensions that rotate together.
    pub style: RopeStyle,
}

/// Rows whose head vectors are placed.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// Rows.
    pub rows: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// `[rows]`: absolute positions, all of them rows of the rotary table.
    pub positions: &'a DeviceBuffer<u32>,
    /// The rotary embedding, if any kind rotates.
    pub rope: Option<DeviceRope<'a>>,
}

/// Place for the canonical bytes of stored rows, `[rows][bytes of a row]`.
#[derive(Debug)]
pub struct RowBytes<'a> {
    /// The buffer.
    pub bytes: &'a mut DeviceBuffer<u8>,
    /// Byte at which the first row begins.
    pub start: usize,
}

impl RowBytes<'_> {
    /// The address of the place, which has `len` bytes.
    fn address(&self, len: usize) -> u64 {
        let (start, room) = (self.start, self.bytes.len());
        assert!(start.is_multiple_of(4) && start + len <= room, "{len} bytes of rows at {start} of {room}");
        self.bytes.address_at(start)
    }
}

/// Slots of the kernels' `Placement`.
const PLACEMENT_SLOTS: usize = 16;

impl Queue {
    /// Normalises, rotates and transforms the head vectors of up to three kinds, each step only where asked for.
    ///
    /// # Panics
    /// If a buffer is too short, the head dimension is not 32, 64, ... 256, more dimensions rotate than a head has, or a kind
    /// rotates without a rotary embedding.
    pub fn place_heads<const KINDS: usize>(&mut self, rows: &HeadRows<'_>, kinds: [HeadVectors<'_>; KINDS]) {
        const { assert!(KINDS >= 1 && KINDS <= 3) };
        let (mut fields, mut heads) = (rows.fields(), 0);
        for (kind, fields) in kinds.iter().zip(fields.chunks_exact_mut(4)) {
            kind.write_fields(rows, fields);
            heads += kind.heads;
        }
        let launch = self.early(Launch::of(dimension((rows.rows * heads).div_ceil(HEAD_WARPS)), 256));
        let kernel = KERNELS[PLACE + size_index(rows.head_dim)];
        // SAFETY: the kernel's one parameter is this structure; lengths were checked with its fields, and the caller answers
        // for the positions.
        unsafe { self.launch(kernel, &launch, Arguments::new().structure(&fields)) };
    }

    /// Places queries, keys and values like [`Self::place_heads`], the queries in place, and stores keys and values like
    /// [`Self::store_kv`], in one launch. The buffers of keys and values are left as they were.
    ///
    /// # Panics
    /// As [`Self::place_heads`], and if rows or heads are not those of the plan.
    pub fn place_and_store(
        &mut self,
        rows: &HeadRows<'_>,
        kinds: [HeadVectors<'_>; 3],
        pages: &DeviceLayerPages<'_>,
        row_bytes: Option<RowBytes<'_>>,
        failures: &mut Failures<'_>,
    ) {
        let (plan, [_, keys, values]) = (pages.plan, &kinds);
        let (shape, heads) = (plan.shape(), kinds.iter().map(|kind| kind.heads).sum());
        assert!(rows.rows == plan.rows() && rows.head_dim == shape.head_dim(), "rows of another step");
        assert!(keys.heads == shape.kv_heads() && values.heads == shape.kv_heads(), "heads of another layer");
        let mut placement = rows.fields();
        for (kind, fields) in kinds.iter().zip(placement.chunks_exact_mut(4)) {
            kind.write_fields(rows, fields);
        }
        self.store(&placement, heads, pages, row_bytes, failures);
    }

    /// Rounds keys and values, `[rows, kv_heads * head_dim]` each, into the pages of the step's rows. Rows that are not finite
    /// (f16: or become infinite) are reported, and stored as zeros.
    ///
    /// `row_bytes`, where given, gets the canonical bytes of the rows at a multiple of 4: for each row and key-value head its
    /// keys, its values and, in q8, the scales of both.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn store_kv(
        &mut self,
        pages: &DeviceLayerPages<'_>,
        (keys, values): (&DeviceBuffer<f32>, &DeviceBuffer<f32>),
        row_bytes: Option<RowBytes<'_>>,
        failures: &mut Failures<'_>,
    ) {
        let plan = pages.plan;
        let (shape, rows) = (plan.shape(), plan.rows());
        let elements = rows * shape.kv_heads() * shape.head_dim();
        assert!(keys.len().min(values.len()) >= elements, "keys and values of {rows} rows");
        let mut placement = [0; PLACEMENT_SLOTS];
        for (x, fields) in [keys, values].into_iter().zip(placement[4..].chunks_exact_mut(4)) {
            fields[0] = x.address();
            fields[2] = pair(dimension(shape.kv_heads()), 0);
        }
        placement[15] = pair(dimension(rows), 0);
        self.store(&placement, 2 * shape.kv_heads(), pages, row_bytes, failures);
    }

    fn store(
        &mut self,
        placement: &[u64; PLACEMENT_SLOTS],
        heads: usize,
        pages: &DeviceLayerPages<'_>,
        row_bytes: Option<RowBytes<'_>>,
        failures: &mut Failures<'_>,
    ) {
        let plan = pages.plan;
        let (shape, rows) = (plan.shape(), plan.rows());
        assert!(failures.status.len() >= rows, "status of {rows} rows");
        let mut fields = [0; PLACEMENT_SLOTS + 6];
        fields[..PLACEMENT_SLOTS].copy_from_slice(placement);
        fields[PLACEMENT_SLOTS..].copy_from_slice(&[
            plan.sequences(),
            plan.row_sequences(),
            pages.table_address(),
            failures.status.address(),
            row_bytes.map_or(0, |to| to.address(rows * plan.layout().page_bytes(shape) / PAGE_ROWS)),
            pair(failures.place, 0),
        ]);
        let first = match plan.layout() {
            KvLayout::Q8 => STORE_Q8,
            KvLayout::F16 => STORE_F16,
        };
        let kernel = KERNELS[first + size_index(shape.head_dim())];
        let launch = self.early(Launch::of(dimension((rows * heads).div_ceil(HEAD_WARPS)), 256));
        // SAFETY: the kernel's one parameter is this structure; the lengths were checked by the callers, and the page table is
        // the promise behind `DeviceLayerPages`.
        unsafe { self.launch(kernel, &launch, Arguments::new().structure(&fields)) };
    }
}

impl HeadRows<'_> {
    /// The kernels' `Placement` without its kinds.
    fn fields(&self) -> [u64; PLACEMENT_SLOTS] {
        let Self { rows, head_dim, positions, rope } = *self;
        assert!(positions.len() >= rows, "{} positions for {rows} rows", positions.len());
        assert!(rope.is_none_or(|rope| 2 * rope.pairs <= head_dim), "rotated dimensions of a head of {head_dim}");
        let mut fields = [0; PLACEMENT_SLOTS];
        fields[12] = positions.address();
        fields[13] = rope.map_or(0, |rope| rope.angles.address());
        let neox = rope.is_some_and(|rope| rope.style == RopeStyle::Neox);
        fields[14] = pair(rope.map_or(1, |rope| dimension(rope.pairs)), u32::from(neox));
        fields[15] = pair(dimension(rows), 0);
        fields
    }
}

impl HeadVectors<'_> {
    /// Writes the kernels' `HeadPart`.
    fn write_fields(&self, of: &HeadRows<'_>, fields: &mut [u64]) {
        let HeadRows { rows, head_dim, rope, .. } = *of;
        assert!(self.x.len() >= rows * self.heads * head_dim, "{rows} rows of {} heads", self.heads);
        assert!(self.norm.is_none_or(|norm| norm.weight.len() >= head_dim), "a norm weight for {head_dim} dimensions");
        assert!(!self.rotates || rope.is_some(), "a rotary embedding for heads that rotate");
        fields[0] = self.x.address();
        fields[1] = self.norm.map_or(0, |norm| norm.weight.address());
        fields[2] = pair(dimension(self.heads), self.norm.map_or(0.0, |norm| norm.eps).to_bits());
        fields[3] = pair(self.hadamard.unwrap_or(0.0).to_bits(), u32::from(self.rotates));
    }
}

/// Index of a head size among 32, 64, ... 256.
///
/// # Panics
/// If it is not one of them.
pub(super) fn size_index(head_dim: usize) -> usize {
    assert!(head_dim.is_multiple_of(32) && (32..=256).contains(&head_dim), "head of {head_dim} dimensions");
    head_dim / 32 - 1
}
