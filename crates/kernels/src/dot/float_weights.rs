//! The three float types of weights, and the order in which rule 4b adds its lanes.

use half::{bf16, f16};

/// A float type of weights.
pub(crate) trait FloatWeights {
    /// Bytes per weight.
    const BYTES: usize;
    /// True if 16-bit weights are bf16, false if they are f16.
    const BRAIN: bool;

    /// The weight in `bytes`, widened exactly. `bytes` is [`Self::BYTES`] long.
    fn widen(bytes: &[u8]) -> f32;
}

/// 32-bit floats.
pub(crate) struct F32;
/// 16-bit IEEE floats.
pub(crate) struct F16;
/// Upper halves of 32-bit floats.
pub(crate) struct BF16;

impl FloatWeights for F32 {
    const BYTES: usize = 4;
    const BRAIN: bool = false;

    fn widen(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl FloatWeights for F16 {
    const BYTES: usize = 2;
    const BRAIN: bool = false;

    fn widen(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl FloatWeights for BF16 {
    const BYTES: usize = 2;
    const BRAIN: bool = true;

    fn widen(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

/// Evaluates `$body` with `$weights` standing for the float type of weight type `$ty`.
macro_rules! with_float_weights {
    ($ty:expr, $weights:ident => $body:expr) => {{
        use $crate::dot::float_weights::{BF16, F16, F32};
        use $crate::formats::WeightType as Type;
        match $ty {
            Type::F32 => {
                type $weights = F32;
                $body
            }
            Type::F16 => {
                type $weights = F16;
                $body
            }
            Type::BF16 => {
                type $weights = BF16;
                $body
            }
            other => unreachable!("{other} is no float type"),
        }
    }};
}
pub(crate) use with_float_weights;

/// `a_l += a_{l + 16}`, then 8, 4, 2, 1.
pub(crate) fn halving_tree(mut lanes: [f32; 32]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    lanes[0]
}
