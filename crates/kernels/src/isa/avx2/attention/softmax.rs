//! The weights of one tile's keys for one query.

use crate::exp2::{EXP2_DEGREE4, EXPONENT_SPAN, ROUND_TO_INTEGER};
use crate::isa::avx2::memory::load_i32;
use std::arch::x86_64::*;

/// One tile's weights: `2^h` times `p`, whose sum is `l`.
pub(super) struct TileWeights {
    pub h: f32,
    pub l: f32,
    /// Zero for keys that are not visible.
    pub p: [__m256; 8],
}

/// Visibility of the 64 keys to a query: a lane per key, all bits set or none.
pub(super) type Mask = [__m256i; 8];

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn visible_mask(first: usize, end: usize) -> Mask {
    let lanes = load_i32(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let (first, end) = (_mm256_set1_epi32(small(first) - 1), _mm256_set1_epi32(small(end)));
    let mut mask = [_mm256_setzero_si256(); 8];
    for (i, mask) in mask.iter_mut().enumerate() {
        let key = _mm256_add_epi32(lanes, _mm256_set1_epi32(small(8 * i)));
        *mask = _mm256_and_si256(_mm256_cmpgt_epi32(key, first), _mm256_cmpgt_epi32(end, key));
    }
    mask
}

/// The weights of scores `t` for a query with factor `scale`.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) fn weigh(t: &[__m256; 8], scale: f32, mask: &Mask) -> TileWeights {
    let mut t_max = _mm256_set1_ps(f32::NEG_INFINITY);
    let mut largest_bits = _mm256_setzero_si256();
    let magnitude = _mm256_set1_epi32(i32::MAX);
    for (t, mask) in t.iter().zip(mask) {
        let visible = _mm256_castsi256_ps(*mask);
        t_max = _mm256_max_ps(_mm256_blendv_ps(_mm256_set1_ps(f32::NEG_INFINITY), *t, visible), t_max);
        let bits = _mm256_and_si256(_mm256_castps_si256(_mm256_and_ps(*t, visible)), magnitude);
        largest_bits = _mm256_max_epi32(largest_bits, bits);
    }
    let h = (max_of_lanes(t_max) * scale).ceil();
    let finite = h.is_finite() && all_below_infinity(largest_bits);

    let (slope, shift) = (_mm256_set1_ps(scale / 64.0), _mm256_set1_ps(h.mul_add(-1.0 / 64.0, 1.0)));
    let mut p = [_mm256_setzero_ps(); 8];
    for ((p, t), mask) in p.iter_mut().zip(t).zip(mask) {
        let u = _mm256_fmadd_ps(*t, slope, shift);
        let u = _mm256_min_ps(_mm256_max_ps(u, _mm256_setzero_ps()), _mm256_set1_ps(1.0));
        *p = _mm256_and_ps(exp2_of_span(u), _mm256_castsi256_ps(*mask));
    }
    let l = if finite { sum_of_weights(&p) } else { f32::NAN };
    TileWeights { h, l, p }
}

/// `2^(64 u - 64)` for `u` in [0, 1].
#[target_feature(enable = "avx2,fma")]
#[inline]
fn exp2_of_span(u: __m256) -> __m256 {
    let offset = _mm256_set1_ps(ROUND_TO_INTEGER - EXPONENT_SPAN);
    let span = _mm256_set1_ps(EXPONENT_SPAN);
    let shifted = _mm256_fmadd_ps(u, span, offset);
    let fraction = _mm256_fmsub_ps(u, span, _mm256_sub_ps(shifted, offset));
    let mut y = _mm256_set1_ps(EXP2_DEGREE4[0]);
    for c in [EXP2_DEGREE4[1], EXP2_DEGREE4[2], EXP2_DEGREE4[3], 1.0] {
        y = _mm256_fmadd_ps(y, fraction, _mm256_set1_ps(c));
    }
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent))
}

/// Lane `c` sums `p[8 i + c]` ascending; then lanes pairwise.
#[target_feature(enable = "avx2")]
#[inline]
fn sum_of_weights(p: &[__m256; 8]) -> f32 {
    let mut a = p[0];
    for p in &p[1..] {
        a = _mm256_add_ps(a, *p);
    }
    let pairs = _mm256_hadd_ps(a, a);
    let fours = _mm256_hadd_ps(pairs, pairs);
    let all = _mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours));
    _mm_cvtss_f32(all)
}

#[target_feature(enable = "avx2")]
#[inline]
fn max_of_lanes(x: __m256) -> f32 {
    let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
}

/// True if every lane is below the bits of infinity; lanes are not negative.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn all_below_infinity(bits: __m256i) -> bool {
    let refused = _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(f32::MAX.to_bits().cast_signed()));
    _mm256_testz_si256(refused, refused) == 1
}

/// A count of at most 64 as a lane.
#[inline]
fn small(x: usize) -> i32 {
    i32::try_from(x).expect("at most 64 rows")
}
