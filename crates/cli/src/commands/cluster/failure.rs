//! Failures of `muser cluster` commands, and their exit codes.

use std::io;
use std::path::PathBuf;

use muser_cluster::enrol::EnrolError;
use muser_files::FileError;
use muser_trust::identity::{AuthorityError, IdentityError, NodeId, RevocationsError};
use muser_trust::keys::{KeyError, KeyFileError};
use muser_trust::quarantine::QuarantineError;

/// Failure to make, change or read a cluster folder. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ClusterFailure {
    /// A folder to make exists already.
    #[error("{0:?} exists already and is no empty folder; nothing was written")]
    Exists(PathBuf),
    /// A folder to make has no name of its own, such as `..`.
    #[error("{0:?} does not end in the name of a folder to make")]
    NoName(PathBuf),
    /// Only the CA can do this.
    #[error("{0:?} has no ca.key: this needs the folder that began the cluster")]
    NoAuthority(PathBuf),
    /// A certificate to renew is not of this cluster.
    #[error("the certificate in {other:?} was not issued by the CA in {folder:?}")]
    NotIssuedHere {
        /// Folder of the certificate.
        other: PathBuf,
        /// Folder of the CA.
        folder: PathBuf,
    },
    /// A revoked node gets no certificate.
    #[error("node {0} is revoked and gets no new certificate")]
    NodeRevoked(NodeId),
    /// Nothing to lift.
    #[error("node {node} is not quarantined in {folder:?}")]
    NotQuarantined {
        /// The node.
        node: NodeId,
        /// Folder with the quarantine list.
        folder: PathBuf,
    },
    /// The clock cannot be right.
    #[error("the clock is before 1970, no certificate can be made")]
    Clock,
    /// Certificates and keys.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The CA refused.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The list of MAC keys.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// A MAC key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The deny-list.
    #[error(transparent)]
    Revocations(#[from] RevocationsError),
    /// Records of enrolments under way.
    #[error(transparent)]
    Enrol(#[from] EnrolError),
    /// The list of the quarantined.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// A folder cannot be made or looked at.
    #[error("{path:?}: {error}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl ClusterFailure {
    /// 1 for what disk, clock and cryptographic provider refuse, 5 for permissions, 2 for the rest: wrong use.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Identity(IdentityError::File(error))
            | Self::Enrol(EnrolError::Identity(IdentityError::File(error)))
            | Self::KeyFile(KeyFileError::File(error))
            | Self::Revocations(RevocationsError::File(error))
            | Self::Quarantine(QuarantineError::File(error)) => of_file(error),
            Self::Folder { error, .. } => of_io(error),
            Self::Clock | Self::Key(KeyError::NoRandomness(_)) => 1,
            Self::Authority(
                AuthorityError::BadClock { .. } | AuthorityError::Making(_) | AuthorityError::NoRandomness(_),
            ) => 1,
            _ => 2,
        }
    }
}

fn of_file(error: &FileError) -> u8 {
    match error {
        FileError::TooOpen { .. }
        | FileError::Writable { .. }
        | FileError::Foreign { .. }
        | FileError::OwnerLost { .. } => 5,
        FileError::Busy { .. } => 1,
        FileError::Io { error, .. } => of_io(error),
        _ => 2,
    }
}

fn of_io(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::PermissionDenied => 5,
        // A file where a folder should be or the other way round, or one that is no text.
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidData => 2,
        _ => 1,
    }
}
