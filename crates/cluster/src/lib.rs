//! The machines of one cluster: who they are, how they talk, and which of them computes a prompt.
//!
//! - `identity` is who a node is: its key, its certificate under the cluster's CA, and the deny-list.
//! - `keys` are the MAC keys that seal handoffs.
//! - `lane` is one encrypted connection between two nodes that admitted each other.
//! - `ledger` remembers which handoffs were accepted, so that none is accepted twice.
//! - `handoff` brings pages from the engine of one node to that of another.
//! - `enrol` lets a new node in over the network, once, by a ticket, and tests it.
//! - `pacing` and `accounting` are how fast a lane sends, and how fast it did; `socket_options` asks the kernel.
//! - `policy` chooses who computes a prompt, by measured rates.
//! - `quarantine` lists producers that sent something wrong, and are not asked any more.
//! - `files` reads and writes the files of a cluster folder: by one process at a time, whole or not at all, and none that
//!   others may write. `list_file` keeps lists from getting shorter in silence.

pub mod accounting;
pub mod enrol;
mod files;
pub mod handoff;
mod hex;
pub mod identity;
pub mod keys;
pub mod lane;
pub mod ledger;
mod list_file;
pub mod pacing;
pub mod policy;
pub mod quarantine;
mod random;
#[cfg(target_os = "linux")]
pub mod socket_options;

pub use files::{FileError, change_text};
pub use list_file::ListFault;
pub use random::{NoRandomness, number as unguessable_number, secret as unguessable_secret};
