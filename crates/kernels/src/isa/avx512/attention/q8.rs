//! The q8 layout: query codes, repacking a page, and the two integer products.
//!
//! A packed row of keys is four dimensions for all 64 keys; a packed row of values is four keys for all dimensions.

use super::softmax::{Mask, TileWeights, add_to_numerator, visible_mask, weigh};
use crate::attention::reference::WEIGHT_BITS;
use crate::attention::scratch::{Active, AttentionScratch, Line, QueryState};
use crate::attention::store::QUERY_CODE_MAX;
use crate::exp2::{ROUND_TO_INTEGER, pow2};
use crate::isa::avx2::attention::q8::Step;
use crate::isa::avx2::memory::{load_bytes16, load_bytes32, prefetch, store_i32x4};
use crate::isa::avx512::memory::{load_bytes64, load_f32, load_line_i32, store_line_i32};
use crate::isa::vector::attention::{PreparedQuery, Q8Tile};
use std::arch::x86_64::*;

/// Keys of a packed key row, in lines.
const KEY_LINES: usize = 4;

/// A query code is this many bits of low part below a signed byte.
const QUERY_LOW_BITS: i32 = 4;

/// A value weight is two bytes.
const WEIGHT_LOW_BITS: u32 = 8;

/// Packed keys are stored plus this, which makes them unsigned.
const KEY_SHIFT: i32 = 128;

/// Quantises a query to codes within +-1023: high bytes of all dimensions, then low ones. The shift of the keys adds
/// `KEY_SHIFT` times the sum of the codes to every dot product, which the correction takes away.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn prepare(query: &[f32], codes: &mut [i32]) -> Option<PreparedQuery> {
    let step = Step::new(query, QUERY_CODE_MAX)?;
    let mut sums = _mm256_setzero_si256();
    let (high, low) = codes.split_at_mut(codes.len() / 2);
    for ((x, high), low) in query.chunks_exact(16).zip(high.as_chunks_mut::<4>().0).zip(low.as_chunks_mut::<4>().0) {
        let wide = step.sixteen_codes(x);
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(wide, _mm256_set1_epi16(1)));
        store_i32x4(high, _mm256_cvtepi16_epi8(_mm256_srai_epi16::<QUERY_LOW_BITS>(wide)));
        store_i32x4(low, _mm256_cvtepi16_epi8(_mm256_and_si256(wide, _mm256_set1_epi16((1 << QUERY_LOW_BITS) - 1))));
    }
    let sum = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(sums));
    Some(PreparedQuery { scale: step.scale, correction: -KEY_SHIFT * sum })
}

/// Merges one tile into the segment of every active query.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn merge_tile(tile: &Q8Tile<'_>, scratch: &mut AttentionScratch) {
    let head_dim = tile.head_dim;
    let AttentionScratch { active, states, codes, segment, keys, values, .. } = scratch;
    let keys = &mut keys[..head_dim / 4 * KEY_LINES];
    let values = &mut values[..16 * head_dim / Line::<i32>::LANES];
    pack_keys(tile.head.keys, head_dim, keys);
    pack_values(tile.head.values, head_dim, values);
    let packed = Packed { keys, values, tile };
    let mut queries = Queries { states, codes, segment };
    let (pairs, single) = active.as_chunks::<2>();
    let steps = active.len().div_ceil(2);
    for (step, pair) in pairs.iter().enumerate() {
        prefetch(tile.next, step..step + 1, steps);
        queries.merge(pair, &packed);
    }
    if let [last] = single {
        prefetch(tile.next, steps - 1..steps, steps);
        queries.merge(&[*last], &packed);
    }
}

/// A page's keys and values as the products want them.
struct Packed<'a> {
    /// `[head_dim / 4][64]` quads of unsigned bytes
    keys: &'a [Line<i32>],
    /// `[16][head_dim]` quads of signed bytes
    values: &'a [Line<i32>],
    tile: &'a Q8Tile<'a>,
}

/// Query state that is kept from page to page, for all queries of the job.
struct Queries<'a> {
    states: &'a mut [QueryState],
    codes: &'a [i32],
    segment: &'a mut [Line<f32>],
}

