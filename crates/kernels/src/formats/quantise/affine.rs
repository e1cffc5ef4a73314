//! The search behind `Q4_K` and `Q5_K`: 256 weights as `d * scale * code - dmin * min` with the least squared error.
//!
//! 1. Each 32 weights get a real scale and min: codes are rounded under several scales, each time followed by the least
//!    squares fit of scale and min to those codes.
//! 2. `d` and `dmin` are set so that the largest of them become 63.
//! 3. Integer scales and mins beside the real ones are tried on the weights themselves; then `d` and `dmin` are fitted
//!    to the chosen integers, and the step is repeated while the error falls.

use super::sums::{LEAST_F16, NEGLIGIBLE, magnitude, rounded_within, sum, sums};
use super::{DoesNotFit, f16_at_least, f16_nearest};

/// A block before its bits are packed.
pub struct AffineBlock {
    /// Scale of the scales and scale of the mins, both exact in f16.
    pub d: f32,
    pub dmin: f32,
    /// 0..=63 each.
    pub scales: [u8; 8],
    pub mins: [u8; 8],
    /// 0..=`STEPS` each.
    pub codes: [u8; 256],
}

/// A real scale and min of 32 weights: `scale * code - min`.
#[derive(Clone, Copy, Default)]
struct Fit {
    scale: f32,
    min: f32,
}

/// The integers of 32 weights, and what they cost.
#[derive(Clone, Copy)]
struct Choice {
    scale: u8,
    min: u8,
    error: f32,
}

/// State of the search: f16-exact scales and the integers chosen under them.
struct Candidate {
    d: f32,
    dmin: f32,
    choices: [Choice; 8],
    error: f32,
}

/// Finds the block of `STEPS + 1` levels nearest to `x`.
pub fn search<const STEPS: u8>(x: &[f32; 256]) -> Result<AffineBlock, DoesNotFit> {
    let most = magnitude(x);
    if most > 65504.0 * 63.0 * f32::from(STEPS) {
        return Err(DoesNotFit(most));
    }
    if most <= NEGLIGIBLE {
        return Ok(AffineBlock { d: 0.0, dmin: 0.0, scales: [0; 8], mins: [0; 8], codes: [0; 256] });
    }
    let groups: &[[f32; 32]; 8] = x.as_chunks().0.try_into().expect("256 weights are 8 groups of 32");
    let fits = groups.each_ref().map(fit::<STEPS>);
    let largest = |part: fn(&Fit) -> f32| magnitude(&fits.each_ref().map(part));
    let (d, dmin) = storable(largest(|fit| fit.scale) / 63.0, largest(|fit| fit.min) / 63.0)?;
    let mut best = choose::<STEPS>(groups, &fits, d, dmin);
    for _ in 0..REFITS {
        let (d, dmin) = refit::<STEPS>(groups, &best);
        // Ill-conditioned equations give scales that do not fit, are no numbers or only raise the error.
        let Ok((d, dmin)) = storable(d, dmin) else { break };
        let next = choose::<STEPS>(groups, &fits, d, dmin);
        if next.error < best.error { best = next } else { break }
    }
    Ok(encode::<STEPS>(groups, &best))
}

/// Rounds of fitting `d` and `dmin` to the integers; further rounds lower the error by less than 0.1 %.
const REFITS: usize = 2;

/// Both scales as f16. A positive `d` stays positive, and `d` is kept above `dmin / 512`: the contract's rule 1 can then
/// always fold mins into 16-bit integers, and a step that fine is below the rounding of `dmin` anyway.
fn storable(d: f32, dmin: f32) -> Result<(f32, f32), DoesNotFit> {
    let dmin = f16_nearest(dmin)?;
    let floor = f16_at_least(dmin / 512.0);
    let d = if d > LEAST_F16 { f16_nearest(d)? } else { f16_at_least(d) };
    Ok((if d > floor { d } else { floor }, dmin))
}

/// The best real scale and min of 32 weights.
fn fit<const STEPS: u8>(x: &[f32; 32]) -> Fit {
    let low = x.iter().fold(0.0, |low: f32, &v| if v < low { v } else { low });
    let high = x.iter().fold(f32::NEG_INFINITY, |high, &v| if v > high { v } else { high });
    let range = high - low;
    if range <= NEGLIGIBLE * NEGLIGIBLE {
        return Fit { scale: 0.0, min: -low };
    }
    // Heights above the least weight keep their digits where weights far from zero would cancel.
    let heights = x.map(|v| v - low);
    let sum_h = sum(&heights, |h| h);
    let (mut best, mut most) = (Fit { scale: range / f32::from(STEPS), min: -low }, f32::NEG_INFINITY);
    for stretch in STRETCHES {
        let inverse = (f32::from(STEPS) + stretch) / range;
        let [q, qq, qh] = sums(&heights, |h| {
            let q = code_of::<STEPS>(h * inverse);
            [q, q * q, q * h]
        });
        let (fit, gain) = least_squares([q, qq, qh, sum_h], low);
        if gain > most {
            (best, most) = (fit, gain);
        }
    }
    best
}

