//! The replay ledger against disks that fail and runs that end anywhere.

#[path = "ledger/disk.rs"]
mod disk;
#[path = "ledger/faults.rs"]
mod faults;
#[path = "ledger/replay.rs"]
mod replay;
#[path = "ledger/sharing.rs"]
mod sharing;