impl Queries<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn merge<const N: usize>(&mut self, active: &[Active; N], packed: &Packed<'_>) {
        let head_dim = packed.tile.head_dim;
        let mut codes = Split { high: [&[]; N], low: [&[]; N] };
        for (n, active) in active.iter().enumerate() {
            let both = &self.codes[active.query * head_dim / 2..][..head_dim / 2];
            (codes.high[n], codes.low[n]) = both.split_at(head_dim / 4);
        }
        let keys = Rows { lines: packed.keys, row_lines: KEY_LINES, column: 0 };
        let dots = multiply::<N, KEY_LINES, { QUERY_LOW_BITS.cast_unsigned() }>(&codes, &keys, |sum, code, key| {
            _mm512_dpbusd_epi32(sum, key, code)
        });

        let mut weights = [TileBytes { high: [0; 16], low: [0; 16] }; N];
        let mut factors = [(0f32, 0f32); N];
        for n in 0..N {
            let state = &mut self.states[active[n].query];
            let mask = visible_mask(active[n].first, active[n].end);
            let t = scores(&dots[n], state.correction, packed.tile);
            let tile_weights = weigh(&t, state.scale, &mask);
            weights[n] = value_weights(&tile_weights, packed.tile, active[n].exponent, &mask);
            let (old, new) = state.segment.merge(tile_weights.h, tile_weights.l);
            factors[n] = (old, new * pow2((active[n].exponent - WEIGHT_BITS) as f32));
        }
        self.add_values(active, packed, &weights, &factors);
    }

    /// Adds the weighted values of the tile to each query's numerator.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn add_values<const N: usize>(
        &mut self,
        active: &[Active; N],
        packed: &Packed<'_>,
        weights: &[TileBytes; N],
        factors: &[(f32, f32); N],
    ) {
        let row_lines = packed.tile.head_dim / Line::<i32>::LANES;
        let first = active.iter().fold(16, |a, b| a.min(b.first / 4));
        let end = active.iter().fold(0, |a, b| a.max(b.end.div_ceil(4)));
        let mut quads = Split { high: [&[]; N], low: [&[]; N] };
        for (n, weights) in weights.iter().enumerate() {
            (quads.high[n], quads.low[n]) = (&weights.high[first..end], &weights.low[first..end]);
        }
        let lines = &packed.values[first * row_lines..end * row_lines];
        let dot = |sum, weight, value| _mm512_dpbusd_epi32(sum, weight, value);
        let mut column = 0;
        while column < row_lines {
            let rows = Rows { lines, row_lines, column };
            // Four lines at a time; heads of 32, 96, ... end with two.
            if column + 4 <= row_lines {
                let sums = multiply::<N, 4, WEIGHT_LOW_BITS>(&quads, &rows, dot);
                self.add_sums(active, (row_lines, column), &sums, factors);
                column += 4;
            } else {
                let sums = multiply::<N, 2, WEIGHT_LOW_BITS>(&quads, &rows, dot);
                self.add_sums(active, (row_lines, column), &sums, factors);
                column += 2;
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    fn add_sums<const N: usize, const LINES: usize>(
        &mut self,
        active: &[Active; N],
        (row_lines, column): (usize, usize),
        sums: &[[__m512i; LINES]; N],
        factors: &[(f32, f32); N],
    ) {
        for n in 0..N {
            let mut floats = [_mm512_setzero_ps(); LINES];
            for (float, sum) in floats.iter_mut().zip(sums[n]) {
                *float = _mm512_cvtepi32_ps(sum);
            }
            let numerator = &mut self.segment[active[n].query * row_lines + column..][..LINES];
            add_to_numerator(numerator, &floats, factors[n]);
        }
    }
}

/// For each of N queries, quads of bytes: the factors are `high * 2^bits + low`.
struct Split<'a, const N: usize> {
    high: [&'a [i32]; N],
    low: [&'a [i32]; N],
}

/// Both bytes of a tile's weights, in quads of neighbouring keys.
#[derive(Clone, Copy)]
struct TileBytes {
    high: [i32; 16],
    low: [i32; 16],
}

/// Packed rows of `row_lines` lines, of which a product takes some from line `column`.
struct Rows<'a> {
    lines: &'a [Line<i32>],
    row_lines: usize,
    column: usize,
}

/// For each of N queries, the sums over packed rows of quad times quad, by 16 lanes. `dot(sum, broadcast, line)` is the
/// instruction: which factor is unsigned depends on the product.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn multiply<const N: usize, const LINES: usize, const LOW_BITS: u32>(
    a: &Split<'_, N>,
    b: &Rows<'_>,
    dot: impl Fn(__m512i, __m512i, __m512i) -> __m512i,
) -> [[__m512i; LINES]; N] {
    let rows = b.lines.chunks_exact(b.row_lines);
    for n in 0..N {
        assert!(a.high[n].len() >= rows.len() && a.low[n].len() >= rows.len());
    }
    let mut high = [[_mm512_setzero_si512(); LINES]; N];
    let mut low = [[_mm512_setzero_si512(); LINES]; N];
    for (j, row) in rows.enumerate() {
        let row: &[Line<i32>; LINES] = row[b.column..b.column + LINES].first_chunk().expect("as many lines");
        for n in 0..N {
            let (a_high, a_low) = (_mm512_set1_epi32(a.high[n][j]), _mm512_set1_epi32(a.low[n][j]));
            for i in 0..LINES {
                let line = load_line_i32(&row[i]);
                high[n][i] = dot(high[n][i], a_high, line);
                low[n][i] = dot(low[n][i], a_low, line);
            }
        }
    }
    for n in 0..N {
        for i in 0..LINES {
            low[n][i] = _mm512_add_epi32(low[n][i], _mm512_slli_epi32::<LOW_BITS>(high[n][i]));
        }
    }
    low
}

/// Corrected dot products times key scales.
#[target_feature(enable = "avx512f")]
#[inline]
fn scores(dots: &[__m512i; KEY_LINES], correction: i32, tile: &Q8Tile<'_>) -> [__m512; 4] {
    let mut t = [_mm512_setzero_ps(); 4];
    for i in 0..4 {
        let dot = _mm512_add_epi32(dots[i], _mm512_set1_epi32(correction));
        t[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), load_f32(&tile.key_scales.0[16 * i..]));
    }
    t
}

