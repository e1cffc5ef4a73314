//! The walk of a job that every fast twin shares: pages outside, queries inside, so that a page's bytes are read once for
//! all queries of the job.
//!
//! For each page the walk decides which rows each query sees; a twin's [`Stages`] do the arithmetic.

use crate::attention::page::{self, Q8Head, visible_pages, visible_rows};
use crate::attention::reference::{EXPONENT_MIN, binary_exponent};
use crate::attention::scratch::{Active, AttentionScratch, Line, QueryState, Sum};
use crate::attention::store::StoreVector;
use crate::attention::{AttentionError, AttentionJob, KvLayout, PAGE_ROWS, PageField, SEGMENT_PAGES};
use std::ops::Range;

/// Attention stages of one instruction set.
pub(crate) struct Stages {
    /// Rounding of stored vectors.
    pub vector: StoreVector,
    /// `prepare(query, codes)`: quantises one query vector into `[head_dim / 2]`; `None` if an element is not finite.
    pub prepare: fn(&[f32], &mut [i32]) -> Option<PreparedQuery>,
    /// Merges one q8 tile into the segment of every active query.
    pub q8_tile: fn(&Q8Tile<'_>, &mut AttentionScratch),
    /// Merges one f16 tile into the segment of every active query.
    pub f16_tile: fn(&F16Tile<'_>, &mut AttentionScratch),
    /// Merges each query's segment into its total, where it has one.
    pub fold: fn(Segments<'_>),
}

/// The scale of a query's codes, before the score scale, and the integer that a twin adds to its dot products.
pub(crate) struct PreparedQuery {
    pub scale: f32,
    pub correction: i32,
}

/// The segment and the total of every query of a job.
pub(crate) struct Segments<'a> {
    /// `[queries]`
    pub states: &'a mut [QueryState],
    /// `[queries][head_dim]`
    pub total: &'a mut [Line<f32>],
    /// `[queries][head_dim]`
    pub segment: &'a [Line<f32>],
}

/// One key-value head's part of a q8 page.
pub(crate) struct Q8Tile<'a> {
    pub head: Q8Head<'a>,
    pub head_dim: usize,
    pub key_scales: Line64,
    pub value_scales: Line64,
    /// Bytes that the job reads next, to be prefetched.
    pub next: &'a [u8],
}

/// One key-value head's part of an f16 page, and the queries in floats.
pub(crate) struct F16Tile<'a> {
    /// f16 `[64][head_dim]`
    pub keys: &'a [u8],
    /// f16 `[64][head_dim]`
    pub values: &'a [u8],
    pub head_dim: usize,
    /// The job's queries; [`Active::element`] is an index into them.
    pub queries: &'a [f32],
    /// Bytes that the job reads next, to be prefetched.
    pub next: &'a [u8],
}

/// One number for each row of a page, aligned for vector loads.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line64(pub [f32; PAGE_ROWS]);

/// Attends the job in passes of as many rows as the scratch holds.
pub(crate) fn attend(
    stages: &Stages,
    job: &AttentionJob<'_>,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) -> Result<(), AttentionError> {
    job.check(out)?;
    let rows_per_pass = scratch.rows_per_pass(&job.shape)?;
    let query_columns = job.shape.query_heads() * job.shape.head_dim();
    let out_columns = job.shape.heads_per_kv() * job.shape.head_dim();
    let passes = job.positions.chunks(rows_per_pass).zip(out.chunks_mut(rows_per_pass * out_columns));
    for (pass, (positions, out)) in passes.enumerate() {
        let first_row = pass * rows_per_pass;
        let queries = &job.queries[first_row * query_columns..][..positions.len() * query_columns];
        let part = AttentionJob { positions, queries, ..*job };
        attend_pass(stages, &part, scratch, out).map_err(|error| match error {
            AttentionError::NotFinite { what, row } => AttentionError::NotFinite { what, row: first_row + row },
            other => other,
        })?;
    }
    Ok(())
}

fn attend_pass(
    stages: &Stages,
    job: &AttentionJob<'_>,
    scratch: &mut AttentionScratch,
    out: &mut [f32],
) -> Result<(), AttentionError> {
    prepare_queries(stages, job, scratch)?;
    let queries = job.positions.len() * job.shape.heads_per_kv();
    let lines = queries * job.shape.head_dim() / Line::<f32>::LANES;
    let pages = all_visible_pages(job);
    for segment in pages.start / SEGMENT_PAGES..pages.end.div_ceil(SEGMENT_PAGES) {
        let start = pages.start.max(segment * SEGMENT_PAGES);
        let end = pages.end.min((segment + 1) * SEGMENT_PAGES);
        for index in start..end {
            list_active(job, scratch, index);
            if !scratch.active.is_empty() {
                visit_page(stages, job, scratch, index)?;
            }
        }
        let (states, total) = (&mut scratch.states[..queries], &mut scratch.total[..lines]);
        (stages.fold)(Segments { states, total, segment: &scratch.segment[..lines] });
    }
    finish(job, scratch, out)
}

fn prepare_queries(
    stages: &Stages,
    job: &AttentionJob<'_>,
    scratch: &mut AttentionScratch,
) -> Result<(), AttentionError> {
    let (head_dim, group) = (job.shape.head_dim(), job.shape.heads_per_kv());
    let score_scale = job.shape.score_scale();
    let queries = job.positions.len() * group;
    scratch.total[..queries * head_dim / Line::<f32>::LANES].fill(Line::ZERO_F32);
    for (row, states) in scratch.states[..queries].chunks_exact_mut(group).enumerate() {
        let not_finite = AttentionError::NotFinite { what: "query row", row };
        for (head, (state, query)) in states.iter_mut().zip(job.query_row(row).chunks_exact(head_dim)).enumerate() {
            *state = QueryState::EMPTY;
            state.scale = score_scale;
            match job.layout {
                KvLayout::Q8 => {
                    let codes = &mut scratch.codes[(row * group + head) * head_dim / 2..][..head_dim / 2];
                    let prepared = (stages.prepare)(query, codes).ok_or(not_finite)?;
                    state.scale = prepared.scale * score_scale;
                    state.correction = prepared.correction;
                }
                KvLayout::F16 if !all_finite(query) => return Err(not_finite),
                KvLayout::F16 => {}
            }
        }
    }
    Ok(())
}

