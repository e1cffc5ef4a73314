//! Attention over pages of stored keys and values (rule 9 of `docs/numerics.md`).
//!
//! A page holds 64 consecutive positions of one sequence and one layer, for every key-value head. A job is one key-value
//! head and a block of query rows; its result does not depend on how rows are grouped into jobs, on the instruction set,
//! or on any byte of a key that no query of the job sees.

pub(crate) mod page;
pub(crate) mod reference;
pub(crate) mod scratch;
mod shape;
pub(crate) mod store;

pub use page::{KvLayout, PageField};
pub use scratch::AttentionScratch;
pub use shape::{AttentionError, AttentionShape};

/// Positions of one page; also the keys of one tile of the arithmetic.
pub const PAGE_ROWS: usize = 64;

/// Pages of one segment, by absolute page index: the unit in which partial results are formed and then merged.
pub const SEGMENT_PAGES: usize = 16;

/// One unit of attention work: the query heads that share one key-value head, for query rows of one sequence and layer.
#[derive(Clone, Copy)]
pub struct AttentionJob<'a> {
    /// Heads of the layer.
    pub shape: AttentionShape,
    /// Storage of keys and values in the pages.
    pub layout: KvLayout,
    /// Index of the key-value head.
    pub kv_head: usize,
    /// A query sees this many positions, its own included; `None` for all.
    pub window: Option<u32>,
    /// The page with an absolute index (position / 64). Asked only for pages of which some query sees a key.
    pub page: &'a (dyn Fn(usize) -> Option<&'a [u8]> + Sync),
    /// `[rows, query_heads * head_dim]`, after norm and rotary embedding.
    pub queries: &'a [f32],
    /// `[rows]`: absolute positions, in any order.
    pub positions: &'a [u32],
}

/// `attend(job, scratch, out)`; `out` is `[rows, query_heads / kv_heads * head_dim]`.
pub type Attend = fn(&AttentionJob<'_>, &mut AttentionScratch, &mut [f32]) -> Result<(), AttentionError>;

/// `store_row(shape, layout, k, v, row, page)`; `k` and `v` are `[kv_heads * head_dim]`, `row` counts within the page.
pub type StoreRow = fn(&AttentionShape, KvLayout, &[f32], &[f32], usize, &mut [u8]) -> Result<(), AttentionError>;

/// One implementation of attention. All implementations give the same bits.
#[derive(Clone, Copy, Debug)]
pub struct AttentionKernels {
    /// Rounds one position's keys (after norm and rotary embedding) and values into its row of a page. For q8 pages the caller
    /// has transformed both, and the queries, with [`crate::rows::hadamard`].
    ///
    /// Fails if a length does not fit or a number is not finite (or, in f16 pages, beyond f16); then the row's bytes are
    /// unspecified.
    pub store_row: StoreRow,
    /// Attends a job into a compact buffer: the columns of the job's own heads only, so that jobs of several key-value
    /// heads can run on several threads without sharing output. The caller copies them to their place.
    ///
    /// Fails if a length does not fit, a needed page is missing, or a query, visible key, visible value, score or result
    /// is not finite; then `out` is unspecified.
    pub attend: Attend,
}
