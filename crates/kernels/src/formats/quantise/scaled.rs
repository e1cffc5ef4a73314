//! The searches behind `Q6_K` and `IQ4_NL`: weights as `scale * code`, no min, with the least squared error.

use super::sums::{LEAST_F16, NEGLIGIBLE, magnitude, rounded_within, sum, sums};
use super::{DoesNotFit, f16_nearest};
use crate::formats::IQ4_CODEBOOK;

/// A `Q6_K` block before its bits are packed: `d * scales[k / 16] * codes[k]`.
pub struct ScaledBlock {
    /// Exact in f16; either sign.
    pub d: f32,
    /// One per 16 weights.
    pub scales: [i8; 16],
    /// -32..=31 each.
    pub codes: [i8; 256],
}

/// State of the `Q6_K` search.
struct Candidate {
    d: f32,
    scales: [i8; 16],
    error: f32,
}

/// Finds the `Q6_K` block nearest to `x`: each 16 weights get a real scale, `d` turns them into 8-bit integers, and then
/// integers beside the real scales are tried on the weights while `d` is fitted to them.
pub fn search(x: &[f32; 256]) -> Result<ScaledBlock, DoesNotFit> {
    let most = magnitude(x);
    if most > 65504.0 * 128.0 * 32.0 {
        return Err(DoesNotFit(most));
    }
    if most <= NEGLIGIBLE {
        return Ok(ScaledBlock { d: 0.0, scales: [0; 16], codes: [0; 256] });
    }
    let groups: &[[f32; 16]; 16] = x.as_chunks().0.try_into().expect("256 weights are 16 groups of 16");
    let fits = groups.each_ref().map(|x| fit(x, &SIX_BIT_EXTREMES, six_bit_code));
    let mut best = choose(groups, &fits, storable(extreme(&fits) / -128.0)?);
    for _ in 0..REFITS {
        let Ok(d) = storable(refit(groups, &best)) else { break };
        let next = choose(groups, &fits, d);
        if next.error < best.error { best = next } else { break }
    }
    let mut codes = [0; 256];
    for ((x, codes), &scale) in groups.iter().zip(codes.as_chunks_mut::<16>().0).zip(&best.scales) {
        let inverse = inverse(best.d * f32::from(scale));
        *codes = x.map(|v| to_i8(six_bit_code(v * inverse)));
    }
    Ok(ScaledBlock { d: best.d, scales: best.scales, codes })
}

/// Finds the f16 scale and codebook indices nearest to the 32 weights of an `IQ4_NL` block.
pub fn search_codebook(x: &[f32; 32]) -> Result<(f32, [u8; 32]), DoesNotFit> {
    let most = magnitude(x);
    if most > 65504.0 * 127.0 {
        return Err(DoesNotFit(most));
    }
    if most <= NEGLIGIBLE {
        return Ok((0.0, [8; 32]));
    }
    let d = storable(fit(x, &CODEBOOK_EXTREMES, codebook_value))?;
    let inverse = inverse(d);
    let error = sum(x, |v| {
        let e = d * codebook_value(v * inverse) - v;
        e * e
    });
    // The codebook has no zero, so that among f16's least scales none at all can be the better one.
    if error > sum(x, |v| v * v) {
        return Ok((0.0, [8; 32]));
    }
    Ok((d, x.map(|v| codebook_index(v * inverse))))
}

/// Rounds of fitting `d` to the integer scales; further rounds lower the error by less than 0.1 %.
const REFITS: usize = 2;

/// Codes tried for the weight of greatest magnitude: both ends of the range, a little inside and outside them.
const SIX_BIT_EXTREMES: [f32; 8] = [-32.8, -32.4, -32.0, -31.6, -31.2, 30.6, 31.0, 31.4];
const CODEBOOK_EXTREMES: [f32; 12] =
    [-140.0, -134.0, -129.0, -124.0, -119.0, -114.0, 104.0, 108.0, 113.0, 118.0, 123.0, 128.0];