/// Each key's weight times its value scale as an integer in 0..=2048.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn value_weights(weights: &TileWeights, tile: &Q8Tile<'_>, exponent: i32, mask: &Mask) -> TileBytes {
    let scale_up = _mm512_set1_ps(pow2((WEIGHT_BITS - exponent) as f32));
    let round = _mm512_set1_ps(ROUND_TO_INTEGER);
    let mut bytes = TileBytes { high: [0; 16], low: [0; 16] };
    let quads = bytes.high.as_chunks_mut::<4>().0.iter_mut().zip(bytes.low.as_chunks_mut::<4>().0);
    for (i, (high, low)) in quads.enumerate() {
        let scale = _mm512_mul_ps(load_f32(&tile.value_scales.0[16 * i..]), scale_up);
        let shifted = _mm512_castps_si512(_mm512_fmadd_ps(weights.p[i], scale, round));
        // The scale of a key that is not visible may be anything.
        let integer = _mm512_maskz_sub_epi32(mask[i], shifted, _mm512_castps_si512(round));
        store_i32x4(high, _mm512_cvtepi32_epi8(_mm512_srli_epi32::<WEIGHT_LOW_BITS>(integer)));
        store_i32x4(low, _mm512_cvtepi32_epi8(integer));
    }
    bytes
}

/// Keys `[64][head_dim]` signed bytes to `[head_dim / 4][64]` quads of unsigned ones.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn pack_keys(keys: &[u8], head_dim: usize, packed: &mut [Line<i32>]) {
    let shift = _mm512_set1_epi8(i8::MIN);
    for (group, keys) in keys.chunks_exact(16 * head_dim).enumerate() {
        for (block, packed) in packed.chunks_exact_mut(4 * KEY_LINES).enumerate() {
            // Four rows of bytes, each next to the ones 4, 8 and 12 further: 16 dimensions of sixteen keys.
            let mut rows = [_mm512_setzero_si512(); 4];
            for (i, row) in rows.iter_mut().enumerate() {
                let bytes = |far: usize| load_bytes16(&keys[(i + 4 * far) * head_dim + 16 * block..]);
                let near = _mm512_inserti32x4::<1>(_mm512_zextsi128_si512(bytes(0)), bytes(1));
                *row = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(near, bytes(2)), bytes(3));
            }
            let quads = transpose_words(rows);
            for i in 0..4 {
                store_line_i32(&mut packed[i * KEY_LINES + group], _mm512_xor_si512(quads[i], shift));
            }
        }
    }
}

/// Values `[64][head_dim]` bytes to `[16][head_dim]` quads of neighbouring keys.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn pack_values(values: &[u8], head_dim: usize, packed: &mut [Line<i32>]) {
    // Puts words 0, 4, 8, 12 into the lowest lane and so on, so that unpacking keeps dimensions in order.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (values, packed) in values.chunks_exact(4 * head_dim).zip(packed.chunks_exact_mut(head_dim / 16)) {
        for (block, packed) in packed.chunks_mut(4).enumerate() {
            let mut rows = [_mm512_setzero_si512(); 4];
            for (key, row) in rows.iter_mut().enumerate() {
                let bytes = &values[key * head_dim..(key + 1) * head_dim][64 * block..];
                *row = _mm512_permutexvar_epi32(order, load_up_to_64(bytes));
            }
            for (packed, quads) in packed.iter_mut().zip(interleave_bytes(rows)) {
                store_line_i32(packed, quads);
            }
        }
    }
}

/// Within each lane, word `w` of row `r` becomes word `r` of row `w`.
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose_words(rows: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b, c, d] = rows;
    let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Within each lane, byte `b` of all four rows becomes word `b`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn interleave_bytes(rows: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b, c, d] = rows;
    let (ab_low, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab_low, cd_low),
        _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// The first 64 bytes of `x`, or its 32 bytes and zeros: heads are multiples of 32.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_up_to_64(x: &[u8]) -> __m512i {
    if x.len() >= 64 { load_bytes64(x) } else { _mm512_zextsi256_si512(load_bytes32(x)) }
}
