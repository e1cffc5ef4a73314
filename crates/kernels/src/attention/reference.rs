//! Scalar definition of attention: one query vector at a time, each line a line of the contract.

use super::page::{Q8Head, head_part, visible_pages, visible_rows};
use super::shape::HEAD_DIM_MAX;
use super::store::{self, KV_CODE_MAX, MAGNITUDE_MIN, QUERY_CODE_MAX, Row, StoreVector};
use super::{
    AttentionError, AttentionJob, AttentionKernels, AttentionScratch, AttentionShape, KvLayout, PAGE_ROWS, PageField,
    SEGMENT_PAGES,
};
use crate::exp2::{ROUND_TO_INTEGER, pow2, softmax_weight};
use half::f16;
use std::ops::Range;

/// The exponent of a tile's largest value scale is not taken below this.
pub(crate) const EXPONENT_MIN: i32 = -100;

/// Bits of a weight: value weights are integers in 0..=2^11.
pub(crate) const WEIGHT_BITS: i32 = 11;

/// The scalar definition.
pub(crate) const KERNELS: AttentionKernels = AttentionKernels { store_row, attend };

fn store_row(
    shape: &AttentionShape,
    layout: KvLayout,
    k: &[f32],
    v: &[f32],
    row: usize,
    page: &mut [u8],
) -> Result<(), AttentionError> {
    let vector = StoreVector { codes: store_codes, halves: store_halves };
    store::store_row(&vector, shape, layout, Row { k, v, row }, page)
}

fn store_codes(x: &[f32], codes: &mut [u8], scale: &mut [u8]) -> bool {
    let Some(quantiser) = Quantiser::new(x, KV_CODE_MAX) else { return false };
    for (code, &x) in codes.iter_mut().zip(x) {
        #[expect(clippy::cast_possible_truncation, reason = "a code is within -127..=127")]
        let signed = quantiser.code(x) as i8;
        *code = signed.cast_unsigned();
    }
    scale.copy_from_slice(&quantiser.scale.to_le_bytes());
    true
}

fn store_halves(x: &[f32], stored: &mut [u8]) -> bool {
    stored.chunks_exact_mut(2).zip(x).all(|(bytes, &x)| {
        let half = f16::from_f32(x);
        bytes.copy_from_slice(&half.to_le_bytes());
        half.is_finite()
    })
}

/// One head vector's step from floats to codes within +-`code_max`.
struct Quantiser {
    code_max: f32,
    /// `code_max / a`, or zero for a vector stored as zero.
    inverse: f32,
    /// `a / code_max`, or zero for a vector stored as zero.
    scale: f32,
}

impl Quantiser {
    /// `None` if an element is not finite.
    fn new(x: &[f32], code_max: f32) -> Option<Self> {
        if !x.iter().all(|x| x.is_finite()) {
            return None;
        }
        let magnitude = x.iter().fold(0f32, |a, x| a.max(x.abs()));
        if magnitude < MAGNITUDE_MIN {
            return Some(Self { code_max, inverse: 0.0, scale: 0.0 });
        }
        Some(Self { code_max, inverse: code_max / magnitude, scale: magnitude / code_max })
    }

    fn code(&self, x: f32) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "clamped to the range of codes")]
        let code = (x * self.inverse).round_ties_even().clamp(-self.code_max, self.code_max) as i32;
        code
    }
}

fn attend(job: &AttentionJob<'_>, scratch: &mut AttentionScratch, out: &mut [f32]) -> Result<(), AttentionError> {
    job.check(out)?;
    scratch.rows_per_pass(&job.shape)?;
    let head_dim = job.shape.head_dim();
    let columns = job.shape.heads_per_kv() * head_dim;
    for (row, (out, &position)) in out.chunks_exact_mut(columns).zip(job.positions).enumerate() {
        for (query, out) in job.query_row(row).chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)) {
            let query = Query::new(query, job).ok_or(AttentionError::NotFinite { what: "query row", row })?;
            let total = attend_query(job, &query, position)?;
            let inverse = 1.0 / total.l;
            out.iter_mut().zip(total.o).for_each(|(out, o)| *out = o * inverse);
            if !out.iter().all(|x| x.is_finite()) {
                return Err(AttentionError::NotFinite { what: "query row", row });
            }
        }
    }
    Ok(())
}

