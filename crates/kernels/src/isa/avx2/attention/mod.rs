//! Attention for CPUs with AVX2, FMA and F16C.
//!
//! Both products of a q8 tile are one kernel: 16-bit pairs of one factor are broadcast against 32 lanes of the other, so no
//! sum ever crosses lanes. For that a page is repacked once per job: keys with lanes along the 64 keys and pairs of
//! dimensions side by side, values with lanes along the dimensions and pairs of keys side by side.
//!
//! Roofline, per query and page of head_dim 128: 1024 multiply-adds of 16 pairs and as many additions, 512 cycles at two
//! multiply-adds a cycle; f16 2048 fused multiply-adds, 1024 cycles. A page of one head is 16.9 kB in q8 and 32.8 kB in f16:
//! 560 and 1090 ns at 30 GB/s. Measured by `bench_attention` on one Zen 5 core at 4.35 GHz with 30 GB/s:
//!
//! | ns                                | q8   | f16  |
//! |-----------------------------------|------|------|
//! | prefill, per query and page       | 182  | 362  |
//! | decode of 1 query, per page       | 935  | 1270 |
//! | decode of 4 queries, per page     | 1600 | 2100 |
//! | decode of 16 queries, per page    | 3470 | 6700 |
//!
//! Repacking a q8 page costs about as much as three queries, so decode of few queries is bound by it and by memory.

mod f16;
pub(in crate::isa) mod q8;
mod softmax;

use super::memory::{load_f32, store_f32};
use crate::attention::scratch::{AttentionScratch, Line};
use crate::attention::store::{self, Row, StoreVector};
use crate::attention::{AttentionError, AttentionJob, AttentionKernels, AttentionShape, KvLayout};
use crate::isa::vector::attention::{self as vector, F16Tile, PreparedQuery, Q8Tile, Segments, Stages};
use std::arch::x86_64::*;

pub(in crate::isa) const KERNELS: AttentionKernels = AttentionKernels { store_row, attend };

pub(in crate::isa) const STAGES: Stages =
    Stages { vector: StoreVector { codes: store_codes, halves: store_halves }, prepare, q8_tile, f16_tile, fold };

fn store_row(
    shape: &AttentionShape,
    layout: KvLayout,
    k: &[f32],
    v: &[f32],
    row: usize,
    page: &mut [u8],
) -> Result<(), AttentionError> {
    store::store_row(&STAGES.vector, shape, layout, Row { k, v, row }, page)
}

fn attend(job: &AttentionJob<'_>, scratch: &mut AttentionScratch, out: &mut [f32]) -> Result<(), AttentionError> {
    vector::attend(&STAGES, job, scratch, out)
}

fn store_codes(x: &[f32], codes: &mut [u8], scale: &mut [u8]) -> bool {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { q8::store_codes(x, codes, scale) }
}

fn store_halves(x: &[f32], stored: &mut [u8]) -> bool {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { f16::store_halves(x, stored) }
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

fn fold(segments: Segments<'_>) {
    // SAFETY: reached only through `KERNELS`, which is handed out only where the features are.
    unsafe { fold_segments(segments) }
}

/// Merges each open segment into its query's total: `total = segment * new + total * old`.
#[target_feature(enable = "avx2,fma")]
fn fold_segments(segments: Segments<'_>) {
    let Segments { states, total, segment } = segments;
    let eights = (2 * total.len() / states.len().max(1)).max(1);
    let (total, segment) = (Line::eights_mut(total), Line::eights(segment));
    let numerators = total.chunks_exact_mut(eights).zip(segment.chunks_exact(eights));
    for (state, (total, segment)) in states.iter_mut().zip(numerators) {
        if !state.in_segment {
            continue;
        }
        state.in_segment = false;
        let (old, new) = state.total.merge(state.segment.m, state.segment.l);
        let (old, new) = (_mm256_set1_ps(old), _mm256_set1_ps(new));
        for (total, segment) in total.iter_mut().zip(segment) {
            let merged = _mm256_fmadd_ps(load_f32(segment), new, _mm256_mul_ps(load_f32(total), old));
            store_f32(total, merged);
        }
    }
}
