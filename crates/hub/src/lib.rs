//! Model files from elsewhere: by address, or out of a repository of a model hub, into caches on this machine.
//!
//! Pure parts, which tests and the fuzzer reach without a network:
//! - `reference` parses what users write: an address, or `user/repo[:QUANT]`.
//! - `address` is the subset of URLs in use: joining, comparing origins, showing without secrets.
//! - `file_name` is a relative path that stays in its folder, and the names of a split model's parts.
//! - `listing` parses the hub's list of a repository's files, and chooses among them.
//!
//! Parts that touch disk or network:
//! - `settings` are the arguments: endpoint, token, folders, timeouts.
//! - `client` sends requests, follows redirects itself, and sends the token to the endpoint's origin only; `answer` parses
//!   headers.
//! - `cache` is the folder layout of the hub's own client; `place` is one file's destination and its lock.
//! - `download` fetches one file: resumes, retries, verifies, renames.
//! - `pull` serves a whole request.

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