/// Segments start fresh and are merged ascending into the total.
fn attend_query(job: &AttentionJob<'_>, query: &Query<'_>, position: u32) -> Result<Running, AttentionError> {
    let mut total = Running::EMPTY;
    let mut segment = Running::EMPTY;
    let pages = visible_pages(position, job.window);
    for index in pages.clone() {
        let bytes = job.page_bytes(index)?;
        let part = &bytes[head_part(bytes, job.layout, &job.shape, job.kv_head)];
        let visible = visible_rows(position, job.window, index);
        let tile = match query {
            Query::Q8 { codes, scale } => {
                let head = Q8Head::new(part, job.shape.head_dim());
                tile_q8(codes, *scale, &head, visible)
                    .map_err(|row| AttentionError::BadValueScale { page: index, row })?
            }
            Query::F16 { values, scale } => tile_f16(values, *scale, part, visible),
        };
        segment.merge(&tile);
        if index + 1 == pages.end || (index + 1).is_multiple_of(SEGMENT_PAGES) {
            total.merge(&Tile { h: segment.m, l: segment.l, o: segment.o, unit: 1.0 });
            segment = Running::EMPTY;
        }
    }
    Ok(total)
}

/// One query vector as the layout needs it, with the factor that turns scores into exponents of two.
enum Query<'a> {
    Q8 { codes: Vec<i32>, scale: f32 },
    F16 { values: &'a [f32], scale: f32 },
}

impl<'a> Query<'a> {
    /// `None` if an element is not finite.
    fn new(query: &'a [f32], job: &AttentionJob<'_>) -> Option<Self> {
        let score_scale = job.shape.score_scale();
        match job.layout {
            KvLayout::Q8 => {
                let quantiser = Quantiser::new(query, QUERY_CODE_MAX)?;
                let codes = query.iter().map(|&x| quantiser.code(x)).collect();
                Some(Self::Q8 { codes, scale: quantiser.scale * score_scale })
            }
            KvLayout::F16 => {
                query.iter().all(|x| x.is_finite()).then_some(Self::F16 { values: query, scale: score_scale })
            }
        }
    }
}

/// Contribution of one tile: `2^h` times `l` to the denominator and `2^h` times `unit` times `o` to the numerator.
struct Tile {
    h: f32,
    l: f32,
    o: [f32; HEAD_DIM_MAX],
    unit: f32,
}

/// Numerator and denominator so far, both in units of `2^m`.
struct Running {
    m: f32,
    l: f32,
    o: [f32; HEAD_DIM_MAX],
}

impl Running {
    const EMPTY: Self = Self { m: f32::NEG_INFINITY, l: 0.0, o: [0.0; HEAD_DIM_MAX] };

    fn merge(&mut self, tile: &Tile) {
        let m = if tile.h > self.m { tile.h } else { self.m };
        let (old, new) = (pow2(self.m - m), pow2(tile.h - m));
        self.m = m;
        self.l = self.l.mul_add(old, new * tile.l);
        let gain = new * tile.unit;
        self.o.iter_mut().zip(tile.o).for_each(|(o, t)| *o = t.mul_add(gain, *o * old));
    }
}

