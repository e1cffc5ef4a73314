//! What can end a pull.

use std::io;
use std::path::PathBuf;

use crate::answer::AnswerFault;
use crate::client::RedirectFault;
use crate::digest::Sha256;
use crate::listing::{ChoiceError, ListingError};
use crate::reference::ReferenceError;
use crate::settings::SettingsError;

/// What ended a pull. No file has its final name before it is whole; what came until then is kept under another name,
/// except after [`Error::Digest`] and [`Error::Magic`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The user's: the reference is wrong.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The user's: a setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The user's: the repository has no such file.
    #[error("{repo} at {revision}: {reason}")]
    Choice {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// What is there instead.
        reason: ChoiceError,
    },
    /// The user's: there is nothing at the address.
    #[error("{address}: not found")]
    NotFound {
        /// What was asked for.
        address: String,
    },
    /// The user's: the server does not answer this user.
    #[error("{address}: refused with status {status}; it does not exist, or needs a token that has access to it")]
    Denied {
        /// What was asked for.
        address: String,
        /// The status.
        status: u16,
    },
    /// The user's: nothing in the cache is what was asked for, and the network was not to be used.
    #[error("{wanted} is not in the cache {folder:?}")]
    NotCached {
        /// What was asked for.
        wanted: String,
        /// Where it would be.
        folder: PathBuf,
    },
    /// The user's: what has the file's name is something else, such as a folder or a device.
    #[error("{path:?} is there already, and is no file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The server's: a status that is no success.
    #[error("{address}: the server answers with status {status}")]
    Status {
        /// What was asked for.
        address: String,
        /// The status.
        status: u16,
        /// How long it asks to wait, in seconds.
        retry_after_s: Option<u64>,
    },
    /// The network's: there was no answer.
    #[error("{address}: {reason}")]
    Network {
        /// What was asked for.
        address: String,
        /// What happened.
        reason: Box<ureq::Error>,
    },
    /// The network's: the answer ended early.
    #[error("{address}: interrupted after {bytes} bytes{}: {reason}", of_total(expected))]
    Interrupted {
        /// What was asked for.
        address: String,
        /// Bytes that came until then, with those of earlier pulls.
        bytes: u64,
        /// The file's size, if known.
        expected: Option<u64>,
        /// What happened.
        reason: io::Error,
    },
    /// The server's: a redirect that is not followed.
    #[error("{address}: {reason}")]
    Redirect {
        /// Where it came from.
        address: String,
        /// What is wrong with it.
        reason: RedirectFault,
    },
    /// The server's: an answer that breaks the rules.
    #[error("{address}: {reason}")]
    Answer {
        /// What was asked for.
        address: String,
        /// What is wrong with it.
        reason: AnswerFault,
    },
    /// The server's: the list of files is none.
    #[error("{address}: {reason}")]
    Listing {
        /// What was asked for.
        address: String,
        /// What is wrong with it.
        reason: ListingError,
    },
    /// Trying again did not help.
    #[error("{reason}; gave up after {attempts} attempts{}", kept(partial))]
    GaveUp {
        /// What happened last.
        reason: Box<Self>,
        /// How often it was tried without getting further.
        attempts: usize,
        /// The file that the next pull goes on with, and its size.
        partial: Option<(PathBuf, u64)>,
    },
    /// The file that came is not the one that was asked for. The partial file is removed.
    #[error("{file}: its SHA-256 is {found}, and should be {expected}")]
    Digest {
        /// The file.
        file: String,
        /// What was asked for.
        expected: Sha256,
        /// What came.
        found: Sha256,
    },
    /// The file that came is of another kind, such as a page in place of a model. The partial file is removed.
    #[error("{file}: what came begins with \"{found}\", and should begin with \"{magic}\"")]
    Magic {
        /// The file.
        file: String,
        /// First bytes that were asked for.
        magic: String,
        /// First bytes that came.
        found: String,
    },
    /// The disk's: full, or not writable.
    #[error("cannot {doing} {path:?}: {reason}")]
    Disk {
        /// What was being done.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The caller wanted it to end.
    #[error("stopped")]
    Stopped,
}

fn of_total(expected: &Option<u64>) -> String {
    expected.map(|bytes| format!(" of {bytes}")).unwrap_or_default()
}

fn kept(partial: &Option<(PathBuf, u64)>) -> String {
    match partial {
        Some((path, bytes)) => format!("; {bytes} bytes are kept in {path:?}, and the next pull goes on from there"),
        None => String::new(),
    }
}

impl Error {
    /// Whether trying again may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            Self::Network { reason, .. } => match &**reason {
                // This is how a certificate that is not trusted arrives.
                ureq::Error::Io(reason) => reason.kind() != io::ErrorKind::InvalidData,
                ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
                reason => matches!(reason, ureq::Error::Protocol(_)),
            },
            Self::Interrupted { .. } => true,
            _ => false,
        }
    }

    /// For `map_err` on files.
    pub(crate) fn disk(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |reason| Self::Disk { doing, path, reason }
    }
}
