//! Cluster of machines: encrypted lanes between them, handoffs of KV pages, and enrolment.
//!
//! - `lane` is one encrypted connection between two nodes that admitted each other.
//! - `handoff` brings pages from the engine of one node to that of another.
//! - `enrol` admits a new node over the network, once, by a ticket, and tests it.
//! - `pacing` limits a lane's send rate, `accounting` measures it; `socket_options` sets and reads the kernel's TCP
//!   options.

pub mod accounting;
pub mod enrol;
pub mod handoff;
pub mod lane;
pub mod pacing;
#[cfg(target_os = "linux")]
pub mod socket_options;
