//! The atomics, cells and threads that the pool's protocol is written in: the standard library's, or loom's when the
//! protocol is model-checked (`--cfg loom`).

#[cfg(loom)]
#[path = "sync_loom.rs"]
mod chosen;
#[cfg(not(loom))]
#[path = "sync_std.rs"]
mod chosen;

pub(super) use chosen::*;
