//! Loads and stores of whole registers; those of half a register are AVX2's. Each takes the first elements of a slice, and
//! panics if that is shorter.

use std::arch::x86_64::*;

use crate::attention::scratch::Line;
use crate::isa::avx2::memory::load_bytes32;

/// 16 floats.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_f32(x: &[f32]) -> __m512 {
    let x = &x[..16];
    // SAFETY: the slice covers the 64 bytes read, and the load needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_f32(to: &mut [f32], x: __m512) {
    let to = &mut to[..16];
    // SAFETY: the slice covers the 64 bytes written, and the store needs no alignment.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_line(x: &Line<f32>) -> __m512 {
    // SAFETY: the reference covers the 64 bytes read and is aligned to them.
    unsafe { _mm512_load_ps(x.0.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_line(to: &mut Line<f32>, x: __m512) {
    // SAFETY: the reference covers the 64 bytes written and is aligned to them.
    unsafe { _mm512_store_ps(to.0.as_mut_ptr(), x) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_line_i32(x: &Line<i32>) -> __m512i {
    // SAFETY: the reference covers the 64 bytes read and is aligned to them.
    unsafe { _mm512_load_si512(x.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store_line_i32(to: &mut Line<i32>, x: __m512i) {
    // SAFETY: the reference covers the 64 bytes written and is aligned to them.
    unsafe { _mm512_store_si512(to.0.as_mut_ptr().cast(), x) }
}

/// 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_bytes64(x: &[u8]) -> __m512i {
    let x = &x[..64];
    // SAFETY: the slice covers the 64 bytes read, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// 16 floats as a file holds them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_f32_bytes(x: &[u8]) -> __m512 {
    _mm512_castsi512_ps(load_bytes64(x))
}

/// 16 numbers of f16, widened.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_f16(x: &[u8]) -> __m512 {
    _mm512_cvtph_ps(load_bytes32(x))
}

/// 16 numbers of bf16, widened.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load_bf16(x: &[u8]) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_bytes32(x))))
}
