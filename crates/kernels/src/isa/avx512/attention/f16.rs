//! The f16 layout: 32 strided sums per score, and one chain of fused multiply-adds per output element.

use super::softmax::{add_to_numerator, visible_mask, weigh};
use crate::attention::scratch::{Active, AttentionScratch, Line, QueryState};
use crate::isa::avx2::memory::prefetch;
use crate::isa::avx512::memory::{load_f16, load_f32, load_line, store_line};
use crate::isa::vector::attention::F16Tile;
use std::arch::x86_64::*;
use std::ops::Range;

/// Merges one tile into the segment of every active query.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn merge_tile(tile: &F16Tile<'_>, scratch: &mut AttentionScratch) {
    let AttentionScratch { active, states, segment, .. } = scratch;
    // Up to four queries share each conversion; only those that see the same keys can share the chains over values.
    let mut rest = active.as_slice();
    while let Some(first) = rest.first() {
        let alike = rest.iter().take(4).take_while(|a| (a.first, a.end) == (first.first, first.end)).count();
        let done = active.len() - rest.len();
        rest = match (alike, rest) {
            (4, [a, b, c, d, rest @ ..]) => {
                merge_queries(&[*a, *b, *c, *d], tile, states, segment);
                rest
            }
            (2 | 3, [a, b, rest @ ..]) => {
                merge_queries(&[*a, *b], tile, states, segment);
                rest
            }
            (_, rest) => {
                merge_queries(&[*first], tile, states, segment);
                &rest[1..]
            }
        };
        prefetch(tile.next, done..active.len() - rest.len(), active.len());
    }
}

/// Merges one tile into queries that see the same keys.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn merge_queries<const N: usize>(
    active: &[Active; N],
    tile: &F16Tile<'_>,
    states: &mut [QueryState],
    segment: &mut [Line<f32>],
) {
    let head_dim = tile.head_dim;
    let (first, end) = (active[0].first, active[0].end);
    let mut queries: [&[f32]; N] = [&[]; N];
    for (query, active) in queries.iter_mut().zip(active) {
        *query = &tile.queries[active.element..][..head_dim];
    }
    let mut t = [[_mm512_setzero_ps(); 4]; N];
    for i in first / 16..end.div_ceil(16) {
        let scores = scores_of_sixteen_keys(&tile.keys[16 * i * 2 * head_dim..][..16 * 2 * head_dim], queries);
        for (t, scores) in t.iter_mut().zip(scores) {
            t[i] = scores;
        }
    }

    let mask = visible_mask(first, end);
    let mut p = [[Line::ZERO_F32; 4]; N];
    let mut factors = [(0f32, 0f32); N];
    for n in 0..N {
        let state = &mut states[active[n].query];
        let weights = weigh(&t[n], state.scale, &mask);
        for (to, p) in p[n].iter_mut().zip(weights.p) {
            store_line(to, p);
        }
        factors[n] = state.segment.merge(weights.h, weights.l);
    }

    let lines = head_dim / Line::<f32>::LANES;
    let mut column = 0;
    while column < lines {
        let values = &tile.values[2 * 16 * column..];
        // Four lines at a time; heads of 32, 96, ... end with two.
        if column + 4 <= lines {
            let sums: [[_; 4]; N] = weighted_sums(&p, values, 2 * head_dim, first..end);
            for n in 0..N {
                add_to_numerator(&mut segment[active[n].query * lines + column..][..4], &sums[n], factors[n]);
            }
            column += 4;
        } else {
            let sums: [[_; 2]; N] = weighted_sums(&p, values, 2 * head_dim, first..end);
            for n in 0..N {
                add_to_numerator(&mut segment[active[n].query * lines + column..][..2], &sums[n], factors[n]);
            }
            column += 2;
        }
    }
}

/// The dot products of each query with sixteen keys: 32 strided sums each, added by halves.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn scores_of_sixteen_keys<const N: usize>(keys: &[u8], queries: [&[f32]; N]) -> [__m512; N] {
    let mut sixteenths = [[Line::ZERO_F32; 16]; N];
    // Two keys share each load of a query.
    let row_bytes = keys.len() / 16;
    for (i, pair) in keys.chunks_exact(2 * row_bytes).enumerate() {
        let (one, two) = pair.split_at(row_bytes);
        let mut sums = [[[_mm512_setzero_ps(); 2]; N]; 2];
        for (block, (one, two)) in one.chunks_exact(64).zip(two.chunks_exact(64)).enumerate() {
            for half in 0..2 {
                let keys = [load_f16(&one[32 * half..]), load_f16(&two[32 * half..])];
                for n in 0..N {
                    let query = load_f32(&queries[n][32 * block + 16 * half..]);
                    for k in 0..2 {
                        sums[k][n][half] = _mm512_fmadd_ps(keys[k], query, sums[k][n][half]);
                    }
                }
            }
        }
        for n in 0..N {
            for k in 0..2 {
                store_line(&mut sixteenths[n][2 * i + k], _mm512_add_ps(sums[k][n][0], sums[k][n][1]));
            }
        }
    }
    let mut scores = [_mm512_setzero_ps(); N];
    for (score, sixteenths) in scores.iter_mut().zip(&sixteenths) {
        *score = fold_lanes(sixteenths);
    }
    scores
}

/// Lane `i` of the result is the sum of line `i`: each lane plus the one 8 further, then 4, then 2, then 1.
#[target_feature(enable = "avx512f")]
#[inline]
fn fold_lanes(v: &[Line<f32>; 16]) -> __m512 {
    // Each helper folds two vectors into one; the order of lines makes the last one come out in order.
    let eights = |a: usize, b: usize| {
        let (a, b) = (load_line(&v[a]), load_line(&v[b]));
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    };
    let fours = |first: usize| {
        let (a, b) = (eights(first, first + 4), eights(first + 8, first + 12));
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
    };
    let twos = |first: usize| {
        let (a, b) = (_mm512_castps_pd(fours(first)), _mm512_castps_pd(fours(first + 1)));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        _mm512_add_ps(low, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
    };
    let (a, b) = (twos(0), twos(2));
    _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// For LINES times 16 dimensions, the chain over visible keys of weight times value. `values` starts at the first dimension.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn weighted_sums<const N: usize, const LINES: usize>(
    p: &[[Line<f32>; 4]; N],
    values: &[u8],
    row_bytes: usize,
    visible: Range<usize>,
) -> [[__m512; LINES]; N] {
    let mut sums = [[_mm512_setzero_ps(); LINES]; N];
    for key in visible {
        let row = &values[key * row_bytes..][..32 * LINES];
        for i in 0..LINES {
            let value = load_f16(&row[32 * i..]);
            for n in 0..N {
                let weight = _mm512_set1_ps(p[n][key / 16].0[key % 16]);
                sums[n][i] = _mm512_fmadd_ps(weight, value, sums[n][i]);
            }
        }
    }
    sums
}
