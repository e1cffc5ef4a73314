//! Buffers of one thread's attention work, allocated once, and the running sums that they hold.

use super::{AttentionError, AttentionShape, PAGE_ROWS};
use crate::exp2::pow2;

/// Queries attended in one pass over the pages, at most: more would push each other out of the second-level cache.
const QUERIES_PER_PASS: usize = 256;

/// Buffers for jobs of one shape, or of any with smaller heads and groups. One thread uses it at a time.
#[derive(Debug)]
pub struct AttentionScratch {
    head_dim_max: usize,
    queries_max: usize,
    /// Queries that see a key of the current page.
    pub(crate) active: Vec<Active>,
    /// `[queries]`
    pub(crate) states: Vec<QueryState>,
    /// `[queries][head_dim / 2]`: query codes in the order in which a twin broadcasts them.
    pub(crate) codes: Vec<i32>,
    /// `[queries][head_dim]`: numerators of the current segment.
    pub(crate) segment: Vec<Line<f32>>,
    /// `[queries][head_dim]`: numerators of all segments before it.
    pub(crate) total: Vec<Line<f32>>,
    /// The current page's keys, lanes along the keys.
    pub(crate) keys: Vec<Line<i32>>,
    /// The current page's values, lanes along the dimensions, with neighbouring keys side by side.
    pub(crate) values: Vec<Line<i32>>,
}

impl AttentionScratch {
    /// Buffers for jobs of about `rows_max` query rows of `shape`; jobs of more rows read their pages more than once.
    ///
    /// About `10 * head_dim` bytes for each query, of which there are up to 256 at a time, and `256 * head_dim` for a page.
    pub fn new(shape: &AttentionShape, rows_max: usize) -> Self {
        let (head_dim, group) = (shape.head_dim(), shape.heads_per_kv());
        let queries = rows_max.clamp(1, (QUERIES_PER_PASS / group).max(1)) * group;
        Self {
            head_dim_max: head_dim,
            queries_max: queries,
            active: Vec::with_capacity(queries),
            states: vec![QueryState::EMPTY; queries],
            codes: vec![0; queries * head_dim / 2],
            segment: vec![Line::ZERO_F32; queries * head_dim / Line::<f32>::LANES],
            total: vec![Line::ZERO_F32; queries * head_dim / Line::<f32>::LANES],
            keys: vec![Line::ZERO_I32; PAGE_ROWS / 2 * head_dim / Line::<i32>::LANES],
            values: vec![Line::ZERO_I32; PAGE_ROWS / 2 * head_dim / Line::<i32>::LANES],
        }
    }

    /// Query rows of `shape` that fit in one pass, at least one.
    pub(crate) fn rows_per_pass(&self, shape: &AttentionShape) -> Result<usize, AttentionError> {
        let fits = |what, need, have| {
            if need <= have { Ok(()) } else { Err(AttentionError::Length { what, need, have }) }
        };
        fits("scratch head dimensions", shape.head_dim(), self.head_dim_max)?;
        fits("scratch queries", shape.heads_per_kv(), self.queries_max)?;
        Ok(self.queries_max / shape.heads_per_kv())
    }
}

/// 16 numbers that fill one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub [T; 16]);

impl<T> Line<T> {
    /// Numbers in a line.
    pub const LANES: usize = 16;

    /// The same numbers by eights.
    pub fn eights(lines: &[Self]) -> &[[T; 8]] {
        // SAFETY: `Line` is `repr(C)` and its alignment adds no padding, so a line is exactly two arrays of eight.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), 2 * lines.len()) }
    }

    /// The same numbers by eights.
    pub fn eights_mut(lines: &mut [Self]) -> &mut [[T; 8]] {
        // SAFETY: as in `eights`; the exclusive borrow carries over.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 2 * lines.len()) }
    }
}

/// A line of any other type of number might have padding.
const _: () = assert!(size_of::<Line<f32>>() == 64 && size_of::<Line<i32>>() == 64);

impl Line<f32> {
    pub const ZERO_F32: Self = Self([0.0; 16]);
}

impl Line<i32> {
    pub const ZERO_I32: Self = Self([0; 16]);
}

/// A query that sees a key of the current page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    /// Index of the query in the job: `row * heads_per_kv + head`.
    pub query: usize,
    /// Index of its first element in the job's `queries`.
    pub element: usize,
    /// First visible row of the page.
    pub first: usize,
    /// End of the visible rows.
    pub end: usize,
    /// Exponent of the largest visible value scale (q8).
    pub exponent: i32,
}

/// Numbers of one query that outlive a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryState {
    /// Factor that turns a score into an exponent of two.
    pub scale: f32,
    /// Integer that a twin adds to each dot product.
    pub correction: i32,
    /// True if the current segment has a visible tile.
    pub in_segment: bool,
    /// Sum of the current segment.
    pub segment: Sum,
    /// Sum of all segments before it.
    pub total: Sum,
}

impl QueryState {
    pub const EMPTY: Self =
        Self { scale: 0.0, correction: 0, in_segment: false, segment: Sum::EMPTY, total: Sum::EMPTY };
}

/// The denominator so far, in units of `2^m`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub m: f32,
    pub l: f32,
}

impl Sum {
    pub const EMPTY: Self = Self { m: f32::NEG_INFINITY, l: 0.0 };

    /// Adds `2^h * l`; returns the factors of the old and of the new numerator.
    ///
    /// Inlined so that its fused multiply-add is one instruction inside a twin.
    #[inline(always)]
    pub fn merge(&mut self, h: f32, l: f32) -> (f32, f32) {
        let m = if h > self.m { h } else { self.m };
        let (old, new) = (pow2(self.m - m), pow2(h - m));
        self.m = m;
        self.l = self.l.mul_add(old, new * l);
        (old, new)
    }
}