/// Steps added to the range when codes are rounded: shrinking or stretching it trades clipping for resolution.
const STRETCHES: [f32; 8] = [-1.2, -0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9];

/// Scale and min minimising the squared error for given codes `q` of heights `h` above `low`, from their sums `q`, `q^2`,
/// `q h` and `h`; and by how much they reduce the error below `sum(h^2)`.
fn least_squares([q, qq, qh, h]: [f32; 4], low: f32) -> (Fit, f32) {
    let determinant = 32.0 * qq - q * q;
    if determinant > 0.0 {
        let scale = (32.0 * qh - q * h) / determinant;
        let rise = (qq * h - q * qh) / determinant;
        if scale >= 0.0 && low + rise <= 0.0 {
            return (Fit { scale, min: -(low + rise) }, scale * qh + rise * h);
        }
    }
    // No min, because it would be negative: the codes scale the weights themselves, `h + low`.
    let qx = qh + low * q;
    if qx > 0.0 {
        let scale = qx / qq;
        return (Fit { scale, min: 0.0 }, scale * qx - low * (2.0 * h + 32.0 * low));
    }
    (Fit::default(), -low * (2.0 * h + 32.0 * low))
}

/// The cheapest integers for every group under `d` and `dmin`.
fn choose<const STEPS: u8>(groups: &[[f32; 32]; 8], fits: &[Fit; 8], d: f32, dmin: f32) -> Candidate {
    let mut choices = [Choice { scale: 0, min: 0, error: f32::INFINITY }; 8];
    for ((x, fit), best) in groups.iter().zip(fits).zip(&mut choices) {
        let scale = six_bits(fit.scale, d);
        for scale in scale.saturating_sub(1)..=(scale + 1).min(63) {
            // The fitted min belongs to the fitted scale; the middle of the range moves it along with another.
            let middle = f32::from(STEPS) / 2.0;
            let ideal = fit.min + (d * f32::from(scale) - fit.scale) * middle;
            let min = six_bits(ideal, dmin);
            for min in min.saturating_sub(1)..=(min + 1).min(63) {
                let error = error_of::<STEPS>(x, d * f32::from(scale), dmin * f32::from(min));
                if error < best.error {
                    *best = Choice { scale, min, error };
                }
            }
        }
    }
    Candidate { d, dmin, error: choices.iter().map(|choice| choice.error).sum(), choices }
}

/// `d` and `dmin` that minimise the squared error under the chosen integers.
fn refit<const STEPS: u8>(groups: &[[f32; 32]; 8], at: &Candidate) -> (f32, f32) {
    let [mut aa, mut ab, mut bb, mut ax, mut bx] = [0.0; 5];
    for (x, choice) in groups.iter().zip(&at.choices) {
        let (scale, min) = (f64::from(choice.scale), f64::from(choice.min));
        let code = coder::<STEPS>(at.d * f32::from(choice.scale), at.dmin * f32::from(choice.min));
        let [q, qq, qx] = sums(x, |v| {
            let q = code(v);
            [q, q * q, q * v]
        });
        aa += scale * scale * f64::from(qq);
        ab += scale * min * f64::from(q);
        bb += min * min * 32.0;
        ax += scale * f64::from(qx);
        bx += min * f64::from(sum(x, |v| v));
    }
    let determinant = aa * bb - ab * ab;
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
    let solved = |numerator: f64| (numerator / determinant) as f32;
    (solved(bb * ax - ab * bx), solved(ab * ax - aa * bx))
}

fn encode<const STEPS: u8>(groups: &[[f32; 32]; 8], best: &Candidate) -> AffineBlock {
    let mut codes = [0; 256];
    for ((x, codes), choice) in groups.iter().zip(codes.as_chunks_mut::<32>().0).zip(&best.choices) {
        let code = coder::<STEPS>(best.d * f32::from(choice.scale), best.dmin * f32::from(choice.min));
        *codes = x.map(|v| to_u8(code(v)));
    }
    AffineBlock {
        d: best.d,
        dmin: best.dmin,
        scales: best.choices.map(|c| c.scale),
        mins: best.choices.map(|c| c.min),
        codes,
    }
}

/// Squared error of `x` under a scale and a min.
fn error_of<const STEPS: u8>(x: &[f32; 32], scale: f32, min: f32) -> f32 {
    let code = coder::<STEPS>(scale, min);
    sum(x, |v| {
        let e = scale * code(v) - min - v;
        e * e
    })
}

/// The nearest code of a weight under a scale and a min.
fn coder<const STEPS: u8>(scale: f32, min: f32) -> impl Fn(f32) -> f32 {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    move |v| code_of::<STEPS>((v + min) * inverse)
}

/// The nearest integer within 0..=`STEPS`.
fn code_of<const STEPS: u8>(v: f32) -> f32 {
    rounded_within(v, 0.0, f32::from(STEPS))
}

/// `value / unit` to the nearest of 0..=63.
fn six_bits(value: f32, unit: f32) -> u8 {
    if unit > 0.0 { to_u8(code_of::<63>(value / unit)) } else { 0 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an integer within 0..=63")]
fn to_u8(v: f32) -> u8 {
    v as u8
}
