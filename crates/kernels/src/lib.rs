//! The arithmetic of muser: one defined value per output element, on every instruction set.
//!
//! `docs/numerics.md` is the contract (version E1). Each kernel has a scalar reference that reads like the contract, and
//! twins for instruction sets that a property test compares with it bit for bit.

pub mod activations;
pub mod arena;
pub mod attention;
pub mod cpu;
pub mod dot;
pub mod embedding;
mod exp2;
pub mod formats;
mod isa;
pub mod matrix;
pub mod pool;
pub mod rope;
pub mod rows;
pub mod samples;
