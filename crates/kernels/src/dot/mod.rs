//! Products of quantised activation rows with packed matrices: one table of functions per instruction set.
//!
//! [`mod@reference`] is the definition. Every table returns its bits, whatever the number of rows, the panel or the machine.

pub(crate) mod float_weights;
mod general;
pub mod reference;
mod scalar;
pub(crate) mod tile;

use std::ops::Range;

use crate::activations::{self, ActivationRow, Activations, FormatSet};
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

/// The functions of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct DotKernels {
    /// Name of the instruction set.
    pub name: &'static str,
    /// See [`QuantiseFn`].
    pub quantise_row: QuantiseFn,
    /// See [`PanelFn`].
    pub panel: PanelFn,
}

static SCALAR: DotKernels =
    DotKernels { name: "scalar", quantise_row: activations::scalar::quantise_row, panel: scalar::panel };

impl DotKernels {
    /// Portable code.
    pub fn scalar() -> &'static Self {
        &SCALAR
    }

    /// AVX2, FMA and F16C, or `None` if this processor lacks one of them.
    pub fn avx2() -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        return crate::isa::avx2::dot::table();
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// AVX-512 F, BW, VL and VNNI on top of AVX2, or `None` if this processor lacks one of them.
    pub fn avx512() -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        return crate::isa::avx512::dot::table();
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Every table that this processor can run, fastest last.
    pub fn available() -> Vec<&'static Self> {
        [Some(Self::scalar()), Self::avx2(), Self::avx512()].into_iter().flatten().collect()
    }

    /// The fastest table that this processor can run.
    pub fn detected() -> &'static Self {
        Self::avx512().or(Self::avx2()).unwrap_or(Self::scalar())
    }
}
