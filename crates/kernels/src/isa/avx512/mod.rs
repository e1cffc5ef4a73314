//! Kernels for processors with AVX-512 F, BW, DQ, VL and VNNI. What is short is left to AVX2, which these processors have
//! too.

mod attention;
mod dot;
mod memory;
mod rows;

use super::{Isa, Kernels, avx2};
use crate::dot::DotKernels;

pub(super) const KERNELS: Kernels = Kernels {
    isa: Isa::Avx512,
    dot: DotKernels { panel: dot::panel, ..avx2::KERNELS.dot },
    rows: rows::KERNELS,
    attention: attention::KERNELS,
};

/// True if this processor can run [`KERNELS`].
pub(super) fn is_supported() -> bool {
    avx2::is_supported()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}
