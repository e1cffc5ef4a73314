//! Kernels for processors with AVX2, FMA and F16C.

mod activations;
pub(in crate::isa) mod attention;
mod dot;
pub(in crate::isa) mod memory;
mod rows;

use super::{Isa, Kernels};
use crate::dot::DotKernels;

pub(super) const KERNELS: Kernels = Kernels {
    isa: Isa::Avx2,
    dot: DotKernels { quantise_row: activations::quantise_row, panel: dot::panel },
    rows: rows::KERNELS,
    attention: attention::KERNELS,
};

/// True if this processor can run [`KERNELS`].
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
