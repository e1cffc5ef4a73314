//! Storing keys and values, and attending over them, spread over the threads.

use super::{Cpu, Worker};
use crate::attention::{AttentionError, AttentionJob, AttentionShape, KvLayout, PAGE_ROWS};

/// Query rows per job: enough to read a page once for many rows, few enough to share the work.
pub(super) const JOB_ROWS: usize = 16;

/// Pages written in one parallel region.
const PAGES_AT_ONCE: usize = 16;

/// Parameters shared by all attention work of one layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionLayer {
    /// Heads.
    pub shape: AttentionShape,
    /// Storage of keys and values in the pages.
    pub layout: KvLayout,
    /// A query sees this many positions, its own included; `None` for all.
    pub window: Option<u32>,
}

/// One sequence's share of a step's rows.
#[derive(Debug)]
pub struct SequenceRows<'a, P> {
    /// Its first row among the step's rows.
    pub first_row: usize,
    /// Its rows in the step.
    pub rows: usize,
    /// Absolute index of the first of `pages`.
    pub first_page: usize,
    /// Its pages in ascending order, those of the rows themselves included.
    pub pages: &'a [P],
}

impl<'a, P: AsRef<[u8]>> SequenceRows<'a, P> {
    /// The page with absolute index `page`, if it is held.
    fn page(&self, page: usize) -> Option<&'a [u8]> {
        page.checked_sub(self.first_page).and_then(|index| self.pages.get(index)).map(AsRef::as_ref)
    }
}

/// A page that rows are written into.
#[derive(Debug)]
pub struct WritablePage<'a> {
    /// Among the step's rows, the row whose position is `position`.
    pub first_row: usize,
    /// The first position to write.
    pub position: usize,
    /// Rows to write; they all lie in this page.
    pub rows: usize,
    /// The page's bytes.
    pub bytes: &'a mut [u8],
}

/// The heads' outputs: `[kv_heads, rows rounded up, heads_per_kv * head_dim]`, so that a job writes one contiguous part.
#[derive(Debug, Default)]
pub struct AttentionOutput {
    values: Vec<f32>,
    rows_padded: usize,
    group_dim: usize,
    query_dim: usize,
}

impl AttentionOutput {
    /// Room for `rows_max` rows of `shape`.
    pub fn new(shape: &AttentionShape, rows_max: usize) -> Self {
        let group_dim = shape.heads_per_kv() * shape.head_dim();
        let rows = rows_max.next_multiple_of(JOB_ROWS);
        let query_dim = shape.kv_heads() * group_dim;
        Self { values: vec![0.0; rows * query_dim], rows_padded: rows, group_dim, query_dim }
    }

    /// Elements of a row: query heads times elements per head.
    pub(super) fn width(&self) -> usize {
        self.query_dim
    }

    /// Copies row `row` into `out`, `[query_heads * head_dim]`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        for (kv_head, out) in out.chunks_exact_mut(self.group_dim).enumerate() {
            let start = (kv_head * self.rows_padded + row) * self.group_dim;
            out.copy_from_slice(&self.values[start..start + self.group_dim]);
        }
    }
}

