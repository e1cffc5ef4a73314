//! Row operations for CPUs with AVX2 and FMA.

use crate::isa::avx2::memory::{load_f32 as load, load_f32x4, store_f32 as store};
use crate::isa::vector::rows::{row_kernels, vector_operations};
use std::arch::x86_64::*;

type V = __m256;
const LANES: usize = 8;

row_kernels!("avx2,fma");

vector_operations! {
    "avx2,fma",
    fn add(a, b) = _mm256_add_ps(a, b);
    fn sub(a, b) = _mm256_sub_ps(a, b);
    fn mul(a, b) = _mm256_mul_ps(a, b);
    fn div(a, b) = _mm256_div_ps(a, b);
    fn min(a, b) = _mm256_min_ps(a, b);
    fn max(a, b) = _mm256_max_ps(a, b);
    /// `a * b + c`, rounded once.
    fn fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
    /// `a * b - c`, rounded once.
    fn fms(a, b, c) = _mm256_fmsub_ps(a, b, c);
    /// `a * b - c` in even lanes, `a * b + c` in odd ones.
    fn fma_subtracting_even(a, b, c) = _mm256_fmaddsub_ps(a, b, c);
    fn abs(x) = _mm256_andnot_ps(splat(-0.0), x);
    fn copy_sign(x, sign) = _mm256_or_ps(abs(x), _mm256_and_ps(splat(-0.0), sign));
    fn swap_neighbours(x) = _mm256_permute_ps::<0b10_11_00_01>(x);
    /// Adds the integer in the low mantissa bits of `shifted` to the exponent of `mantissa`.
    fn add_exponent(mantissa, shifted) = {
        let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(mantissa), exponent))
    };
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn splat(x: f32) -> V {
    _mm256_set1_ps(x)
}

/// The first elements of `x`, each in two neighbouring lanes.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn load_twice(x: &[f32]) -> V {
    let half = load_f32x4(x);
    _mm256_permutevar8x32_ps(_mm256_castps128_ps256(half), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3))
}
