//! Attention for CPUs with AVX-512 and its 8-bit dot products (VNNI).
//!
//! As in the AVX2 twin a page is repacked once per job so that no sum crosses lanes, but here quads of bytes are broadcast
//! against quads of bytes. One factor of that instruction is unsigned, the other signed: stored keys are shifted by 128 and
//! queries split into 16 times a signed byte plus a small one; weights are split into 256 times a byte plus a byte, which
//! are unsigned already.
//!
//! Roofline, per query and page of head_dim 128: 512 instructions of 64 multiply-adds, 256 cycles at two a cycle; f16 1024
//! fused multiply-adds of 16, 512 cycles. Measured as in the AVX2 twin, on the same core:
//!
//! | ns                                | q8   | f16  |
//! |-----------------------------------|------|------|
//! | prefill, per query and page       | 95   | 239  |
//! | decode of 1 query, per page       | 720  | 1070 |
//! | decode of 4 queries, per page     | 930  | 1780 |
//! | decode of 16 queries, per page    | 1900 | 4500 |
//!
//! Decode of up to four q8 queries runs at 60 to 80 % of the core's memory bandwidth.

mod f16;
mod q8;
mod softmax;

use crate::attention::scratch::AttentionScratch;
use crate::attention::{AttentionError, AttentionJob, AttentionKernels};
use crate::isa::avx2::attention as avx2;
use crate::isa::vector::attention::{self as vector, F16Tile, PreparedQuery, Q8Tile, Stages};

pub(super) const KERNELS: AttentionKernels = AttentionKernels { attend, ..avx2::KERNELS };

/// Storing rows and folding segments is left to AVX2: both are short.
const STAGES: Stages = Stages { prepare, q8_tile, f16_tile, ..avx2::STAGES };

fn attend(job: &AttentionJob<'_>, scratch: &mut AttentionScratch, out: &mut [f32]) -> Result<(), AttentionError> {
    vector::attend(&STAGES, job, scratch, out)
}

fn prepare(query: &[f32], codes: &mut [i32]) -> Option<PreparedQuery> {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { q8::prepare(query, codes) }
}

fn q8_tile(tile: &Q8Tile<'_>, scratch: &mut AttentionScratch) {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { q8::merge_tile(tile, scratch) }
}

fn f16_tile(tile: &F16Tile<'_>, scratch: &mut AttentionScratch) {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { f16::merge_tile(tile, scratch) }
}
