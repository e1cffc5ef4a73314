//! Cluster of machines: node identities, encrypted lanes between them, handoffs of KV pages, and placement of prompts.
//!
//! - `identity` holds a node's key, its certificate under the cluster's CA, and the deny-list.
//! - `keys` are the MAC keys that seal handoffs.
//! - `lane` is one encrypted connection between two nodes that admitted each other.
//! - `handoff` brings pages from the engine of one node to that of another.
//! - `enrol` admits a new node over the network, once, by a ticket, and tests it.
//! - `pacing` limits a lane's send rate, `accounting` measures it; `socket_options` sets and reads the kernel's TCP
//!   options.
//! - `policy` chooses the node that computes a prompt, by measured rates.
//! - `quarantine` lists producers that sent wrong keys and values; they are not asked any more.
//! - `list_file` detects lists that lost entries.

pub mod accounting;
pub mod enrol;
pub mod handoff;
mod hex;
pub mod identity;
pub mod keys;
pub mod lane;
mod list_file;
pub mod pacing;
pub mod policy;
pub mod quarantine;
mod random;
#[cfg(target_os = "linux")]
pub mod socket_options;

pub use list_file::ListFault;
pub use random::{NoRandomness, number as unguessable_number, secret as unguessable_secret};
