//! The q8 layout: rounding vectors to codes, repacking a page, and the two integer products.
//!
//! A packed row of keys is one pair of dimensions for all 64 keys; a packed row of values is one pair of keys for all
//! dimensions. Sign extension takes every second byte, so that pairs of keys' dimensions are (0, 2), (1, 3), (4, 6), ...;
//! query codes are stored in that order.

use super::softmax::{Mask, TileWeights, all_below_infinity, visible_mask, weigh};
use crate::attention::reference::WEIGHT_BITS;
use crate::attention::scratch::{Active, AttentionScratch, Line, QueryState};
use crate::attention::store::{KV_CODE_MAX, MAGNITUDE_MIN, QUERY_CODE_MAX};
use crate::exp2::{ROUND_TO_INTEGER, pow2};
use crate::isa::avx2::memory::{
    load_bytes16, load_bytes32, load_f32, load_i32, prefetch, store_bytes16, store_f32, store_i32,
};
use crate::isa::vector::attention::{PreparedQuery, Q8Tile};
use std::arch::x86_64::*;

/// Keys of a packed key row, by eights.
const KEY_EIGHTS: usize = 8;

/// Rounds a stored vector to codes within +-127; `false` if an element is not finite.
#[target_feature(enable = "avx2,fma")]
pub(super) fn store_codes(x: &[f32], codes: &mut [u8], scale: &mut [u8]) -> bool {
    let Some(step) = Step::new(x, KV_CODE_MAX) else { return false };
    for (codes, x) in codes.chunks_exact_mut(16).zip(x.chunks_exact(16)) {
        let wide = step.sixteen_codes(x);
        let bytes = _mm_packs_epi16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
        store_bytes16(codes, bytes);
    }
    scale.copy_from_slice(&step.scale.to_le_bytes());
    true
}

/// Quantises a query to codes within +-1023, in pairs of dimensions (0, 2), (1, 3), (4, 6), ...
#[target_feature(enable = "avx2,fma")]
pub(super) fn prepare(query: &[f32], codes: &mut [i32]) -> Option<PreparedQuery> {
    let step = Step::new(query, QUERY_CODE_MAX)?;
    for (codes, x) in codes.chunks_exact_mut(8).zip(query.chunks_exact(16)) {
        let wide = step.sixteen_codes(x);
        let swapped = _mm256_shufflehi_epi16::<0b11_01_10_00>(_mm256_shufflelo_epi16::<0b11_01_10_00>(wide));
        store_i32(codes, swapped);
    }
    Some(PreparedQuery { scale: step.scale, correction: 0 })
}

/// One vector's step from floats to codes.
pub(in crate::isa) struct Step {
    inverse: f32,
    /// Value of one code step.
    pub scale: f32,
}

impl Step {
    /// `None` if an element is not finite.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub fn new(x: &[f32], code_max: f32) -> Option<Self> {
        let mut largest = _mm256_setzero_si256();
        for x in x.chunks_exact(8) {
            let bits = _mm256_and_si256(_mm256_castps_si256(load_f32(x)), _mm256_set1_epi32(i32::MAX));
            largest = _mm256_max_epi32(largest, bits);
        }
        if !all_below_infinity(largest) {
            return None;
        }
        // The bits of numbers that are not negative sort as the numbers do.
        let half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
        let quarter = _mm_max_epi32(half, _mm_shuffle_epi32::<0b00_00_11_10>(half));
        let bits = _mm_cvtsi128_si32(_mm_max_epi32(quarter, _mm_shuffle_epi32::<0b00_00_00_01>(quarter)));
        let magnitude = f32::from_bits(bits.cast_unsigned());
        if magnitude < MAGNITUDE_MIN {
            return Some(Self { inverse: 0.0, scale: 0.0 });
        }
        Some(Self { inverse: code_max / magnitude, scale: magnitude / code_max })
    }

    /// Codes of sixteen elements. They need no clamp: `x * inverse` exceeds `code_max` by two roundings at most, which is
    /// far from the next half. The conversion rounds to nearest even.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub fn sixteen_codes(&self, x: &[f32]) -> __m256i {
        let inverse = _mm256_set1_ps(self.inverse);
        let low = _mm256_cvtps_epi32(_mm256_mul_ps(load_f32(x), inverse));
        let high = _mm256_cvtps_epi32(_mm256_mul_ps(load_f32(&x[8..]), inverse));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high))
    }
}

