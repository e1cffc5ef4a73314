//! Rule 3: integer sums over 256 columns, one float step per group.

use std::arch::x86_64::*;

use super::unpack::{broadcast_codes, broadcast_sums, quad};
use crate::activations::Group256;
use crate::dot::tile::{Lanes, array};
use crate::isa::avx2::memory::{load_bytes16, load_bytes32, load_f16, load_f32, store_f32};
use crate::matrix::format::{Format, HALVES};

/// The two halves of 16 rows.
pub(super) type Rows = [__m256i; 2];

/// Adds the products of `units` with `T` tokens to `tile`. `x` holds one group per unit; `step` is `2^-e`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tile<F: Format, const T: usize>(units: &[u8], x: [&[Group256]; T], step: f32, tile: &mut [Lanes; T]) {
    let step = _mm256_set1_ps(if F::MINS { step } else { 1.0 });
    let mut acc = array!(t in T, [_mm256_setzero_ps(); 2] => load_lanes(&tile[t]));
    for (index, unit) in units.chunks_exact(F::UNIT_BYTES).enumerate() {
        let x = array!(t in T, &x[0][0] => &x[t][index]);
        let sums = unit_sums::<F, T>(unit, &x);
        for half in 0..2 {
            let d = _mm256_mul_ps(load_f16(&unit[16 * half..]), step);
            for t in 0..T {
                let scale = _mm256_mul_ps(d, _mm256_set1_ps(x[t].scale));
                acc[t][half] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sums[t][half]), acc[t][half]);
            }
        }
    }
    for t in 0..T {
        store_lanes(acc[t], &mut tile[t]);
    }
}

/// `I_g` of each row and token.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unit_sums<F: Format, const T: usize>(unit: &[u8], x: &[&Group256; T]) -> [Rows; T] {
    let zero = _mm256_setzero_si256();
    let mut sums = [[zero; 2]; T];
    if F::MINS {
        for pair in 0..4 {
            let mins = array!(half in 2, zero => load_bytes32(&unit[F::MINS_AT + pair * 2 * HALVES + HALVES * half..]));
            let pairs = array!(t in T, zero => broadcast_sums(&x[t].sums32, 2 * pair));
            add_pair(&mut sums, mins, pairs);
        }
    }
    for pair in 0..128 / F::SUB {
        let scales_at = F::SUB_SCALES_AT + pair * HALVES;
        let scales =
            array!(half in 2, zero => _mm256_cvtepi8_epi16(load_bytes16(&unit[scales_at + HALVES / 2 * half..])));
        if F::OFFSET != 0 && F::CHAIN != 0 {
            let offset = _mm256_set1_epi16(-F::OFFSET);
            let scaled = array!(half in 2, zero => _mm256_mullo_epi16(scales[half], offset));
            let pairs = array!(t in T, zero => broadcast_sums(&x[t].sums16, 2 * pair));
            add_pair(&mut sums, scaled, pairs);
        }
        for odd in 0..2 {
            let sub = 2 * pair + odd;
            let scales = array!(half in 2, zero => duplicate(scales[half], odd));
            let block = sub * F::SUB / 32;
            let lines = &unit[F::CODES_AT + block * F::BLOCK_BYTES..][..F::BLOCK_BYTES];
            let codes = array!(t in T, &[0; 32] => &x[t].codes.as_chunks::<32>().0[block]);
            add_sub_block::<F, T>(&mut sums, lines, (&codes, sub * F::SUB % 32 / 4), scales);
        }
    }
    sums
}

/// Adds `weights[half] . pair` to every sum; both are two i16 per lane.
#[inline]
#[target_feature(enable = "avx2")]
fn add_pair<const T: usize>(sums: &mut [Rows; T], weights: Rows, pairs: [__m256i; T]) {
    for (sums, pair) in sums.iter_mut().zip(pairs) {
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(weights, pair));
        }
    }
}

/// Adds `scales . P_j` to every sum, where `P_j` is the sub-block of `lines` from quad `first` on. `scales` are the same
/// i16 twice per lane. Without the offset of the format, unless its values are too large for sums in i16: those are
/// multiplied as the signed codes they stand for.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_sub_block<F: Format, const T: usize>(
    sums: &mut [Rows; T],
    lines: &[u8],
    (codes, first): (&[&[i8; 32]; T], usize),
    scales: Rows,
) {
    let steps = if F::CHAIN == 0 { 1 } else { F::CHAIN };
    let mut done = 0;
    while done < F::SUB / 4 {
        let partial = chain::<F, T>(lines, codes, first, done..done + steps);
        for (sums, partial) in sums.iter_mut().zip(partial) {
            for half in 0..2 {
                sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(partial[half], scales[half]));
            }
        }
        done += steps;
    }
}

/// The low (`odd` = 0) or high i16 of each 32-bit lane, in both of its halves.
#[inline]
#[target_feature(enable = "avx2")]
fn duplicate(pairs: __m256i, odd: usize) -> __m256i {
    let low = _mm256_setr_epi8(
        0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, 0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13,
    );
    let order = if odd == 0 { low } else { _mm256_or_si256(low, _mm256_set1_epi8(2)) };
    _mm256_shuffle_epi8(pairs, order)
}

/// The sums over quads `steps` of the sub-block from quad `first` on: two i16 per lane.
#[inline]
#[target_feature(enable = "avx2")]
fn chain<F: Format, const T: usize>(
    lines: &[u8],
    codes: &[&[i8; 32]; T],
    first: usize,
    steps: std::ops::Range<usize>,
) -> [Rows; T] {
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    for i in steps.clone() {
        // The two quads of a line of nibbles follow each other, so that the line is loaded once.
        let c = if F::SUB == 32 { i / 2 + i % 2 * 4 } else { first + i };
        let weights = [quad::<F>(lines, c, 0), quad::<F>(lines, c, 1)];
        for t in 0..T {
            let x = broadcast_codes(codes[t], 4 * c);
            for half in 0..2 {
                let product = products::<F>(weights[half], x);
                sums[t][half] = if i == steps.start { product } else { _mm256_add_epi16(sums[t][half], product) };
            }
        }
    }
    sums
}

/// Sums of two products in each i16.
#[inline]
#[target_feature(enable = "avx2")]
fn products<F: Format>(weights: __m256i, x: __m256i) -> __m256i {
    if F::CHAIN == 0 {
        // These are stored 128 higher. |code| is unsigned, up to 128; its sign goes to the activation, never -128.
        let codes = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes))
    } else {
        _mm256_maddubs_epi16(weights, x)
    }
}

/// 16 lanes as two registers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_lanes(lanes: &Lanes) -> [__m256; 2] {
    array!(half in 2, _mm256_setzero_ps() => load_f32(&lanes[8 * half..]))
}

/// Two registers as 16 lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_lanes(acc: [__m256; 2], lanes: &mut Lanes) {
    let (halves, _) = lanes.as_chunks_mut::<8>();
    for (half, acc) in halves.iter_mut().zip(acc) {
        store_f32(half, acc);
    }
}
