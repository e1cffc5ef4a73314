//! Errors that end a pull.

use std::io;
use std::path::PathBuf;

use crate::answer::AnswerFault;
use crate::client::RedirectFault;
use crate::digest::Sha256;
use crate::listing::{ChoiceError, ListingError};
use crate::reference::ReferenceError;
use crate::settings::SettingsError;

/// Error that ended a pull. A file gets its final name only once whole; the bytes received until then are kept under
/// the partial name, except after [`Error::Digest`] and [`Error::Magic`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// User error: the reference is wrong.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// User error: a setting is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// User error: the repository has no such file.
    #[error("{repo} at {revision}: {reason}")]
    Choice {
        /// The repository.
        repo: String,
        /// The revision.
        revision: String,
        /// No match, no GGUF file or a missing part, with the files there are.
        reason: ChoiceError,
    },
    /// User error: the server has no file at the address.
    #[error("{address}: not found")]
    NotFound {
        /// Requested address.
        address: String,
    },
    /// User error: the server denies access.
    #[error("{address}: refused with status {status}; it does not exist, or needs a token that has access to it")]
    Denied {
        /// Requested address.
        address: String,
        /// The status.
        status: u16,
    },
    /// User error: the request is not in the cache, and the network was not to be used.
    #[error("{wanted} is not in the cache {folder:?}")]
    NotCached {
        /// The model or file, as the error shows it.
        wanted: String,
        /// Folder that would hold it.
        folder: PathBuf,
    },
    /// User error: the path is taken by something else than a file, such as a folder or a device.
    #[error("{path:?} is there already, and is no file")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Server error: any other unsuccessful status.
    #[error("{address}: the server answers with status {status}")]
    Status {
        /// Requested address.
        address: String,
        /// The status.
        status: u16,
        /// `Retry-After` of the response, seconds.
        retry_after_s: Option<u64>,
    },
    /// Network error: there was no response.
    #[error("{address}: {reason}")]
    Network {
        /// Requested address.
        address: String,
        /// Error of the HTTP client.
        reason: Box<ureq::Error>,
    },
    /// Network error: the response ended early.
    #[error("{address}: interrupted after {bytes} bytes{}: {reason}", of_total(expected))]
    Interrupted {
        /// Requested address.
        address: String,
        /// Bytes received so far, those of earlier pulls included.
        bytes: u64,
        /// The file's size, if known.
        expected: Option<u64>,
        /// Read error.
        reason: io::Error,
    },
    /// Server error: a redirect that is not followed.
    #[error("{address}: {reason}")]
    Redirect {
        /// Address that redirected.
        address: String,
        /// Reason to refuse it.
        reason: RedirectFault,
    },
    /// Server error: a response that breaks the rules.
    #[error("{address}: {reason}")]
    Answer {
        /// Requested address.
        address: String,
        /// Fault of the response.
        reason: AnswerFault,
    },
    /// Server error: the list of files is malformed.
    #[error("{address}: {reason}")]
    Listing {
        /// Requested address.
        address: String,
        /// Parse error.
        reason: ListingError,
    },
    /// The retries are used up.
    #[error("{reason}; gave up after {attempts} attempts{}", kept(partial))]
    GaveUp {
        /// Error of the last attempt.
        reason: Box<Self>,
        /// Attempts in a row without progress.
        attempts: usize,
        /// Partial file that the next pull resumes, and its size in bytes.
        partial: Option<(PathBuf, u64)>,
    },
    /// The received file has another digest than the requested one. The partial file is removed.
    #[error("{file}: its SHA-256 is {found}, and should be {expected}")]
    Digest {
        /// The file.
        file: String,
        /// Expected digest.
        expected: Sha256,
        /// Digest of the received bytes.
        found: Sha256,
    },
    /// The received file does not begin with the required bytes, as a web page in place of a model. The partial file is
    /// removed.
    #[error("{file}: what came begins with \"{found}\", and should begin with \"{magic}\"")]
    Magic {
        /// The file.
        file: String,
        /// First bytes that were asked for.
        magic: String,
        /// First bytes received.
        found: String,
    },
    /// Disk error: full, or not writable.
    #[error("cannot {doing} {path:?}: {reason}")]
    Disk {
        /// Failed operation, such as `create` or `read`.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        reason: io::Error,
    },
    /// The caller cancelled it.
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
    /// True if a retry may succeed: timeouts, connection and protocol errors, interruptions, statuses 408, 425, 429,
    /// 500, 502, 503 and 504.
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