/// Merges one tile into the segment of every active query.
#[target_feature(enable = "avx2,fma")]
pub(super) fn merge_tile(tile: &Q8Tile<'_>, scratch: &mut AttentionScratch) {
    let head_dim = tile.head_dim;
    let AttentionScratch { active, states, codes, segment, keys, values, .. } = scratch;
    let keys = &mut Line::eights_mut(keys)[..head_dim / 2 * KEY_EIGHTS];
    let values = &mut Line::eights_mut(values)[..32 * head_dim / 8];
    pack_keys(tile.head.keys, head_dim, keys);
    pack_values(tile.head.values, head_dim, values);
    let packed = Packed { keys, values, tile };
    let mut queries = Queries { states, codes, segment: Line::eights_mut(segment) };
    let (pairs, single) = active.as_chunks::<2>();
    let steps = active.len().div_ceil(2);
    for (step, pair) in pairs.iter().enumerate() {
        prefetch(tile.next, step..step + 1, steps);
        queries.merge(pair, &packed);
    }
    if let [last] = single {
        prefetch(tile.next, steps - 1..steps, steps);
        queries.merge(&[*last], &packed);
    }
}

/// A page's keys and values as the products want them.
struct Packed<'a> {
    /// `[head_dim / 2][64]` pairs
    keys: &'a [[i32; 8]],
    /// `[32][head_dim]` pairs
    values: &'a [[i32; 8]],
    tile: &'a Q8Tile<'a>,
}

/// Query state that is kept from page to page, for all queries of the job.
struct Queries<'a> {
    states: &'a mut [QueryState],
    codes: &'a [i32],
    segment: &'a mut [[f32; 8]],
}

impl Queries<'_> {
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn merge<const N: usize>(&mut self, active: &[Active; N], packed: &Packed<'_>) {
        let head_dim = packed.tile.head_dim;
        let first = active.iter().fold(64, |a, b| a.min(b.first));
        let end = active.iter().fold(0, |a, b| a.max(b.end));

        let mut codes: [&[i32]; N] = [&[]; N];
        for (codes, active) in codes.iter_mut().zip(active) {
            *codes = &self.codes[active.query * head_dim / 2..][..head_dim / 2];
        }
        let mut dots = [[_mm256_setzero_si256(); 8]; N];
        for half in 0..2 {
            if first < 32 * (half + 1) && end > 32 * half {
                let products = multiply(codes, packed.keys, KEY_EIGHTS, 4 * half);
                for (dots, products) in dots.iter_mut().zip(products) {
                    dots[4 * half..][..4].copy_from_slice(&products);
                }
            }
        }

        let mut weights = [[0; 32]; N];
        let mut factors = [(0f32, 0f32); N];
        for n in 0..N {
            let state = &mut self.states[active[n].query];
            let mask = visible_mask(active[n].first, active[n].end);
            let tile_weights = weigh(&scores(&dots[n], packed.tile), state.scale, &mask);
            weights[n] = value_weights(&tile_weights, packed.tile, active[n].exponent, &mask);
            let (old, new) = state.segment.merge(tile_weights.h, tile_weights.l);
            factors[n] = (old, new * pow2((active[n].exponent - WEIGHT_BITS) as f32));
        }

        let eights = head_dim / 8;
        let (first_pair, end_pair) = (first / 2, end.div_ceil(2));
        let mut pairs: [&[i32]; N] = [&[]; N];
        for (pairs, weights) in pairs.iter_mut().zip(&weights) {
            *pairs = &weights[first_pair..end_pair];
        }
        let values = &packed.values[first_pair * eights..end_pair * eights];
        for column in (0..eights).step_by(4) {
            let sums = multiply(pairs, values, eights, column);
            for n in 0..N {
                let numerator = &mut self.segment[active[n].query * eights + column..][..4];
                add_to_numerator(numerator, &sums[n], factors[n]);
            }
        }
    }
}

