//! Matrix products, spread over panels of output rows.

use super::{Cpu, TILE_ROWS};
use crate::activations::Activations;
use crate::matrix::{Matrix, PANEL_ROWS};
use crate::pool;

/// Jobs per thread that decode aims for: enough to even out, few enough that handing them out costs nothing.
const JOBS_PER_THREAD: usize = 8;

/// One product of a step's activations: `out = matrix * activations + bias`.
#[derive(Debug)]
pub struct Product<'a> {
    /// `[outputs, cols]`.
    pub matrix: &'a Matrix,
    /// `[outputs]`, added to every row.
    pub bias: Option<&'a [f32]>,
    /// `[rows, outputs]`, of which the front is written.
    pub out: &'a mut [f32],
}

impl Cpu {
    /// Computes up to four products of the same activations in one parallel region.
    ///
    /// # Panics
    /// If an output is too short, or the activations lack the form a matrix needs.
    pub fn matmul<const N: usize>(&mut self, activations: &Activations, products: [Product<'_>; N]) {
        let rows = activations.rows();
        let operands: [(&Matrix, Option<&[f32]>); N] = std::array::from_fn(|i| (products[i].matrix, products[i].bias));
        let mut outputs = products.map(|product| {
            let out = &mut product.out[..rows * product.matrix.rows()];
            pool::Matrix::new(out, product.matrix.rows())
        });
        let panels: usize = operands.iter().map(|(matrix, _)| matrix.panels()).sum();
        let panels_per_job = if rows > 1 { 1 } else { (panels / (self.threads() * JOBS_PER_THREAD)).max(1) };
        let panel_product = self.kernels.dot.panel;
        let add = self.kernels.rows.add;
        self.pool.for_each_output_block(
            &mut self.workers,
            &mut outputs,
            panels_per_job * PANEL_ROWS,
            |worker, output, block| {
                let (matrix, bias) = operands[output];
                let columns = block.columns();
                for column in columns.clone().step_by(PANEL_ROWS) {
                    let within = column - columns.start..(column + PANEL_ROWS).min(columns.end) - columns.start;
                    for first in (0..rows).step_by(TILE_ROWS) {
                        let tile_rows = first..(first + TILE_ROWS).min(rows);
                        let tile = &mut worker.tile[..tile_rows.len()];
                        panel_product(matrix, column / PANEL_ROWS, activations, tile_rows.clone(), tile);
                        for (row, sums) in tile_rows.zip(tile) {
                            let out = &mut block.row_mut(row)[within.clone()];
                            out.copy_from_slice(&sums[..out.len()]);
                            if let Some(bias) = bias {
                                add(out, &bias[column..column + out.len()]);
                            }
                        }
                    }
                }
            },
        );
    }
}
