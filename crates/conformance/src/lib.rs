//! Comparison of devices by bits, for the tests of this crate and for `muser conformance`.
//!
//! [`suite`] computes whole models in many ways on any [`backend`] and compares full logits and page bytes with one run on the
//! CPU; [`deferred`] is a backend without special hardware that executes in the order of a GPU. [`operations`] compares the
//! operations of the CPU on every instruction set with the scalar references, and `cuda` those of a GPU. Everything that was
//! compared is counted in a [`tally::BitTally`].

#![forbid(unsafe_code)]

pub mod backend;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod deferred;
pub mod models;
pub mod operations;
mod pairwise;
pub mod suite;
pub mod tally;
