//! Rule 4b: float rows in 32 strided lanes, four registers per row and token.

use std::arch::x86_64::*;

use crate::activations::Activations;
use crate::dot::float_weights::{FloatWeights, halving_tree};
use crate::dot::tile::{Lanes, array};
use crate::isa::avx2::memory::{load_bf16, load_bytes32, load_f16, load_f32, store_f32};
use crate::matrix::PANEL_ROWS;

/// Rows and tokens multiplied together: what the registers hold.
const ROWS: usize = 1;
const TOKENS: usize = 3;
/// Rows multiplied together with a single token.
const ROWS_OF_ONE: usize = 2;
/// Registers of 32 lanes.
const PARTS: usize = 4;

/// Fills `tile`. Tokens are the outer loop: their f32 values take more room than the rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn panel<W: FloatWeights>(bytes: &[u8], (x, first_row): (&Activations, usize), tile: &mut [Lanes]) {
    let mut row = first_row;
    let (full, rest) = tile.as_chunks_mut::<TOKENS>();
    for lanes in full {
        rows::<W, ROWS, TOKENS>(bytes, array!(t in TOKENS, &[][..] => x.row(row + t).floats()), lanes);
        row += TOKENS;
    }
    for lanes in rest.as_chunks_mut::<1>().0 {
        rows::<W, ROWS_OF_ONE, 1>(bytes, [x.row(row).floats()], lanes);
        row += 1;
    }
}

/// All 16 rows times `T` tokens; rows that are padding hold zeros.
#[target_feature(enable = "avx2,fma,f16c")]
fn rows<W: FloatWeights, const R: usize, const T: usize>(bytes: &[u8], x: [&[f32]; T], tile: &mut [Lanes; T]) {
    let row_bytes = bytes.len() / PANEL_ROWS;
    for first in (0..PANEL_ROWS).step_by(R) {
        let weights = array!(r in R, &[][..] => &bytes[(first + r) * row_bytes..][..row_bytes]);
        let values = dot::<W, R, T>(weights, x);
        for (r, values) in values.into_iter().enumerate() {
            for (lanes, value) in tile.iter_mut().zip(values) {
                lanes[first + r] = value;
            }
        }
    }
}

/// `R` rows of weights times `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn dot<W: FloatWeights, const R: usize, const T: usize>(weights: [&[u8]; R], x: [&[f32]; T]) -> [[f32; T]; R] {
    let mut acc = [[[_mm256_setzero_ps(); T]; R]; PARTS];
    let runs = x[0].len() / 32;
    for run in 0..runs {
        let x = array!(t in T, &[0.0; 32] => &x[t].as_chunks::<32>().0[run]);
        let weights = array!(r in R, weights[0] => &weights[r][32 * W::BYTES * run..][..32 * W::BYTES]);
        for (part, acc) in acc.iter_mut().enumerate() {
            let x = array!(t in T, _mm256_setzero_ps() => load_f32(&x[t][8 * part..]));
            for (acc, weights) in acc.iter_mut().zip(weights) {
                let weights = widen::<W>(weights, part);
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = _mm256_fmadd_ps(weights, x, *acc);
                }
            }
        }
    }
    let mut values = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            let mut lanes = stored(array!(part in PARTS, _mm256_setzero_ps() => acc[part][r][t]));
            let rest = weights[r][32 * W::BYTES * runs..].chunks_exact(W::BYTES).zip(&x[t][32 * runs..]);
            for (lane, (weight, value)) in lanes.iter_mut().zip(rest) {
                *lane = W::widen(weight).mul_add(*value, *lane);
            }
            values[r][t] = halving_tree(lanes);
        }
    }
    values
}

/// The registers of one row and token as lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn stored(acc: [__m256; PARTS]) -> [f32; 32] {
    let mut lanes = [0.0; 32];
    for (lanes, acc) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(acc) {
        store_f32(lanes, acc);
    }
    lanes
}

/// Weights `8 part .. 8 part + 8` of a run of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen<W: FloatWeights>(run: &[u8], part: usize) -> __m256 {
    let weights = &run[8 * W::BYTES * part..];
    if W::BYTES == 4 {
        _mm256_castsi256_ps(load_bytes32(weights))
    } else if W::BRAIN {
        load_bf16(weights)
    } else {
        load_f16(weights)
    }
}
