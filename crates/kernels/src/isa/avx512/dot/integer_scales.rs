//! Rule 3: integer sums over 256 columns, one float step per group.

use std::arch::x86_64::*;

use super::unpack::{broadcast_codes, broadcast_sums, quad};
use crate::activations::Group256;
use crate::dot::tile::{Lanes, array};
use crate::isa::avx2::memory::load_bytes32;
use crate::isa::avx512::memory::{load_bytes64, load_f16, load_f32, store_f32};
use crate::matrix::format::{Format, HALVES};

/// Adds the products of `units` with `T` tokens to `tile`. `x` holds one group per unit; `step` is `2^-e`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn tile<F: Format, const T: usize>(units: &[u8], x: [&[Group256]; T], step: f32, tile: &mut [Lanes; T]) {
    let step = _mm512_set1_ps(if F::MINS { step } else { 1.0 });
    let mut acc = array!(t in T, _mm512_setzero_ps() => load_f32(&tile[t]));
    for (index, unit) in units.chunks_exact(F::UNIT_BYTES).enumerate() {
        let x = array!(t in T, &x[0][0] => &x[t][index]);
        let sums = unit_sums::<F, T>(unit, &x);
        let d = _mm512_mul_ps(load_f16(unit), step);
        for t in 0..T {
            let scale = _mm512_mul_ps(d, _mm512_set1_ps(x[t].scale));
            acc[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sums[t]), acc[t]);
        }
    }
    for (acc, lanes) in acc.into_iter().zip(tile) {
        store_f32(lanes, acc);
    }
}

/// `I_g` of each row and token.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn unit_sums<F: Format, const T: usize>(unit: &[u8], x: &[&Group256; T]) -> [__m512i; T] {
    let mut sums = [_mm512_setzero_si512(); T];
    if F::MINS {
        for pair in 0..4 {
            let mins = load_bytes64(&unit[F::MINS_AT + pair * 2 * HALVES..]);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = _mm512_dpwssd_epi32(*sum, mins, broadcast_sums(&x.sums32, 2 * pair));
            }
        }
    }
    for pair in 0..128 / F::SUB {
        // Two i16 scales per lane, of an even and an odd sub-block.
        let scales = _mm512_cvtepi8_epi16(load_bytes32(&unit[F::SUB_SCALES_AT + pair * HALVES..]));
        for odd in 0..2 {
            let scales = if odd == 0 {
                _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(scales))
            } else {
                _mm512_srai_epi32::<16>(scales)
            };
            let sub = 2 * pair + odd;
            let block = sub * F::SUB / 32;
            let lines = &unit[F::CODES_AT + block * F::BLOCK_BYTES..][..F::BLOCK_BYTES];
            let codes = array!(t in T, &[0; 32] => &x[t].codes.as_chunks::<32>().0[block]);
            let x_sums = array!(t in T, &[0; 2] => &x[t].sums16.as_chunks::<2>().0[block]);
            let products = sub_block_sums::<F, T>(lines, &codes, sub * F::SUB % 32 / 4, &x_sums);
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum = _mm512_add_epi32(*sum, _mm512_mullo_epi32(product, scales));
            }
        }
    }
    sums
}

/// `P_j` of each row and token: the sub-block of `lines` from quad `first` on. `x_sums` are the two sums of 16 codes of
/// the block's 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn sub_block_sums<F: Format, const T: usize>(
    lines: &[u8],
    codes: &[&[i8; 32]; T],
    first: usize,
    x_sums: &[&[i16; 2]; T],
) -> [__m512i; T] {
    let mut sums = [_mm512_setzero_si512(); T];
    if F::OFFSET != 0 {
        // A sub-block of 16 takes one of the two sums.
        let offset = i32::from((-F::OFFSET).cast_unsigned());
        let offset = _mm512_set1_epi32(match (F::SUB, first) {
            (32, _) => offset | offset << 16,
            (_, 0) => offset,
            _ => offset << 16,
        });
        for (sum, x_sums) in sums.iter_mut().zip(x_sums) {
            *sum = _mm512_dpwssd_epi32(*sum, offset, broadcast_sums(*x_sums, 0));
        }
    }
    for i in 0..F::SUB / 4 {
        // The two quads of a line of nibbles follow each other, so that the line is loaded once.
        let c = if F::SUB == 32 { i / 2 + i % 2 * 4 } else { first + i };
        let weights = quad::<F>(lines, c);
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = _mm512_dpbusd_epi32(*sum, weights, broadcast_codes(*codes, 4 * c));
        }
    }
    sums
}
