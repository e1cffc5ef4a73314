//! Twins for processors with AVX-512 F, BW, DQ, VL and VNNI. What is short is left to AVX2, which these processors have too.

pub(crate) mod attention;
pub(crate) mod dot;
pub(crate) mod rows;
