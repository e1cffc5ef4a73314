//! Attention over device pages (rule 9).

use muser_kernels::attention::KvLayout;

use super::heads::size_index;
use super::{Failures, Queue, dimension};
use crate::attention::{AttentionWorkspace, DeviceLayerPages, PREFILL_QUERIES, PrefillPlan, TILE_QUERIES};
use crate::driver::{Arguments, DeviceBuffer, Launch, pair};

/// Every kernel: for each layout, one per head size 32, 64, ... 256.
#[rustfmt::skip]
pub(crate) const KERNELS_Q8: &[&str] = &[
    "attend_q8_d32", "attend_q8_d64", "attend_q8_d96", "attend_q8_d128",
    "attend_q8_d160", "attend_q8_d192", "attend_q8_d224", "attend_q8_d256",
];
#[rustfmt::skip]
pub(crate) const KERNELS_F16: &[&str] = &[
    "attend_f16_d32", "attend_f16_d64", "attend_f16_d96", "attend_f16_d128",
    "attend_f16_d160", "attend_f16_d192", "attend_f16_d224", "attend_f16_d256",
];
pub(crate) const KERNELS_MERGE: &[&str] = &["merge_partials"];
pub(crate) const KERNELS_PREFILL: &[&str] = &["expand_pages", "expand_queries", "attend_prefill_d128"];

/// Threads of a block of `attend_prefill_d128`, and its dynamic shared memory: totals, ring of pages, barriers.
const PREFILL_THREADS: u32 = 384;
const PREFILL_SHARED_BYTES: u32 = 65_536 + 32_768 + 4 * (32_768 + 528) + 72;
/// Threads of a block of the other attend kernels.
const TEAM_THREADS: u32 = 256;
/// Threads of a block of `merge_partials`, which owns 32 dimensions of a query.
const MERGE_THREADS: u32 = 128;

impl Queue {
    /// Attends the rows of the plan over the layer's pages. `queries` and `out`: `[rows, query_heads * head_dim]`. Rows with a
    /// query, a visible score or a result that is not finite, or a visible value scale that is negative or not finite, are
    /// reported; their outputs are unspecified, but finite.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn attend(
        &mut self,
        pages: &DeviceLayerPages<'_>,
        queries: &DeviceBuffer<f32>,
        scratch: &mut AttentionWorkspace,
        out: &mut DeviceBuffer<f32>,
        failures: &mut Failures<'_>,
    ) {
        let plan = pages.plan;
        let (shape, rows) = (plan.shape(), plan.rows());
        let (kv_heads, head_dim) = (shape.kv_heads(), shape.head_dim());
        let elements = rows * shape.query_heads() * head_dim;
        assert!(queries.len().min(out.len()) >= elements, "queries and outputs of {rows} rows");
        assert!(failures.status.len() >= rows, "status of {rows} rows");
        assert!(scratch.serves(plan.sizes()), "a workspace that the plan was not made for");
        let ((items, item_count), (merges, merge_count)) = (plan.items(), plan.merges());
        let fields = [
            plan.sequences(),
            items,
            pages.table_address(),
            queries.address(),
            out.address(),
            scratch.sums.address(),
            scratch.outputs.address(),
            failures.status.address(),
            pair(failures.place, dimension(kv_heads)),
            pair(dimension(shape.heads_per_kv()), plan.window()),
            pair(shape.score_scale().to_bits(), 0),
        ];
        if let Some(prefill) = plan.prefill() {
            self.attend_many_rows(&prefill, scratch, &fields, kv_heads);
        }
        let (kernels, shared_bytes) = match plan.layout() {
            KvLayout::Q8 => (KERNELS_Q8, 0),
            KvLayout::F16 => (KERNELS_F16, f16_shared_bytes(head_dim)),
        };
        let launch =
            self.early(Launch::of(dimension(item_count), TEAM_THREADS).rows(dimension(kv_heads)).shared(shared_bytes));
        // SAFETY: the kernel's one parameter is this structure; the lengths were checked above, the items were made for the
        // plan's rows, and the page table is the promise behind `DeviceLayerPages`.
        unsafe { self.launch(kernels[size_index(head_dim)], &launch, Arguments::new().structure(&fields)) };

        let mut merging = [0; 13];
        merging[0] = merges;
        merging[1..12].copy_from_slice(&fields);
        merging[12] = head_dim as u64;
        let blocks = merge_count * TILE_QUERIES * head_dim / 32;
        let launch = self.early(Launch::of(dimension(blocks), MERGE_THREADS).rows(dimension(kv_heads)));
        // SAFETY: as above; the partial results were written by the launches before, which this one waits for.
        unsafe { self.launch("merge_partials", &launch, Arguments::new().structure(&merging)) };
    }

    /// The work of the sequences with many rows. `attention` is the kernels' `Attention`.
    fn attend_many_rows(
        &mut self,
        plan: &PrefillPlan,
        scratch: &AttentionWorkspace,
        attention: &[u64; 11],
        kv_heads: usize,
    ) {
        let mut fields = [0; 19];
        fields[..11].copy_from_slice(attention);
        fields[11..].copy_from_slice(&[
            plan.items,
            plan.expansions,
            plan.tiles,
            scratch.pages.address(),
            scratch.scales.address(),
            scratch.queries.address(),
            scratch.query_scales.address(),
            plan.tile_count as u64,
        ]);
        let arguments = Arguments::new().structure(&fields);
        let launch = self.early(Launch::of(dimension(plan.page_count), TEAM_THREADS).rows(dimension(kv_heads)));
        // SAFETY: the kernel's one parameter is this structure; its buffers have room for the plan's pages and tiles, and the
        // page table is the promise behind `DeviceLayerPages`.
        unsafe { self.launch("expand_pages", &launch, arguments) };
        let vectors = plan.tile_count * kv_heads * PREFILL_QUERIES;
        let launch = self.early(Launch::of(dimension(vectors.div_ceil(8)), TEAM_THREADS));
        // SAFETY: as above.
        unsafe { self.launch("expand_queries", &launch, arguments) };
        let launch =
            self.early(Launch::of(dimension(plan.item_count * kv_heads), PREFILL_THREADS).shared(PREFILL_SHARED_BYTES));
        // SAFETY: as above; the launches before wrote what this one reads.
        unsafe { self.launch("attend_prefill_d128", &launch, arguments) };
    }
}

/// Size of `Shared` in `kernels/attend_f16.cu`.
fn f16_shared_bytes(head_dim: usize) -> u32 {
    let (keys, values) = (64 * (head_dim + 8) * 2, 64 * head_dim * 2);
    let (queries, weights, per_query) = (16 * head_dim * 4, 16 * 68 * 4, 16 * 4 * 6);
    dimension(keys + values + queries + weights + per_query)
}
