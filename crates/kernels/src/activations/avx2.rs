//! Rule 2 with AVX2: 32 values at a time.

use std::arch::x86_64::*;

use super::scalar;
use super::{ActivationFormat, ActivationRow, FormatSet, LARGEST_CODE, QuantisedRow, SMALLEST_MAXIMUM};

/// Whether this processor has what the AVX2 tables need.
pub(crate) fn supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// AVX2 twin of [`scalar::quantise_row`]; only to be reached through a table that was handed out after detection.
pub(crate) fn quantise_row(x: &[f32], needs: FormatSet, row: &mut ActivationRow) -> bool {
    assert_eq!(x.len(), row.cols, "values and row differ in length");
    // SAFETY: reached only through the tables, which need AVX2 to be there.
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
        largest = largest.max(quantise_groups::<256>(x, &mut row.int8x256));
    }
    if needs.contains(ActivationFormat::Int8x32) {
        largest = largest.max(quantise_groups::<32>(x, &mut row.int8x32));
    }
    if needs.contains(ActivationFormat::Float) {
        largest = largest.max(largest_bits(x));
        row.floats[..x.len()].copy_from_slice(x);
    }
    largest < f32::INFINITY.to_bits()
}

/// Quantises groups of `GROUP` and returns the bits of the largest magnitude, as of an infinity or a NaN if there is one.
#[target_feature(enable = "avx2")]
fn quantise_groups<const GROUP: usize>(x: &[f32], row: &mut QuantisedRow) -> u32 {
    let mut overall = 0;
    for (group, values) in x.chunks(GROUP).enumerate() {
        let largest_bits = largest_bits(values);
        overall = overall.max(largest_bits);
        let largest = f32::from_bits(largest_bits);
        let codes = &mut row.codes[group * GROUP..][..GROUP];
        let (blocks, rest) = values.as_chunks::<32>();
        if largest < SMALLEST_MAXIMUM {
            codes.fill(0);
            row.scales[group] = 0.0;
        } else {
            let inverse = LARGEST_CODE / largest;
            row.scales[group] = largest / LARGEST_CODE;
            let (code_blocks, _) = codes.as_chunks_mut::<32>();
            for (values, codes) in blocks.iter().zip(code_blocks) {
                quantise_block(values, inverse, codes);
            }
            if !rest.is_empty() || blocks.len() * 32 < GROUP {
                let codes = &mut codes[blocks.len() * 32..];
                codes.fill(0);
                scalar::quantise_values(rest, inverse, codes);
            }
        }
    }
    sum_codes(x.len().div_ceil(GROUP) * GROUP, row);
    overall
}

/// The largest magnitude as bits: magnitudes order as their bits do, and infinities and NaNs are above all numbers.
#[target_feature(enable = "avx2")]
fn largest_bits(values: &[f32]) -> u32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut largest = [_mm256_setzero_si256(); 2];
    let (runs, rest) = values.as_chunks::<16>();
    for run in runs {
        for half in 0..2 {
            // SAFETY: half of `run` is 8 floats long and the load needs no alignment.
            let bits = unsafe { _mm256_loadu_si256(run[8 * half..].as_ptr().cast()) };
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
fn quantise_block(values: &[f32; 32], inverse: f32, codes: &mut [i8; 32]) {
    let inverse = _mm256_set1_ps(inverse);
    let part = |part: usize| {
        // SAFETY: each part is 8 floats long and the load needs no alignment.
        let values = unsafe { _mm256_loadu_ps(values[8 * part..8 * part + 8].as_ptr()) };
        // The rounding mode is to nearest even, which no code of this project changes.
        _mm256_cvtps_epi32(_mm256_mul_ps(values, inverse))
    };
    let low = _mm256_packs_epi32(part(0), part(1));
    let high = _mm256_packs_epi32(part(2), part(3));
    // Packing works within 128-bit halves: fours come out as 0 2 4 6 1 3 5 7.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let ordered = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    // SAFETY: `codes` is 32 bytes long and the store needs no alignment.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), ordered) }
}

/// The sums that belong to the first `padded` codes.
#[target_feature(enable = "avx2")]
fn sum_codes(padded: usize, row: &mut QuantisedRow) {
    let (blocks, _) = row.codes[..padded].as_chunks::<32>();
    let (pairs, _) = row.sums16.as_chunks_mut::<2>();
    let sums32 = row.sums32.iter_mut().zip(&mut row.float_sums32);
    for ((block, pair), (sum32, float_sum32)) in blocks.iter().zip(pairs).zip(sums32) {
        // SAFETY: `block` is 32 bytes long and the load needs no alignment.
        let codes = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        // Two, then four, then eight codes per lane.
        let twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
        let fours = _mm256_madd_epi16(twos, _mm256_set1_epi16(1));
        let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b10_11_00_01>(fours));
        let sixteens = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b01_00_11_10>(eights));
        let low = _mm_extract_epi16::<0>(_mm256_castsi256_si128(sixteens));
        let high = _mm_extract_epi16::<0>(_mm256_extracti128_si256::<1>(sixteens));
        #[expect(clippy::cast_possible_truncation, reason = "the low half of a sum within 16 * 127")]
        let [low, high] = [low as i16, high as i16];
        *pair = [low, high];
        *sum32 = low + high;
        *float_sum32 = f32::from(low + high);
    }
}
