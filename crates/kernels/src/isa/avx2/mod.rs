//! Twins for processors with AVX2, FMA and F16C.

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod dot;
pub(crate) mod rows;