/// For each of N rows of pairs `a`, 32 lanes of `a * b`: the sum over packed rows of pair times pair. `b` has rows of
/// `eights` arrays, of which the product takes four, from array `column`.
///
/// 16-bit products of codes (1023 by 128, or 2048 by 128) add up to less than 2^26 over a head.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn multiply<const N: usize>(a: [&[i32]; N], b: &[[i32; 8]], eights: usize, column: usize) -> [[__m256i; 4]; N] {
    let mut sums = [[_mm256_setzero_si256(); 4]; N];
    let rows = b.chunks_exact(eights);
    for a in a {
        assert!(a.len() >= rows.len());
    }
    for (j, row) in rows.enumerate() {
        let row: &[[i32; 8]; 4] = row[column..column + 4].first_chunk().expect("four arrays");
        let b = [load_i32(&row[0]), load_i32(&row[1]), load_i32(&row[2]), load_i32(&row[3])];
        for n in 0..N {
            let a = _mm256_set1_epi32(a[n][j]);
            for i in 0..4 {
                sums[n][i] = _mm256_add_epi32(sums[n][i], _mm256_madd_epi16(a, b[i]));
            }
        }
    }
    sums
}

/// Dot products times key scales.
#[target_feature(enable = "avx2")]
#[inline]
fn scores(dots: &[__m256i; 8], tile: &Q8Tile<'_>) -> [__m256; 8] {
    let mut t = [_mm256_setzero_ps(); 8];
    for ((t, dot), scale) in t.iter_mut().zip(dots).zip(tile.key_scales.0.chunks_exact(8)) {
        *t = _mm256_mul_ps(_mm256_cvtepi32_ps(*dot), load_f32(scale));
    }
    t
}

/// Each key's weight times its value scale as an integer in 0..=2048, in pairs of neighbouring keys.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn value_weights(weights: &TileWeights, tile: &Q8Tile<'_>, exponent: i32, mask: &Mask) -> [i32; 32] {
    let scale_up = _mm256_set1_ps(pow2((WEIGHT_BITS - exponent) as f32));
    let round = _mm256_set1_ps(ROUND_TO_INTEGER);
    let mut integers = [_mm256_setzero_si256(); 8];
    for (i, scale) in tile.value_scales.0.chunks_exact(8).enumerate() {
        let scale = _mm256_mul_ps(load_f32(scale), scale_up);
        let shifted = _mm256_castps_si256(_mm256_fmadd_ps(weights.p[i], scale, round));
        let integer = _mm256_sub_epi32(shifted, _mm256_castps_si256(round));
        // The scale of a key that is not visible may be anything.
        integers[i] = _mm256_and_si256(integer, mask[i]);
    }
    let mut pairs = [0; 32];
    for (i, pairs) in pairs.chunks_exact_mut(8).enumerate() {
        let packed = _mm256_packs_epi32(integers[2 * i], integers[2 * i + 1]);
        let in_order = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        store_i32(pairs, in_order);
    }
    pairs
}

/// `numerator = sums * factor of the tile + numerator * factor of the sum so far`, 32 dimensions.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_to_numerator(numerator: &mut [[f32; 8]], sums: &[__m256i; 4], (old, new): (f32, f32)) {
    let (old, new) = (_mm256_set1_ps(old), _mm256_set1_ps(new));
    for (o, sum) in numerator.iter_mut().zip(sums) {
        let sum = _mm256_cvtepi32_ps(*sum);
        let merged = _mm256_fmadd_ps(sum, new, _mm256_mul_ps(load_f32(o), old));
        store_f32(o, merged);
    }
}