/// The real scale under which `x` is nearest to multiples of `value`'s codes.
fn fit<const N: usize>(x: &[f32; N], extremes: &[f32], value: impl Fn(f32) -> f32) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() <= NEGLIGIBLE * NEGLIGIBLE {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for code in extremes {
        let inverse = code / extreme;
        let [qx, qq] = sums(x, |v| {
            let q = value(v * inverse);
            [q * v, q * q]
        });
        // The least squares scale is qx / qq, and this is how much of sum(x^2) it explains.
        if qq > 0.0 && qx * (qx / qq) > most {
            (best, most) = (qx / qq, qx * (qx / qq));
        }
    }
    best
}

/// The first of the values of greatest magnitude.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |extreme: f32, &v| if v.abs() > extreme.abs() { v } else { extreme })
}

/// The nearest f16; the least of the same sign instead of zero, so that the weights decide.
fn storable(d: f32) -> Result<f32, DoesNotFit> {
    let rounded = f16_nearest(d)?;
    Ok(if rounded == 0.0 { LEAST_F16.copysign(d) } else { rounded })
}

/// The cheapest integer scale of every group under `d`.
fn choose(groups: &[[f32; 16]; 16], fits: &[f32; 16], d: f32) -> Candidate {
    let (mut scales, mut error) = ([0; 16], 0.0);
    for ((x, fit), best) in groups.iter().zip(fits).zip(&mut scales) {
        let mut least = f32::INFINITY;
        let nearest = rounded_within(fit / d, -127.0, 126.0);
        for scale in [nearest, nearest - 1.0, nearest + 1.0] {
            let (step, inverse) = (d * scale, inverse(d * scale));
            let error = sum(x, |v| {
                let e = step * six_bit_code(v * inverse) - v;
                e * e
            });
            if error < least {
                (*best, least) = (to_i8(scale), error);
            }
        }
        error += least;
    }
    Candidate { d, scales, error }
}

/// The `d` that minimises the squared error under the chosen scales and codes.
fn refit(groups: &[[f32; 16]; 16], at: &Candidate) -> f32 {
    let (mut ax, mut aa) = (0.0, 0.0);
    for (x, &scale) in groups.iter().zip(&at.scales) {
        let inverse = inverse(at.d * f32::from(scale));
        let [qx, qq] = sums(x, |v| {
            let q = six_bit_code(v * inverse);
            [q * v, q * q]
        });
        ax += f32::from(scale) * qx;
        aa += f32::from(scale) * f32::from(scale) * qq;
    }
    ax / aa
}

/// `1 / scale`, and zero for zero: every code stands for zero then.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn six_bit_code(v: f32) -> f32 {
    rounded_within(v, -32.0, 31.0)
}

#[expect(clippy::cast_possible_truncation, reason = "an integer within -128..=127")]
fn to_i8(v: f32) -> i8 {
    v as i8
}

/// The codebook's value nearest to `v`.
fn codebook_value(v: f32) -> f32 {
    MIDDLES.iter().fold(f32::from(IQ4_CODEBOOK[0]), |value, (middle, gap)| value + if v > *middle { *gap } else { 0.0 })
}

/// Index of the codebook's value nearest to `v`.
fn codebook_index(v: f32) -> u8 {
    MIDDLES.iter().map(|(middle, _)| u8::from(v > *middle)).sum()
}

/// Halfway between each value of the codebook and the next, and the gap between the two.
const MIDDLES: [(f32, f32); 15] = {
    let mut middles = [(0.0, 0.0); 15];
    let mut k = 0;
    while k < 15 {
        let (low, high) = (IQ4_CODEBOOK[k] as f32, IQ4_CODEBOOK[k + 1] as f32);
        middles[k] = ((low + high) / 2.0, high - low);
        k += 1;
    }
    middles
};
