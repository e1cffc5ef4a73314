//! The f16 layout: 32 strided sums per score, and one chain of fused multiply-adds per output element.

use super::softmax::{visible_mask, weigh};
use crate::attention::scratch::{Active, AttentionScratch, Line, QueryState};
use crate::isa::avx2::memory::{load_f16, load_f32, prefetch, store_bytes16, store_f32};
use crate::isa::vector::attention::{F16Tile, Line64};
use std::arch::x86_64::*;

/// Rounds a stored vector to f16; `false` if an element is not finite or is beyond f16.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store_halves(x: &[f32], stored: &mut [u8]) -> bool {
    let mut finite = true;
    for (stored, x) in stored.chunks_exact_mut(16).zip(x.chunks_exact(8)) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load_f32(x));
        store_bytes16(stored, halves);
        let magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
        finite &= _mm_movemask_epi8(_mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7bff))) == 0;
    }
    finite
}

/// Merges one tile into the segment of every active query.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn merge_tile(tile: &F16Tile<'_>, scratch: &mut AttentionScratch) {
    let AttentionScratch { active, states, segment, .. } = scratch;
    let segment = Line::eights_mut(segment);
    // Two queries share each conversion; only those that see the same keys can share the chains over values.
    let mut rest = active.as_slice();
    while let [first, tail @ ..] = rest {
        let done = active.len() - rest.len();
        rest = match tail {
            [second, tail @ ..] if (second.first, second.end) == (first.first, first.end) => {
                merge_queries(&[*first, *second], tile, states, segment);
                tail
            }
            _ => {
                merge_queries(&[*first], tile, states, segment);
                tail
            }
        };
        prefetch(tile.next, done..active.len() - rest.len(), active.len());
    }
}

/// Merges one tile into queries that see the same keys.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn merge_queries<const N: usize>(
    active: &[Active; N],
    tile: &F16Tile<'_>,
    states: &mut [QueryState],
    segment: &mut [[f32; 8]],
) {
    let head_dim = tile.head_dim;
    let (first, end) = (active[0].first, active[0].end);
    let mut queries: [&[f32]; N] = [&[]; N];
    for (query, active) in queries.iter_mut().zip(active) {
        *query = &tile.queries[active.element..][..head_dim];
    }
    let mut t = [[_mm256_setzero_ps(); 8]; N];
    for i in first / 8..end.div_ceil(8) {
        let scores = scores_of_eight_keys(&tile.keys[8 * i * 2 * head_dim..][..8 * 2 * head_dim], queries);
        for (t, scores) in t.iter_mut().zip(scores) {
            t[i] = scores;
        }
    }

    let mask = visible_mask(first, end);
    let mut p = [Line64([0.0; 64]); N];
    let mut factors = [(0f32, 0f32); N];
    for n in 0..N {
        let state = &mut states[active[n].query];
        let weights = weigh(&t[n], state.scale, &mask);
        for (to, p) in p[n].0.chunks_exact_mut(8).zip(weights.p) {
            store_f32(to, p);
        }
        factors[n] = state.segment.merge(weights.h, weights.l);
    }

    let eights = head_dim / 8;
    for column in (0..eights).step_by(4) {
        let sums = weighted_sums(&p, &tile.values[2 * 8 * column..], 2 * head_dim, first..end);
        for n in 0..N {
            let numerator = &mut segment[active[n].query * eights + column..][..4];
            let (old, new) = (_mm256_set1_ps(factors[n].0), _mm256_set1_ps(factors[n].1));
            for (o, sum) in numerator.iter_mut().zip(sums[n]) {
                let merged = _mm256_fmadd_ps(sum, new, _mm256_mul_ps(load_f32(o), old));
                store_f32(o, merged);
            }
        }
    }
}

/// The dot products of each query with eight keys: 32 strided sums each, added by halves.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn scores_of_eight_keys<const N: usize>(keys: &[u8], queries: [&[f32]; N]) -> [__m256; N] {
    let mut eighths = [[_mm256_setzero_ps(); 8]; N];
    for (i, key) in keys.chunks_exact(keys.len() / 8).enumerate() {
        let mut sums = [[_mm256_setzero_ps(); 4]; N];
        for (block, key) in key.chunks_exact(64).enumerate() {
            for quarter in 0..4 {
                let key = load_f16(&key[16 * quarter..]);
                for n in 0..N {
                    let query = load_f32(&queries[n][32 * block + 8 * quarter..]);
                    sums[n][quarter] = _mm256_fmadd_ps(key, query, sums[n][quarter]);
                }
            }
        }
        for n in 0..N {
            let [a, b, c, d] = sums[n];
            eighths[n][i] = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
        }
    }
    let mut scores = [_mm256_setzero_ps(); N];
    for (score, eighths) in scores.iter_mut().zip(eighths) {
        *score = fold_lanes(eighths);
    }
    scores
}

/// Lane `i` of the result is the sum of the lanes of vector `i`: each lane plus the one 4 further, then 2, then 1.
#[target_feature(enable = "avx2")]
#[inline]
fn fold_lanes(v: [__m256; 8]) -> __m256 {
    let mut fours = [_mm256_setzero_ps(); 4];
    for (i, four) in fours.iter_mut().enumerate() {
        let low = _mm256_permute2f128_ps::<0x20>(v[i], v[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(v[i], v[i + 4]);
        *four = _mm256_add_ps(low, high);
    }
    let twos = |a: __m256, b: __m256| {
        let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
        let low = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        _mm256_add_ps(low, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)))
    };
    let (a, b) = (twos(fours[0], fours[1]), twos(fours[2], fours[3]));
    _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(a, b), _mm256_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// For 32 dimensions, the chain over visible keys of weight times value. `values` starts at the first of the dimensions.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn weighted_sums<const N: usize>(
    p: &[Line64; N],
    values: &[u8],
    row_bytes: usize,
    visible: std::ops::Range<usize>,
) -> [[__m256; 4]; N] {
    let mut sums = [[_mm256_setzero_ps(); 4]; N];
    for key in visible {
        let row = &values[key * row_bytes..][..64];
        for quarter in 0..4 {
            let value = load_f16(&row[16 * quarter..]);
            for n in 0..N {
                sums[n][quarter] = _mm256_fmadd_ps(_mm256_set1_ps(p[n].0[key]), value, sums[n][quarter]);
            }
        }
    }
    sums
}