/// Keys `[64][head_dim]` bytes to `[head_dim / 2][64]` pairs.
#[target_feature(enable = "avx2")]
fn pack_keys(keys: &[u8], head_dim: usize, packed: &mut [[i32; 8]]) {
    for (group, keys) in keys.chunks_exact(8 * head_dim).enumerate() {
        for (block, packed) in packed.chunks_exact_mut(8 * KEY_EIGHTS).enumerate() {
            // Four rows of bytes, each next to the row four further: 16 dimensions of eight keys.
            let mut rows = [_mm256_setzero_si256(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let near = load_bytes16(&keys[i * head_dim + 16 * block..]);
                let far = load_bytes16(&keys[(i + 4) * head_dim + 16 * block..]);
                *row = _mm256_set_m128i(far, near);
            }
            let quads = transpose_words(rows);
            for i in 0..4 {
                let (even, odd) = widen(quads[i]);
                store_i32(&mut packed[2 * i * KEY_EIGHTS + group], even);
                store_i32(&mut packed[(2 * i + 1) * KEY_EIGHTS + group], odd);
            }
        }
    }
}

/// Values `[64][head_dim]` bytes to `[32][head_dim]` pairs of neighbouring keys.
#[target_feature(enable = "avx2")]
fn pack_values(values: &[u8], head_dim: usize, packed: &mut [[i32; 8]]) {
    let eights = head_dim / 8;
    // Puts words 0, 2, 4, 6 into the low lane and 1, 3, 5, 7 into the high one, so that unpacking keeps dimensions in order.
    let order = load_i32(&[0, 2, 4, 6, 1, 3, 5, 7]);
    for (values, packed) in values.chunks_exact(4 * head_dim).zip(packed.chunks_exact_mut(2 * eights)) {
        let (near, far) = packed.split_at_mut(eights);
        for (block, (near, far)) in near.as_chunks_mut::<4>().0.iter_mut().zip(far.as_chunks_mut::<4>().0).enumerate() {
            // Keys 0, 2, 1, 3: sign extension takes every second byte, which leaves neighbours in one pair.
            let mut rows = [_mm256_setzero_si256(); 4];
            for (row, key) in rows.iter_mut().zip([0, 2, 1, 3]) {
                let bytes = load_bytes32(&values[key * head_dim + 32 * block..]);
                *row = _mm256_permutevar8x32_epi32(bytes, order);
            }
            let quads = interleave_bytes(rows);
            for i in 0..4 {
                let (even, odd) = widen(quads[i]);
                store_i32(&mut near[i], even);
                store_i32(&mut far[i], odd);
            }
        }
    }
}

/// Within each lane, word `w` of row `r` becomes word `r` of row `w`.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose_words(rows: [__m256i; 4]) -> [__m256i; 4] {
    let [a, b, c, d] = rows;
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Within each lane, byte `b` of all four rows becomes word `b`.
#[target_feature(enable = "avx2")]
#[inline]
fn interleave_bytes(rows: [__m256i; 4]) -> [__m256i; 4] {
    let [a, b, c, d] = rows;
    let (ab_low, ab_high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
    [
        _mm256_unpacklo_epi16(ab_low, cd_low),
        _mm256_unpackhi_epi16(ab_low, cd_low),
        _mm256_unpacklo_epi16(ab_high, cd_high),
        _mm256_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// The signed bytes 0, 2, 4, ... and 1, 3, 5, ... as 16-bit numbers.
#[target_feature(enable = "avx2")]
#[inline]
fn widen(bytes: __m256i) -> (__m256i, __m256i) {
    (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes))
}
