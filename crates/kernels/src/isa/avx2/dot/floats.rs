//! Rule 4b: float rows in 32 strided lanes, four registers per row and token.

use std::arch::x86_64::{__m256 as V, _mm256_fmadd_ps as fma, _mm256_setzero_ps as zero};

use crate::isa::avx2::memory::{load_bf16, load_f16, load_f32, load_f32_bytes, store_f32};
use crate::isa::vector::float_panels::float_panels;

const LANES: usize = 8;
/// Rows and tokens multiplied together: what the registers hold.
const ROWS: usize = 1;
const TOKENS: usize = 3;
/// Rows multiplied together with a single token.
const ROWS_OF_ONE: usize = 2;

float_panels!("avx2,fma,f16c");
