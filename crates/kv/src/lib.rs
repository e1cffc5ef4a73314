//! The KV cache of one sequence, kept as pages.
//!
//! A *page* is [`PAGE_ROWS`] consecutive, absolutely aligned positions of one layer's K and V in cache format. It is the
//! unit in which caches allocate, share, forget, ship and store; its bytes are a pure function of the model's identity
//! and the tokens up to its end.
//!
//! - `layout` is the byte layout of a page.
//! - `name` identifies a page: the chained digest of model identity and tokens.
//! - `realm` is the scope within which pages are shared.
//! - `makers` are the other machines that a page's bytes depend on.
//! - `provenance` decides if pages from elsewhere may become visible.
//! - `page` owns page memory: full pages are shared by reference, and copied before a holder changes them.
//! - `pool` is the budget and the free lists that pages come from and return to.
//! - `spec` is the pure arithmetic of a cache: which pages it holds after how many rows, and their bytes.
//! - `cache` is one sequence: append in three steps, read, forget behind the window.
//! - `rewind` truncates a cache, and forks one that shares a prefix.
//! - `transfer` exports pages, and builds a cache from received ones before it is visible.
//! - `ship` is the payload of a handoff in rows, pages and bytes.

#![forbid(unsafe_code)]

mod cache;
mod layout;
mod makers;
mod name;
mod page;
mod pool;
mod provenance;
mod realm;
mod rewind;
mod ship;
mod spec;
mod transfer;

pub use cache::{AppendError, LayerPages, SequenceCache};
pub use layout::{KvLayout, LayoutError, PAGE_ROWS, PageField, PageLayout, PagePlace};
pub use makers::{Maker, Makers};
pub use name::{KvIdentity, PageName, PageNames, names_of};
pub use page::{Page, SealedPage};
pub use pool::{OutOfPages, PagePool, PoolUse};
pub use provenance::{Provenance, Renewal, TakenBack, Untrusted, Voucher};
pub use realm::{PrefixScope, Realm};
pub use rewind::RewindError;
pub use spec::{CacheSpec, LayerSpec, PageSet, SpecError};
pub use transfer::{DetachedCache, ExportError, ExportedPage, InstallError};
