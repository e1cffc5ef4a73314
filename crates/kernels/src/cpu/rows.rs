//! Operations on rows, spread over the rows.

use super::Cpu;
use crate::activations::{Activations, FormatSet};
use crate::rows::RowKernels;

impl Cpu {
    /// Quantises rows of `cols` values for their consumers. `produce(kernels, row, out)` writes row `row` into `out`,
    /// `[cols]`, so that what comes before the quantisation makes no round trip through memory. One flag of `finite` per
    /// row; the flags of rows with a NaN or an infinity are cleared, and such rows become zeros.
    ///
    /// # Panics
    /// If the rows exceed the capacity of `activations` or of this device.
    pub fn quantise_rows(
        &mut self,
        activations: &mut Activations,
        cols: usize,
        needs: FormatSet,
        finite: &mut [bool],
        produce: impl Fn(&RowKernels, usize, &mut [f32]) + Sync,
    ) {
        activations.resize(finite.len(), cols);
        let Self { pool, kernels, workers } = self;
        for worker in workers.iter_mut() {
            worker.bad_rows.clear();
        }
        pool.for_each_chunk_with(workers, activations.rows_mut(), 1, |worker, row, out| {
            let values = &mut worker.row[..cols];
            produce(&kernels.rows, row, values);
            if !(kernels.dot.quantise_row)(values, needs, &mut out[0]) {
                worker.bad_rows.push(row);
            }
        });
        workers.iter().flat_map(|worker| &worker.bad_rows).for_each(|&row| finite[row] = false);
    }

    /// Changes rows in place: `change(kernels, row, values, scratch)` for each row of `rows`, `[_, cols]`; `scratch` is as
    /// long as a row.
    ///
    /// # Panics
    /// If `cols` is zero or exceeds the capacity of this device.
    pub fn update_rows(
        &mut self,
        rows: &mut [f32],
        cols: usize,
        change: impl Fn(&RowKernels, usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        let Self { pool, kernels, workers } = self;
        pool.for_each_chunk_with(workers, rows, cols, |worker, row, values| {
            change(&kernels.rows, row, values, &mut worker.row[..cols]);
        });
    }
}
