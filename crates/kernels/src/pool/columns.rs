//! Row-major matrices written by blocks of columns: the output of a matrix product, whose jobs are blocks of weight rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::Pool;
use super::disjoint::PerWorker;

impl Pool {
    /// Calls `work(worker, index, part)` for each block of `block` columns of `out`, a `[rows, cols]` row-major matrix; the
    /// last block may be narrower.
    ///
    /// # Panics
    /// If `block` or `cols` is zero or `out.len()` is not a multiple of `cols`; as [`Pool::run`] if a call panics.
    pub fn for_each_column_block(
        &mut self,
        out: &mut [f32],
        cols: usize,
        block: usize,
        work: impl Fn(usize, usize, &mut ColumnBlock<'_>) + Sync,
    ) {
        let outputs = [Matrix::new(out, cols)];
        let jobs = count_blocks(&outputs, block);
        self.run(jobs, &|worker, job| {
            // SAFETY: `run` calls this once per job, and `outputs` is borrowed until it returns.
            let (_, mut part) = unsafe { block_of(&outputs, block, job) };
            work(worker, part.index, &mut part);
        });
    }

    /// Like [`Pool::for_each_column_block`] over several matrices in one region, such as q, k and v: calls
    /// `work(scratch, output, part)`, where `output` indexes `outputs` and `scratch` is the thread's own element of
    /// `scratch`. `&mut [(); Pool::THREADS_MAX]` serves where none is needed.
    ///
    /// # Panics
    /// If `block` is zero or `scratch` has fewer elements than there are threads; as [`Pool::run`] if a call panics.
    pub fn for_each_output_block<S: Send>(
        &mut self,
        scratch: &mut [S],
        outputs: &mut [Matrix<'_>],
        block: usize,
        work: impl Fn(&mut S, usize, &mut ColumnBlock<'_>) + Sync,
    ) {
        let scratch = PerWorker::new(scratch, self.threads());
        // Shared from here on, and still exclusively borrowed from whoever owns it.
        let outputs = &*outputs;
        let jobs = count_blocks(outputs, block);
        self.run(jobs, &|worker, job| {
            // SAFETY: `run` never lets calls with equal `worker` overlap, and `worker < threads()`.
            let own = unsafe { scratch.get(worker) };
            // SAFETY: `run` calls this once per job, and `outputs` is borrowed mutably until it returns.
            let (output, mut part) = unsafe { block_of(outputs, block, job) };
            work(own, output, &mut part);
        });
    }
}

/// A mutably borrowed `[rows, cols]` row-major matrix, to be written by blocks of columns.
#[derive(Debug)]
pub struct Matrix<'a> {
    start: *mut f32,
    rows: usize,
    cols: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `Matrix` is a `&mut [f32]` in another shape.
unsafe impl Send for Matrix<'_> {}

// SAFETY: a shared `Matrix` gives no safe access to its elements; `block_of` states the duties of its caller.
unsafe impl Sync for Matrix<'_> {}

impl<'a> Matrix<'a> {
    /// Sees `data` as rows of `cols` elements.
    ///
    /// # Panics
    /// If `cols` is zero or `data.len()` is not a multiple of it.
    pub fn new(data: &'a mut [f32], cols: usize) -> Self {
        let len = data.len();
        assert!(cols > 0 && len.is_multiple_of(cols), "{len} elements are no rows of {cols}");
        Self { start: data.as_mut_ptr(), rows: len / cols, cols, borrow: PhantomData }
    }
}

/// Some columns of a matrix, in all its rows, held by one job.
#[derive(Debug)]
pub struct ColumnBlock<'a> {
    /// Row 0, first column of the block.
    start: *mut f32,
    rows: usize,
    /// From one row to the next, in elements.
    stride: usize,
    columns: Range<usize>,
    index: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `ColumnBlock` is a set of `&mut [f32]` that nobody else holds.
unsafe impl Send for ColumnBlock<'_> {}

// SAFETY: a shared `ColumnBlock` gives no access to the elements.
unsafe impl Sync for ColumnBlock<'_> {}

impl ColumnBlock<'_> {
    /// Number of this block among those of its matrix.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The matrix's columns that the block holds.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The block's columns of row `row`: `columns().len()` elements.
    ///
    /// # Panics
    /// If `row` is not below [`ColumnBlock::rows`].
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `row < rows`, so this stays inside the matrix.
        let first = unsafe { self.start.add(row * self.stride) };
        // SAFETY: the block ends within the row; this job alone holds the block, and `&mut self` this row.
        unsafe { std::slice::from_raw_parts_mut(first, self.columns.len()) }
    }
}

/// Blocks of `block` columns in all `outputs`. A matrix without rows has none.
fn count_blocks(outputs: &[Matrix<'_>], block: usize) -> usize {
    assert!(block > 0, "blocks of zero columns");
    outputs.iter().map(|output| blocks_in(output, block)).sum()
}

fn blocks_in(output: &Matrix<'_>, block: usize) -> usize {
    if output.rows == 0 { 0 } else { output.cols.div_ceil(block) }
}

/// Block number `job`, counted through all `outputs` in order, and the index of its matrix.
///
/// # Safety
/// `job < count_blocks(outputs, block)`; no other access to this block of columns until the result is dropped.
unsafe fn block_of<'a>(outputs: &'a [Matrix<'_>], block: usize, job: usize) -> (usize, ColumnBlock<'a>) {
    let (mut output, mut index) = (0, job);
    while index >= blocks_in(&outputs[output], block) {
        index -= blocks_in(&outputs[output], block);
        output += 1;
    }
    let matrix = &outputs[output];
    let first = index * block;
    let columns = first..matrix.cols.min(first + block);
    // SAFETY: `first < cols`, and the matrix has a row, or it would have no block.
    let start = unsafe { matrix.start.add(first) };
    (output, ColumnBlock { start, rows: matrix.rows, stride: matrix.cols, columns, index, borrow: PhantomData })
}
