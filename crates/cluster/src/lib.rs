//! Cluster of machines: handoffs of KV pages between them, and enrolment.
//!
//! - `handoff` brings pages from the engine of one node to that of another.
//! - `enrol` admits a new node over the network, once, by a ticket, and tests it.

#![forbid(unsafe_code)]

pub mod enrol;
pub mod handoff;
