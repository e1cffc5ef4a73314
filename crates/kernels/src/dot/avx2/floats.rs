//! Rule 4b: float rows in 32 strided lanes, four registers per row and token.

use std::arch::x86_64::*;

use super::unpack::load_half;
use crate::activations::Activations;
use crate::dot::scalar::halving_tree;
use crate::dot::tile::Lanes;
use crate::matrix::PANEL_ROWS;

/// A float type of weights.
pub(super) trait FloatWeights {
    /// Bytes per weight.
    const BYTES: usize;
    /// Whether 16-bit weights are bf16; if not they are f16.
    const BRAIN: bool;
}

/// 32-bit floats.
pub(super) struct F32;
/// 16-bit IEEE floats.
pub(super) struct F16;
/// Upper halves of 32-bit floats.
pub(super) struct BF16;

impl FloatWeights for F32 {
    const BYTES: usize = 4;
    const BRAIN: bool = false;
}
impl FloatWeights for F16 {
    const BYTES: usize = 2;
    const BRAIN: bool = false;
}
impl FloatWeights for BF16 {
    const BYTES: usize = 2;
    const BRAIN: bool = true;
}

/// Fills the `present` first lanes of `tile`. Tokens are the outer loop: their f32 values take more room than the rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn panel<W: FloatWeights>(
    bytes: &[u8],
    present: usize,
    (x, first_row): (&Activations, usize),
    tile: &mut [Lanes],
) {
    let row_bytes = bytes.len() / PANEL_ROWS;
    let rows = || bytes.chunks_exact(row_bytes).take(present).enumerate();
    let mut row = first_row;
    let (threes, rest) = tile.as_chunks_mut::<3>();
    for lanes in threes {
        let x = [x.row(row).floats(), x.row(row + 1).floats(), x.row(row + 2).floats()];
        for (lane, weights) in rows() {
            let values = dot::<W, 3>(weights, x);
            for (lanes, value) in lanes.iter_mut().zip(values) {
                lanes[lane] = value;
            }
        }
        row += 3;
    }
    for lanes in rest {
        for (lane, weights) in rows() {
            [lanes[lane]] = dot::<W, 1>(weights, [x.row(row).floats()]);
        }
        row += 1;
    }
}

/// One row of weights times `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<W: FloatWeights, const T: usize>(weights: &[u8], x: [&[f32]; T]) -> [f32; T] {
    let mut acc = [[_mm256_setzero_ps(); 4]; T];
    let mut runs = weights.chunks_exact(32 * W::BYTES);
    let mut x_runs = x.map(|x| x.chunks_exact(32));
    for run in &mut runs {
        let x: [&[f32]; T] = x_runs.each_mut().map(|runs| runs.next().unwrap_or(&[]));
        let weights = [0, 1, 2, 3].map(|part| widen::<W>(run, part));
        for (acc, x) in acc.iter_mut().zip(x) {
            for (part, (acc, weights)) in acc.iter_mut().zip(weights).enumerate() {
                *acc = _mm256_fmadd_ps(weights, load_floats(x, 8 * part), *acc);
            }
        }
    }
    let mut lanes = acc.map(|acc| {
        let mut lanes = [0.0; 32];
        for (lanes, acc) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(acc) {
            // SAFETY: `lanes` is 8 floats long and the store needs no alignment.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), acc) }
        }
        lanes
    });
    for (k, weight) in runs.remainder().chunks_exact(W::BYTES).enumerate() {
        let weight = widen_one::<W>(weight);
        for (lanes, x_runs) in lanes.iter_mut().zip(&x_runs) {
            lanes[k] = weight.mul_add(x_runs.clone().remainder()[k], lanes[k]);
        }
    }
    lanes.map(halving_tree)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_floats(values: &[f32], at: usize) -> __m256 {
    let values = &values[at..at + 8];
    // SAFETY: `values` is 8 floats long and the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// Weights `8 part .. 8 part + 8` of a run of 32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen<W: FloatWeights>(run: &[u8], part: usize) -> __m256 {
    if W::BYTES == 4 {
        _mm256_castsi256_ps(super::unpack::load(run, 32 * part))
    } else if W::BRAIN {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_half(run, 16 * part))))
    } else {
        _mm256_cvtph_ps(load_half(run, 16 * part))
    }
}

/// One weight.
#[inline]
fn widen_one<W: FloatWeights>(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        [a, b] if W::BRAIN => half::bf16::from_le_bytes([a, b]).to_f32(),
        [a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
        _ => 0.0,
    }
}
