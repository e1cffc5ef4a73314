//! The weights of one tile's keys for one query, and the merge into its numerator.

use crate::attention::scratch::Line;
use crate::exp2::{EXP2_DEGREE4, EXPONENT_SPAN, ROUND_TO_INTEGER};
use crate::isa::avx512::memory::{load_line, store_line};
use std::arch::x86_64::*;

/// One tile's weights: `2^h` times `p`, whose sum is `l`.
pub(super) struct TileWeights {
    pub h: f32,
    pub l: f32,
    /// Zero for keys that are not visible.
    pub p: [__m512; 4],
}

/// Visibility of the 64 keys to a query, one bit each.
pub(super) type Mask = [__mmask16; 4];

/// The rows `first..end`, of which there is at least one.
#[inline]
pub(super) fn visible_mask(first: usize, end: usize) -> Mask {
    let [a, b, c, d, e, f, g, h] = ((u64::MAX >> (64 - (end - first))) << first).to_le_bytes();
    [[a, b], [c, d], [e, f], [g, h]].map(u16::from_le_bytes)
}

/// The weights of scores `t` for a query with factor `scale`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn weigh(t: &[__m512; 4], scale: f32, mask: &Mask) -> TileWeights {
    /// Quiet NaN, both infinities, signalling NaN.
    const NOT_FINITE: i32 = 0x01 | 0x08 | 0x10 | 0x80;
    let mut t_max = _mm512_set1_ps(f32::NEG_INFINITY);
    let mut refused = 0;
    for i in 0..4 {
        t_max = _mm512_mask_max_ps(t_max, mask[i], t_max, t[i]);
        refused |= _mm512_mask_fpclass_ps_mask::<NOT_FINITE>(mask[i], t[i]);
    }
    let h = (_mm512_reduce_max_ps(t_max) * scale).ceil();
    let finite = h.is_finite() && refused == 0;

    let (slope, shift) = (_mm512_set1_ps(scale / 64.0), _mm512_set1_ps(h.mul_add(-1.0 / 64.0, 1.0)));
    let mut p = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        let u = _mm512_fmadd_ps(t[i], slope, shift);
        let u = _mm512_min_ps(_mm512_max_ps(u, _mm512_setzero_ps()), _mm512_set1_ps(1.0));
        p[i] = _mm512_maskz_mov_ps(mask[i], exp2_of_span(u));
    }
    let l = if finite { sum_of_weights(&p) } else { f32::NAN };
    TileWeights { h, l, p }
}

/// `2^(64 u - 64)` for `u` in [0, 1].
#[target_feature(enable = "avx512f")]
#[inline]
fn exp2_of_span(u: __m512) -> __m512 {
    let offset = _mm512_set1_ps(ROUND_TO_INTEGER - EXPONENT_SPAN);
    let span = _mm512_set1_ps(EXPONENT_SPAN);
    let shifted = _mm512_fmadd_ps(u, span, offset);
    let fraction = _mm512_fmsub_ps(u, span, _mm512_sub_ps(shifted, offset));
    let mut y = _mm512_set1_ps(EXP2_DEGREE4[0]);
    for c in [EXP2_DEGREE4[1], EXP2_DEGREE4[2], EXP2_DEGREE4[3], 1.0] {
        y = _mm512_fmadd_ps(y, fraction, _mm512_set1_ps(c));
    }
    let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent))
}

/// Lane `c` sums `p[8 i + c]` ascending; then lanes pairwise.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn sum_of_weights(p: &[__m512; 4]) -> f32 {
    let mut a = _mm256_add_ps(_mm512_castps512_ps256(p[0]), _mm512_extractf32x8_ps::<1>(p[0]));
    for p in &p[1..] {
        a = _mm256_add_ps(a, _mm512_castps512_ps256(*p));
        a = _mm256_add_ps(a, _mm512_extractf32x8_ps::<1>(*p));
    }
    let pairs = _mm256_hadd_ps(a, a);
    let fours = _mm256_hadd_ps(pairs, pairs);
    let all = _mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps::<1>(fours));
    _mm_cvtss_f32(all)
}

/// `numerator = sums * new + numerator * old`, line by line.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_to_numerator(numerator: &mut [Line<f32>], sums: &[__m512], (old, new): (f32, f32)) {
    let (old, new) = (_mm512_set1_ps(old), _mm512_set1_ps(new));
    for (o, sum) in numerator.iter_mut().zip(sums) {
        store_line(o, _mm512_fmadd_ps(*sum, new, _mm512_mul_ps(load_line(o), old)));
    }
}
