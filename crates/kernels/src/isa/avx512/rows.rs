//! Row operations for CPUs with AVX-512 (F and DQ).

use crate::isa::avx2::memory::load_f32 as load_f32x8;
use crate::isa::avx512::memory::{load_f32 as load, store_f32 as store};
use crate::isa::vector::rows::{row_kernels, vector_operations};
use std::arch::x86_64::*;

type V = __m512;
const LANES: usize = 16;

row_kernels!("avx512f,avx512dq");

vector_operations! {
    "avx512f,avx512dq",
    fn add(a, b) = _mm512_add_ps(a, b);
    fn sub(a, b) = _mm512_sub_ps(a, b);
    fn mul(a, b) = _mm512_mul_ps(a, b);
    fn div(a, b) = _mm512_div_ps(a, b);
    fn min(a, b) = _mm512_min_ps(a, b);
    fn max(a, b) = _mm512_max_ps(a, b);
    /// `a * b + c`, rounded once.
    fn fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
    /// `a * b - c`, rounded once.
    fn fms(a, b, c) = _mm512_fmsub_ps(a, b, c);
    /// `a * b - c` in even lanes, `a * b + c` in odd ones.
    fn fma_subtracting_even(a, b, c) = _mm512_fmaddsub_ps(a, b, c);
    fn abs(x) = _mm512_andnot_ps(splat(-0.0), x);
    fn copy_sign(x, sign) = _mm512_or_ps(abs(x), _mm512_and_ps(splat(-0.0), sign));
    fn swap_neighbours(x) = _mm512_permute_ps::<0b10_11_00_01>(x);
    /// Adds the integer in the low mantissa bits of `shifted` to the exponent of `mantissa`.
    fn add_exponent(mantissa, shifted) = {
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(mantissa), exponent))
    };
}

#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn splat(x: f32) -> V {
    _mm512_set1_ps(x)
}

/// The first elements of `x`, each in two neighbouring lanes.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn load_twice(x: &[f32]) -> V {
    let half = load_f32x8(x);
    let lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    _mm512_permutexvar_ps(lanes, _mm512_castps256_ps512(half))
}
