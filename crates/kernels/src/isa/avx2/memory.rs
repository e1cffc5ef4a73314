//! Loads and stores of whole registers. Each takes the first elements of a slice, and panics if that is shorter.

use std::arch::x86_64::*;
use std::ops::Range;

/// 8 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_f32(x: &[f32]) -> __m256 {
    let x = &x[..8];
    // SAFETY: the slice covers the 32 bytes read, and the load needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_f32(to: &mut [f32], x: __m256) {
    let to = &mut to[..8];
    // SAFETY: the slice covers the 32 bytes written, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
}

/// 4 floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_f32x4(x: &[f32]) -> __m128 {
    let x = &x[..4];
    // SAFETY: the slice covers the 16 bytes read, and the load needs no alignment.
    unsafe { _mm_loadu_ps(x.as_ptr()) }
}

/// 8 integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_i32(x: &[i32]) -> __m256i {
    let x = &x[..8];
    // SAFETY: the slice covers the 32 bytes read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_i32(to: &mut [i32], x: __m256i) {
    let to = &mut to[..8];
    // SAFETY: the slice covers the 32 bytes written, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
}

/// 4 integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_i32x4(to: &mut [i32], x: __m128i) {
    let to = &mut to[..4];
    // SAFETY: the slice covers the 16 bytes written, and the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), x) }
}

/// 32 signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_i8(to: &mut [i8], x: __m256i) {
    let to = &mut to[..32];
    // SAFETY: the slice covers the 32 bytes written, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
}

/// 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_bytes32(x: &[u8]) -> __m256i {
    let x = &x[..32];
    // SAFETY: the slice covers the 32 bytes read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_bytes32(to: &mut [u8], x: __m256i) {
    let to = &mut to[..32];
    // SAFETY: the slice covers the 32 bytes written, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
}

/// 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_bytes16(x: &[u8]) -> __m128i {
    let x = &x[..16];
    // SAFETY: the slice covers the 16 bytes read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn store_bytes16(to: &mut [u8], x: __m128i) {
    let to = &mut to[..16];
    // SAFETY: the slice covers the 16 bytes written, and the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), x) }
}

/// 8 floats as a file holds them.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_f32_bytes(x: &[u8]) -> __m256 {
    _mm256_castsi256_ps(load_bytes32(x))
}

/// 8 numbers of f16, widened.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(in crate::isa) fn load_f16(x: &[u8]) -> __m256 {
    _mm256_cvtph_ps(load_bytes16(x))
}

/// 8 numbers of bf16, widened.
#[inline]
#[target_feature(enable = "avx2")]
pub(in crate::isa) fn load_bf16(x: &[u8]) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_bytes16(x))))
}

/// Fetches the share of `bytes` that falls to steps `done.start..done.end` of `steps` into the second-level cache.
#[inline]
pub(in crate::isa) fn prefetch(bytes: &[u8], done: Range<usize>, steps: usize) {
    let part = bytes.len() * done.start / steps..bytes.len() * done.end / steps;
    for line in bytes[part].chunks(64) {
        // SAFETY: a prefetch does not access memory; the address is inside the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}
