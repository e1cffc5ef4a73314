//! The KV cache of one sequence, kept as pages.
//!
//! A *page* is [`PAGE_ROWS`] consecutive, absolutely aligned positions of one layer's K and V in cache format. It is the
//! unit in which caches allocate, share, forget, ship and store; its bytes are a pure function of the model's identity
//! and the tokens up to its end.
//!
//! - `layout` says which byte of a page is what.

mod layout;

pub use layout::{KvLayout, LayoutError, PAGE_ROWS, PageLayout};
