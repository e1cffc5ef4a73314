//! Rule 4b: float rows in 32 strided lanes, two registers per row and token.

use std::arch::x86_64::{__m512 as V, _mm512_fmadd_ps as fma, _mm512_setzero_ps as zero};

use crate::isa::avx512::memory::{load_bf16, load_f16, load_f32, load_f32_bytes, store_f32};
use crate::isa::vector::float_panels::float_panels;

const LANES: usize = 16;
/// Rows and tokens multiplied together: what the registers hold.
const ROWS: usize = 4;
const TOKENS: usize = 3;
/// Rows multiplied together with a single token.
const ROWS_OF_ONE: usize = 4;

float_panels!("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c");
