//! Rule 2 with AVX2: 32 values at a time.

use std::arch::x86_64::*;

use super::memory::{load_f32, store_i8};
use crate::activations::{ActivationFormat, ActivationRow, FormatSet, LARGEST_CODE, SMALLEST_MAXIMUM, scalar};

/// AVX2 twin of [`scalar::quantise_row`]; reachable only through `KERNELS`.
pub(super) fn quantise_row(x: &[f32], needs: FormatSet, row: &mut ActivationRow) -> bool {
    assert_eq!(x.len(), row.cols, "values and row differ in length");
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    let finite = unsafe { quantise(x, needs, row) };
    if !finite {
        row.clear();
    }
    finite
}

#[target_feature(enable = "avx2")]
fn quantise(x: &[f32], needs: FormatSet, row: &mut ActivationRow) -> bool {
    let mut largest = 0;
    if needs.contains(ActivationFormat::Int8x256) {
        for (values, group) in x.chunks(256).zip(&mut row.int8x256) {
            let bits = largest_bits(values);
            largest = largest.max(bits);
            group.scale = quantise_group(values, bits, &mut group.codes, &mut group.sums16);
            for (sum, pair) in group.sums32.iter_mut().zip(group.sums16.as_chunks::<2>().0) {
                *sum = pair[0] + pair[1];
            }
        }
    }
    if needs.contains(ActivationFormat::Int8x32) {
        for (values, group) in x.chunks(32).zip(&mut row.int8x32) {
            let bits = largest_bits(values);
            largest = largest.max(bits);
            group.scale = quantise_group(values, bits, &mut group.codes, &mut group.sums16);
            group.sum = f32::from(group.sums16[0] + group.sums16[1]);
        }
    }
    if needs.contains(ActivationFormat::Float) {
        largest = largest.max(largest_bits(x));
        row.floats[..x.len()].copy_from_slice(x);
    }
    largest < f32::INFINITY.to_bits()
}

/// Writes the codes of `values`, whose largest magnitude has the bits `largest`, zeros after them, and the sum of each
/// 16 codes; returns the scale.
#[inline]
#[target_feature(enable = "avx2")]
fn quantise_group(values: &[f32], largest: u32, codes: &mut [i8], sums16: &mut [i16]) -> f32 {
    let largest = f32::from_bits(largest);
    if largest < SMALLEST_MAXIMUM {
        codes.fill(0);
        sums16.fill(0);
        return 0.0;
    }
    let inverse = LARGEST_CODE / largest;
    let (blocks, rest) = values.as_chunks::<32>();
    let (code_blocks, _) = codes.as_chunks_mut::<32>();
    let (sum_pairs, _) = sums16.as_chunks_mut::<2>();
    for ((values, codes), sums) in blocks.iter().zip(code_blocks).zip(sum_pairs) {
        quantise_block(values, inverse, codes, sums);
    }
    if blocks.len() * 32 < codes.len() {
        let (codes, sums16) = (&mut codes[blocks.len() * 32..], &mut sums16[blocks.len() * 2..]);
        codes.fill(0);
        sums16.fill(0);
        scalar::quantise_values(rest, inverse, codes, sums16);
    }
    largest / LARGEST_CODE
}

/// The largest magnitude as bits: magnitudes order as their bits do, and infinities and NaNs are above all numbers.
#[target_feature(enable = "avx2")]
fn largest_bits(values: &[f32]) -> u32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut largest = [_mm256_setzero_si256(); 2];
    let (runs, rest) = values.as_chunks::<16>();
    for run in runs {
        for half in 0..2 {
            let bits = _mm256_castps_si256(load_f32(&run[8 * half..]));
            largest[half] = _mm256_max_epi32(largest[half], _mm256_and_si256(bits, magnitude));
        }
    }
    let eight = _mm256_max_epi32(largest[0], largest[1]);
    let four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    let of_runs = _mm_cvtsi128_si32(one).cast_unsigned();
    rest.iter().fold(of_runs, |largest, value| largest.max(value.abs().to_bits()))
}

/// `|x inverse|` rounds to at most 127 for all `x` of the group, so that nothing needs clamping: the largest is
/// `RN(a RN(127 / a))`, which is within two roundings of 127.
#[inline]
#[target_feature(enable = "avx2")]
fn quantise_block(values: &[f32; 32], inverse: f32, codes: &mut [i8; 32], sums: &mut [i16; 2]) {
    let inverse = _mm256_set1_ps(inverse);
    // The rounding mode is to nearest even, which no code of this project changes.
    let part = |part: usize| _mm256_cvtps_epi32(_mm256_mul_ps(load_f32(&values[8 * part..]), inverse));
    let low = _mm256_packs_epi32(part(0), part(1));
    let high = _mm256_packs_epi32(part(2), part(3));
    // Packing works within 128-bit halves: fours come out as 0 2 4 6 1 3 5 7.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let ordered = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    store_i8(codes, ordered);
    // Two, then four, then eight, then sixteen codes per lane.
    let twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), ordered);
    let fours = _mm256_madd_epi16(twos, _mm256_set1_epi16(1));
    let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b10_11_00_01>(fours));
    let sixteens = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b01_00_11_10>(eights));
    let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(sixteens));
    let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sixteens));
    #[expect(clippy::cast_possible_truncation, reason = "sums within 16 * 127")]
    let pair = [low as i16, high as i16];
    *sums = pair;
}