/// Fails with the row of a visible value scale that is negative or not finite.
fn tile_q8(codes: &[i32], scale: f32, head: &Q8Head<'_>, visible: Range<usize>) -> Result<Tile, usize> {
    let head_dim = codes.len();
    let signed = |bytes: &[u8], row: usize, d: usize| i32::from(bytes[row * head_dim + d].cast_signed());
    let (key_scales, value_scales) = (head.key_scales(), head.value_scales());
    let score = |row: usize| {
        let dot: i32 = (0..head_dim).map(|d| codes[d] * signed(head.keys, row, d)).sum();
        dot as f32 * key_scales[row]
    };
    let (h, p, l) = softmax_of_tile(score, scale, visible.clone());

    let largest = largest_scale(&value_scales, visible.clone())?;
    let exponent = binary_exponent(largest).max(EXPONENT_MIN);
    let scale_up = pow2((WEIGHT_BITS - exponent) as f32);
    let weight = |row: usize| {
        let shifted = p[row].mul_add(value_scales[row] * scale_up, ROUND_TO_INTEGER);
        shifted.to_bits().wrapping_sub(ROUND_TO_INTEGER.to_bits()).cast_signed()
    };
    let mut o = [0f32; HEAD_DIM_MAX];
    for (d, o) in o[..head_dim].iter_mut().enumerate() {
        let sum: i32 = visible.clone().map(|row| weight(row) * signed(head.values, row, d)).sum();
        *o = sum as f32;
    }
    Ok(Tile { h, l, o, unit: pow2((exponent - WEIGHT_BITS) as f32) })
}

fn tile_f16(query: &[f32], scale: f32, part: &[u8], visible: Range<usize>) -> Tile {
    let head_dim = query.len();
    let [keys, values] = [PageField::Keys, PageField::Values].map(|field| &part[KvLayout::F16.field(head_dim, field)]);
    let half = |bytes: &[u8], row: usize, d: usize| {
        let at = 2 * (row * head_dim + d);
        f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
    };
    let score = |row: usize| {
        let mut lanes = [0f32; 32];
        for d in 0..head_dim {
            lanes[d % 32] = half(keys, row, d).mul_add(query[d], lanes[d % 32]);
        }
        for step in [16, 8, 4, 2, 1] {
            for lane in 0..step {
                lanes[lane] += lanes[lane + step];
            }
        }
        lanes[0]
    };
    let (h, p, l) = softmax_of_tile(score, scale, visible.clone());
    let mut o = [0f32; HEAD_DIM_MAX];
    for (d, o) in o[..head_dim].iter_mut().enumerate() {
        *o = visible.clone().fold(0.0, |o, row| p[row].mul_add(half(values, row, d), o));
    }
    Tile { h, l, o, unit: 1.0 }
}

/// The tile's exponent `h`, the weight of each key (zero where not visible) and the sum of the weights.
///
/// If a visible score or `h` is not finite, the sum is NaN, which every later merge keeps.
fn softmax_of_tile(score: impl Fn(usize) -> f32, scale: f32, visible: Range<usize>) -> (f32, [f32; PAGE_ROWS], f32) {
    let mut t = [0f32; PAGE_ROWS];
    visible.clone().for_each(|row| t[row] = score(row));
    let t_max = t[visible.clone()].iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let h = (t_max * scale).ceil();
    let mut p = [0f32; PAGE_ROWS];
    if !h.is_finite() || !t[visible.clone()].iter().all(|t| t.is_finite()) {
        return (h, p, f32::NAN);
    }
    let (slope, shift) = (scale / 64.0, h.mul_add(-1.0 / 64.0, 1.0));
    for row in visible {
        let u = t[row].mul_add(slope, shift).clamp(0.0, 1.0);
        p[row] = softmax_weight(u);
    }
    (h, p, sum_of_weights(&p))
}

/// Eight strided sums, then pairwise.
fn sum_of_weights(p: &[f32; PAGE_ROWS]) -> f32 {
    let mut a = [0f32; 8];
    for (k, &p) in p.iter().enumerate() {
        a[k % 8] += p;
    }
    ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))
}

/// The largest visible value scale; fails with the first row whose scale is negative or not finite.
pub(crate) fn largest_scale(scales: &[f32; PAGE_ROWS], visible: Range<usize>) -> Result<f32, usize> {
    match visible.clone().find(|&row| scales[row].to_bits() >= f32::INFINITY.to_bits()) {
        Some(row) => Err(row),
        None => Ok(scales[visible].iter().fold(0.0, |a, &b| a.max(b))),
    }
}

/// The `E` for which `x` is in [2^(E-1), 2^E). For zero and subnormal numbers -126, which the caller clamps anyway.
pub(crate) fn binary_exponent(x: f32) -> i32 {
    (x.to_bits() >> 23).cast_signed() - 126
}
