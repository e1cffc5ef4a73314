//! Comparison of devices by bits.
//!
//! [`suite`] computes whole models in many ways on any [`backend`] and compares full logits and page bytes with one run on the
//! CPU. Everything that was compared is counted in a [`tally::Tally`].

#![forbid(unsafe_code)]

pub mod backend;
pub mod models;
mod pairwise;
pub mod suite;
pub mod tally;
