//! Kernels by instruction set: each module holds the twins of one, and [`vector`] the text that several share.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod vector;
