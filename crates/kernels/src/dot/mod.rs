//! Products of quantised activation rows with packed matrices.
//!
//! [`mod@reference`] is the definition. The kernels of every instruction set return its bits, whatever the number of rows,
//! the panel or the machine.

pub(crate) mod float_weights;
mod general;
pub mod reference;
pub(crate) mod scalar;
pub(crate) mod tile;

use std::ops::Range;

use crate::activations::{ActivationRow, Activations, FormatSet};
use crate::matrix::{Matrix, PANEL_ROWS};

/// Quantises `x` to every format of the set (rule 2); `false` if it holds a NaN or an infinity, and the row then holds
/// zeros. Panics if `x` and the row differ in length.
pub type QuantiseFn = fn(x: &[f32], needs: FormatSet, row: &mut ActivationRow) -> bool;

/// Writes the 16 outputs of `panel` for each activation row of `rows`: `tile[i][lane]` is activation row
/// `rows.start + i` times output row `16 panel + lane`. Lanes past the matrix's last row get zero.
///
/// Panics if `tile` has not one element per row, or the matrix has not as many columns as the activations or not so
/// many panels.
pub type PanelFn =
    fn(matrix: &Matrix, panel: usize, x: &Activations, rows: Range<usize>, tile: &mut [[f32; PANEL_ROWS]]);

/// Functions of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct DotKernels {
    /// See [`QuantiseFn`].
    pub quantise_row: QuantiseFn,
    /// See [`PanelFn`].
    pub panel: PanelFn,
}
