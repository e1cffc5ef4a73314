//! Rule 4: integer sums over 32 (or 16) columns, float steps per block.

use std::arch::x86_64::*;

use super::integer_scales::{Rows, add_sub_block, load_lanes, store_lanes};
use super::unpack::broadcast_sums;
use crate::activations::Group32;
use crate::dot::tile::{Lanes, array};
use crate::isa::avx2::memory::{load_bf16, load_f16};
use crate::matrix::format::{Format, HALVES};

/// Adds the products of `units` with `T` tokens to `tile`. `x` holds one group per unit.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<F: Format, const T: usize>(units: &[u8], x: [&[Group32]; T], tile: &mut [Lanes; T]) {
    let mut acc = array!(t in T, [_mm256_setzero_ps(); 2] => load_lanes(&tile[t]));
    for (index, unit) in units.chunks_exact(F::UNIT_BYTES).enumerate() {
        let x = array!(t in T, &x[0][0] => &x[t][index]);
        let mut group_sums = [[_mm256_setzero_ps(); 2]; T];
        for sub in 0..32 / F::SUB {
            let sums = sub_block_sums::<F, T>(unit, &x, sub);
            for half in 0..2 {
                let scales = widen::<F>(&unit[sub * HALVES + 16 * half..]);
                for t in 0..T {
                    let sum = _mm256_cvtepi32_ps(sums[t][half]);
                    group_sums[t][half] = _mm256_fmadd_ps(scales, sum, group_sums[t][half]);
                }
            }
        }
        for half in 0..2 {
            let mins = if F::MINS { Some(load_f16(&unit[F::MINS_AT + 16 * half..])) } else { None };
            for t in 0..T {
                if let Some(mins) = mins {
                    let sum = _mm256_set1_ps(x[t].sum);
                    group_sums[t][half] = _mm256_fmadd_ps(mins, sum, group_sums[t][half]);
                }
                let scale = _mm256_set1_ps(x[t].scale);
                acc[t][half] = _mm256_fmadd_ps(scale, group_sums[t][half], acc[t][half]);
            }
        }
    }
    for t in 0..T {
        store_lanes(acc[t], &mut tile[t]);
    }
}

/// `P_j` of each row and token for sub-block `sub` of the unit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sub_block_sums<F: Format, const T: usize>(unit: &[u8], x: &[&Group32; T], sub: usize) -> [Rows; T] {
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    if F::OFFSET != 0 && F::CHAIN != 0 {
        // Sums of 16 codes come in pairs; a sub-block of 16 takes one of the two.
        let offset = i32::from((-F::OFFSET).cast_unsigned());
        let offset = _mm256_set1_epi32(match (F::SUB, sub) {
            (32, _) => offset | offset << 16,
            (_, 0) => offset,
            _ => offset << 16,
        });
        for t in 0..T {
            sums[t] = [_mm256_madd_epi16(offset, broadcast_sums(&x[t].sums16, 0)); 2];
        }
    }
    let lines = &unit[F::CODES_AT..][..F::BLOCK_BYTES];
    let codes = array!(t in T, &[0; 32] => &x[t].codes);
    add_sub_block::<F, T>(&mut sums, lines, (&codes, sub * F::SUB / 4), [_mm256_set1_epi16(1); 2]);
    sums
}

/// The first 8 scales, as f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen<F: Format>(scales: &[u8]) -> __m256 {
    if F::BRAIN_FLOATS { load_bf16(scales) } else { load_f16(scales) }
}