/// The pages between the first and the last that any row sees.
fn all_visible_pages(job: &AttentionJob<'_>) -> Range<usize> {
    let each = job.positions.iter().map(|&position| visible_pages(position, job.window));
    each.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
}

/// Merges page `index` into the active queries.
fn visit_page(
    stages: &Stages,
    job: &AttentionJob<'_>,
    scratch: &mut AttentionScratch,
    index: usize,
) -> Result<(), AttentionError> {
    let head_dim = job.shape.head_dim();
    open_segments(scratch, head_dim);
    let part = head_part(job, index)?;
    let sees_next = |&position: &u32| visible_pages(position, job.window).contains(&(index + 1));
    // A missing page is reported when its turn comes.
    let next = if job.positions.iter().any(sees_next) { head_part(job, index + 1).unwrap_or_default() } else { &[] };
    match job.layout {
        KvLayout::Q8 => {
            let head = Q8Head::new(part, head_dim);
            let (key_scales, value_scales) = (Line64(head.key_scales()), Line64(head.value_scales()));
            find_exponents(&mut scratch.active, &value_scales.0)
                .map_err(|row| AttentionError::BadValueScale { page: index, row })?;
            (stages.q8_tile)(&Q8Tile { head, head_dim, key_scales, value_scales, next }, scratch);
        }
        KvLayout::F16 => {
            let [keys, values] =
                [PageField::Keys, PageField::Values].map(|field| &part[KvLayout::F16.field(head_dim, field)]);
            (stages.f16_tile)(&F16Tile { keys, values, head_dim, queries: job.queries, next }, scratch);
        }
    }
    Ok(())
}

/// The job's key-value head in page `index`.
fn head_part<'a>(job: &AttentionJob<'a>, index: usize) -> Result<&'a [u8], AttentionError> {
    let page = job.page_bytes(index)?;
    Ok(&page[page::head_part(page, job.layout, &job.shape, job.kv_head)])
}

/// Lists the queries that see a row of page `index`, and which rows.
fn list_active(job: &AttentionJob<'_>, scratch: &mut AttentionScratch, index: usize) {
    let (head_dim, group) = (job.shape.head_dim(), job.shape.heads_per_kv());
    scratch.active.clear();
    for (row, &position) in job.positions.iter().enumerate() {
        let visible = visible_rows(position, job.window, index);
        if visible.is_empty() {
            continue;
        }
        let first_head = row * job.shape.query_heads() + job.kv_head * group;
        scratch.active.extend((0..group).map(|head| Active {
            query: row * group + head,
            element: (first_head + head) * head_dim,
            first: visible.start,
            end: visible.end,
            exponent: 0,
        }));
    }
}

/// Starts a fresh segment for active queries that have none.
fn open_segments(scratch: &mut AttentionScratch, head_dim: usize) {
    let lines = head_dim / Line::<f32>::LANES;
    for active in &scratch.active {
        let state = &mut scratch.states[active.query];
        if !state.in_segment {
            state.in_segment = true;
            state.segment = Sum::EMPTY;
            scratch.segment[active.query * lines..][..lines].fill(Line::ZERO_F32);
        }
    }
}

/// Sets each active query's exponent; fails with a visible row whose value scale is negative or not finite.
fn find_exponents(active: &mut [Active], scales: &[f32; PAGE_ROWS]) -> Result<(), usize> {
    let bits = scales.map(f32::to_bits);
    // The queries of one row follow each other and see the same keys.
    let mut last = (0..0, 0);
    for active in active {
        let visible = active.first..active.end;
        if last.0 != visible {
            // The bits of numbers that are not negative sort as the numbers do, and everything refused sorts above.
            let largest = bits[visible.clone()].iter().fold(0, |a, &b| a.max(b));
            if largest >= f32::INFINITY.to_bits() {
                return Err(visible.into_iter().find(|&row| bits[row] >= f32::INFINITY.to_bits()).unwrap_or(0));
            }
            last = (visible, binary_exponent(f32::from_bits(largest)).max(EXPONENT_MIN));
        }
        active.exponent = last.1;
    }
    Ok(())
}

/// Divides each query's numerator by its denominator.
fn finish(job: &AttentionJob<'_>, scratch: &AttentionScratch, out: &mut [f32]) -> Result<(), AttentionError> {
    let head_dim = job.shape.head_dim();
    let numerators = scratch.total.chunks_exact(head_dim / Line::<f32>::LANES);
    for (query, ((out, numerator), state)) in
        out.chunks_exact_mut(head_dim).zip(numerators).zip(&scratch.states).enumerate()
    {
        let inverse = 1.0 / state.total.l;
        for (out, line) in out.chunks_exact_mut(Line::<f32>::LANES).zip(numerator) {
            out.iter_mut().zip(line.0).for_each(|(out, o)| *out = o * inverse);
        }
        if !all_finite(out) {
            return Err(AttentionError::NotFinite { what: "query row", row: query / job.shape.heads_per_kv() });
        }
    }
    Ok(())
}

/// Without an early exit, so that it runs on vectors.
fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(true, |finite, x| finite & x.is_finite())
}
