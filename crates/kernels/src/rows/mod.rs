//! Operations on single rows of f32: norms, residual sums, gates, the logits' soft-cap and the rotary embedding (rules 5 to 8
//! and 10 of `docs/numerics.md`).

mod hadamard;
pub(crate) mod reference;

pub use hadamard::{hadamard, inverse_block};

use crate::rope::{RopeAngles, RopeStyle};

/// `rms_norm(x, weight, eps, out)`
pub type RmsNorm = fn(&[f32], Option<&[f32]>, f32, &mut [f32]);

/// One implementation of every row operation. All implementations give the same bits.
///
/// Values that are not finite are not looked for here: they stay visible in the result (as NaN or an infinity), and the
/// next quantisation or the check of the logits ([`Self::all_finite`]) reports them.
///
/// Every function panics if two slices that must agree in length do not.
#[derive(Clone, Copy, Debug)]
pub struct RowKernels {
    /// `rms_norm(x, weight, eps, out)`: root-mean-square norm of one vector, times `weight` if there is one. All `[n]`.
    pub rms_norm: RmsNorm,
    /// `rms_norm_in_place(x, weight, eps)`: the same with `x` replaced; a head vector's QK-norm.
    pub rms_norm_in_place: fn(&mut [f32], Option<&[f32]>, f32),
    /// `add(h, y)`: `h = h + y`, the residual sum or a bias. Both `[n]`.
    pub add: fn(&mut [f32], &[f32]),
    /// `silu_mul(gate, up)`: `gate = SiLU(gate) * up`. Both `[n]`.
    pub silu_mul: fn(&mut [f32], &[f32]),
    /// `sigmoid_gate(o, gate)`: `o = o * sigmoid(gate)`. Both `[n]`.
    pub sigmoid_gate: fn(&mut [f32], &[f32]),
    /// `scale_soft_cap(z, scale, cap)`: `z = z * scale`, then `z = cap * tanh(z / cap)`; each step only where given.
    pub scale_soft_cap: fn(&mut [f32], Option<f32>, Option<f32>),
    /// `rope(x, angles, style)`: rotates the first `2 * angles.cos.len()` dimensions of one head vector.
    pub rope: fn(&mut [f32], RopeAngles<'_>, RopeStyle),
    /// `all_finite(x)`: whether no element is NaN or infinite.
    pub all_finite: fn(&[f32]) -> bool,
}

/// Lanes of the sum of squares.
pub(crate) const NORM_LANES: usize = 256;

/// `1 / sqrt(sum / n + eps)`; NaN for a sum that is not finite, which would otherwise turn the whole vector into zeros.
pub(crate) fn inverse_rms_of_sum(sum_of_squares: f32, n: usize, eps: f32) -> f32 {
    if !sum_of_squares.is_finite() {
        return f32::NAN;
    }
    1.0 / (sum_of_squares / n as f32 + eps).sqrt()
}
