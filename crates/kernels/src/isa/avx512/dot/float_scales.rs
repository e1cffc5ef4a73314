//! Rule 4: integer sums over 32 (or 16) columns, float steps per block.

use std::arch::x86_64::*;

use super::integer_scales::sub_block_sums;
use crate::activations::Group32;
use crate::dot::tile::{Lanes, array};
use crate::isa::avx512::memory::{load_bf16, load_f16, load_f32, store_f32};
use crate::matrix::format::{Format, HALVES};

/// Adds the products of `units` with `T` tokens to `tile`. `x` holds one group per unit.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn tile<F: Format, const T: usize>(units: &[u8], x: [&[Group32]; T], tile: &mut [Lanes; T]) {
    let mut acc = array!(t in T, _mm512_setzero_ps() => load_f32(&tile[t]));
    for (index, unit) in units.chunks_exact(F::UNIT_BYTES).enumerate() {
        let x = array!(t in T, &x[0][0] => &x[t][index]);
        let mut group_sums = [_mm512_setzero_ps(); T];
        let lines = &unit[F::CODES_AT..][..F::BLOCK_BYTES];
        let codes = array!(t in T, &[0; 32] => &x[t].codes);
        let x_sums = array!(t in T, &[0; 2] => &x[t].sums16);
        for sub in 0..32 / F::SUB {
            let sums = sub_block_sums::<F, T>(lines, &codes, sub * F::SUB / 4, &x_sums);
            let scales = widen::<F>(&unit[sub * HALVES..]);
            for (group_sum, sum) in group_sums.iter_mut().zip(sums) {
                *group_sum = _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(sum), *group_sum);
            }
        }
        if F::MINS {
            let mins = load_f16(&unit[F::MINS_AT..]);
            for (group_sum, x) in group_sums.iter_mut().zip(x) {
                *group_sum = _mm512_fmadd_ps(mins, _mm512_set1_ps(x.sum), *group_sum);
            }
        }
        for t in 0..T {
            acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t].scale), group_sums[t], acc[t]);
        }
    }
    for (acc, lanes) in acc.into_iter().zip(tile) {
        store_f32(lanes, acc);
    }
}

/// The first 16 scales, as f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen<F: Format>(scales: &[u8]) -> __m512 {
    if F::BRAIN_FLOATS { load_bf16(scales) } else { load_f16(scales) }
}
