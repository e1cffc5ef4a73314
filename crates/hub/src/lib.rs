//! Model files from elsewhere: by address, or out of a repository of a model hub, into caches on this machine.
//!
//! Pure parts, which tests and the fuzzer reach without a network:
//! - `reference` is what a user may write: an address, or `user/repo[:QUANT]`.
//! - `address` is the little of URLs that is needed: joining, comparing origins, showing without secrets.
//! - `file_name` is a relative path that stays in its folder, and the names of a split model's parts.
//! - `listing` is the hub's answer about a repository, and the choice of a file in it.
//!
//! Parts that touch disk or network:
//! - `settings` is everything that comes from outside: endpoint, token, folders, timeouts.
//! - `client` asks, follows redirects by hand, and decides who sees the token; `answer` reads what headers say.
//! - `cache` is the folder layout that the hub's own client has; `place` is where one file goes, under a lock.
//! - `download` brings one file: resumed, repeated, checked, named when whole.
//! - `pull` joins these for a request.

#![forbid(unsafe_code)]

mod address;
mod answer;
mod cache;
mod client;
mod digest;
mod download;
mod error;
mod file_name;
mod listing;
mod place;
mod pull;
mod reference;
mod retry;
mod settings;

pub use address::{HttpAddress, HttpAddressError};
pub use answer::AnswerFault;
pub use client::RedirectFault;
pub use digest::{Sha256, Sha256Error, sha256_of_file};
pub use error::Error;
pub use file_name::{FileName, FileNameError};
pub use listing::{ChoiceError, FileChoice, Listing, ListingError};
pub use pull::{CachedContent, Hub, PullRequest, Pulled, PulledFile};
pub use reference::{Quant, Reference, ReferenceError, RepoId, Revision};
pub use retry::{PullEvent, Watch};
pub use settings::{Proxy, Settings, SettingsError, Token, TokenError};