impl Cpu {
    /// Rounds keys and values, `[rows, kv_heads * head_dim]` each, into their pages. Rows that are not finite fail.
    ///
    /// # Panics
    /// If a page or a row has the wrong length.
    pub fn store_kv<'a>(
        &mut self,
        layer: &AttentionLayer,
        (keys, values): (&[f32], &[f32]),
        pages: impl Iterator<Item = WritablePage<'a>>,
    ) {
        let store = self.kernels.attention.store_row;
        let dim = layer.shape.kv_heads() * layer.shape.head_dim();
        let mut pages = pages.fuse();
        loop {
            let mut group: [Option<(WritablePage<'a>, Option<usize>)>; PAGES_AT_ONCE] =
                std::array::from_fn(|_| pages.next().map(|page| (page, None)));
            let count = group.iter().flatten().count();
            if count == 0 {
                return;
            }
            self.pool.for_each_chunk(&mut group[..count], 1, |_, _, slot| {
                let Some((page, bad_row)) = &mut slot[0] else { return };
                for row in 0..page.rows {
                    let at = (page.first_row + row) * dim..(page.first_row + row + 1) * dim;
                    let place = (page.position + row) % PAGE_ROWS;
                    match store(&layer.shape, layer.layout, &keys[at.clone()], &values[at], place, page.bytes) {
                        Ok(()) => {}
                        Err(AttentionError::NotFinite { .. }) => {
                            bad_row.get_or_insert(page.first_row + row);
                        }
                        Err(other) => panic!("the graph's own shapes: {other}"),
                    }
                }
            });
            group.iter().flatten().filter_map(|(_, bad)| *bad).for_each(|row| self.rows.fail(row));
        }
    }

    /// Attends every row of a step over the pages of its sequence. `queries`: `[rows, query_heads * head_dim]`;
    /// `sequences` gives the step's sequences by number, `None` past the last. Rows that are not finite fail.
    ///
    /// # Panics
    /// If a needed page is missing or a length is wrong.
    pub fn attend<'a, P: AsRef<[u8]> + Sync + 'a>(
        &mut self,
        layer: &AttentionLayer,
        queries: &[f32],
        sequences: impl Fn(usize) -> Option<SequenceRows<'a, P>> + Sync,
        out: &mut AttentionOutput,
    ) {
        let Self { pool, kernels, workers, rows: step, .. } = self;
        let positions = step.positions.as_slice();
        let query_dim = layer.shape.query_heads() * layer.shape.head_dim();
        let group_dim = layer.shape.heads_per_kv() * layer.shape.head_dim();
        let rows = step.count();
        let job_rows = JOB_ROWS.min(rows);
        let rows_padded = rows.next_multiple_of(job_rows);
        (out.rows_padded, out.group_dim) = (rows_padded, group_dim);
        let blocks = rows_padded / job_rows;
        let attend = kernels.attention.attend;
        let values = &mut out.values[..layer.shape.kv_heads() * rows_padded * group_dim];
        for worker in workers.iter_mut() {
            worker.bad_rows.clear();
        }
        pool.for_each_chunk_with(workers, values, job_rows * group_dim, |worker, index, part| {
            let (kv_head, block) = (index / blocks, index % blocks);
            let job_range = block * job_rows..((block + 1) * job_rows).min(rows);
            for sequence in (0..).map_while(&sequences) {
                let first = job_range.start.max(sequence.first_row);
                let end = job_range.end.min(sequence.first_row + sequence.rows);
                if first >= end {
                    continue;
                }
                let job = AttentionJob {
                    shape: layer.shape,
                    layout: layer.layout,
                    kv_head,
                    window: layer.window,
                    page: &|page| sequence.page(page),
                    queries: &queries[first * query_dim..end * query_dim],
                    positions: &positions[first..end],
                };
                let part = &mut part[(first - job_range.start) * group_dim..(end - job_range.start) * group_dim];
                attend_or_mark(attend, &job, worker, part, first);
            }
        });
        workers.iter().flat_map(|worker| &worker.bad_rows).for_each(|&row| step.fail(row));
    }
}

/// Runs a job; rows that are not finite are noted, and no other failure is possible for the graph's own shapes.
fn attend_or_mark(
    attend: crate::attention::Attend,
    job: &AttentionJob<'_>,
    worker: &mut Worker,
    part: &mut [f32],
    first_row: usize,
) {
    match attend(job, &mut worker.attention, part) {
        Ok(()) => {}
        Err(AttentionError::NotFinite { row, .. }) => {
            part.fill(0.0);
            worker.bad_rows.push(first_row + row);
        }
        // A scale that is not finite can only come from a page that was damaged or forged: it fails the whole job.
        Err(AttentionError::BadValueScale { .. }) => {
            part.fill(0.0);
            worker.bad_rows.extend(first_row..first_row + job.positions.len());
        }
        Err(other) => panic!("the graph's own shapes: {other}"),
    }
}
