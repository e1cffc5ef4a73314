//! Trust among the machines of one cluster: a node's identity, the keys that seal handoffs, and the lists of those that
//! are trusted no more. All of it lies in one folder of small files.
//!
//! - `identity` is a node's key, its certificate under the cluster's CA, the folder, and the deny-list.
//! - `keys` are the MAC keys that seal handoffs.
//! - `quarantine` lists producers that sent wrong keys and values; they are not asked any more.
//! - `judgement` decides by all of these if a peer is trusted at one moment.
//! - `list_file` detects lists that lost entries.
//! - `random` gives unpredictable bytes, `hex` writes and reads digests.

#![forbid(unsafe_code)]

pub mod hex;
pub mod identity;
pub mod judgement;
pub mod keys;
mod list_file;
pub mod quarantine;
pub mod random;

pub use list_file::ListFault;

/// Socket address of a node's listener.
pub type Address = std::net::SocketAddr;
