//! Scalar definition of the row operations: each line is a line of the contract.

use super::{NORM_LANES, RowKernels, inverse_rms_of_sum};
use crate::exp2::{one_plus_exp_of_minus, sigmoid, tanh};
use crate::rope::{RopeAngles, RopeStyle};

/// The scalar definition.
pub(crate) const KERNELS: RowKernels =
    RowKernels { rms_norm, rms_norm_in_place, add, silu_mul, sigmoid_gate, scale_soft_cap, rope, all_finite };

fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    out.copy_from_slice(x);
    rms_norm_in_place(out, weight, eps);
}

fn rms_norm_in_place(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let scale = inverse_rms(x, eps);
    match weight {
        Some(weight) => {
            assert_eq!(x.len(), weight.len(), "vector and norm weight");
            x.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
        }
        None => x.iter_mut().for_each(|x| *x *= scale),
    }
}

/// `1 / sqrt(mean of squares + eps)`, the squares summed in 256 strided lanes and then by halves.
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0f32; NORM_LANES];
    for (k, &x) in x.iter().enumerate() {
        lanes[k % NORM_LANES] = x.mul_add(x, lanes[k % NORM_LANES]);
    }
    let mut half = NORM_LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    inverse_rms_of_sum(lanes[0], x.len(), eps)
}

fn add(h: &mut [f32], y: &[f32]) {
    assert_eq!(h.len(), y.len(), "two terms of a sum");
    h.iter_mut().zip(y).for_each(|(h, y)| *h += y);
}

fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    gate.iter_mut().zip(up).for_each(|(g, u)| *g = *g / one_plus_exp_of_minus(*g) * u);
}

fn sigmoid_gate(o: &mut [f32], gate: &[f32]) {
    assert_eq!(o.len(), gate.len(), "vector and gate");
    o.iter_mut().zip(gate).for_each(|(o, g)| *o *= sigmoid(*g));
}

fn scale_soft_cap(z: &mut [f32], scale: Option<f32>, cap: Option<f32>) {
    if let Some(scale) = scale {
        z.iter_mut().for_each(|z| *z *= scale);
    }
    if let Some(cap) = cap {
        z.iter_mut().for_each(|z| *z = cap * tanh(*z / cap));
    }
}

fn rope(x: &mut [f32], angles: RopeAngles<'_>, style: RopeStyle) {
    let pairs = angles.cos.len();
    assert_eq!(pairs, angles.sin.len(), "cosines and sines");
    assert!(2 * pairs <= x.len(), "{pairs} pairs rotate in a head of {} dimensions", x.len());
    for (i, (&c, &s)) in angles.cos.iter().zip(angles.sin).enumerate() {
        let (first, second) = match style {
            RopeStyle::Norm => (2 * i, 2 * i + 1),
            RopeStyle::Neox => (i, i + pairs),
        };
        let (x0, x1) = (x[first], x[second]);
        x[first] = x0.mul_add(c, -(x1 * s));
        x[second] = x1.mul_add(c, x0 * s);
    }
}

fn all_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}
