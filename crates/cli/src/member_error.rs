//! Failures of this machine as a member of its cluster: reading the folder, setting up handoffs, comparing them.

use std::io;
use std::path::PathBuf;

use muser_cluster::enrol::EnrolError;
use muser_cluster::handoff::{BringError, PlanRefused, ShapeError};
use muser_host::Refused;
use muser_kv::InstallError;
use muser_lane::SetupError;
use muser_ledger::{FolderStorageError, OpenError};
use muser_placement::PolicyFileError;
use muser_trust::identity::{CertificateError, IdentityError, RevocationsError};
use muser_trust::judgement::TrustError;
use muser_trust::keys::KeyFileError;
use muser_trust::quarantine::QuarantineError;
use muser_trust::random::NoRandomness;
use muser_weights::digest::DigestError;

/// Failure of a member of a cluster. Other members are not concerned.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The deny-list cannot be read.
    #[error(transparent)]
    Revocations(#[from] RevocationsError),
    /// The MAC keys cannot be read.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// Keys and deny-list cannot be followed.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The quarantine list cannot be read.
    #[error(transparent)]
    Quarantine(#[from] QuarantineError),
    /// Enrolments under way cannot be read, or an enrolment failed.
    #[error(transparent)]
    Enrolment(#[from] EnrolError),
    /// A name of a node is none.
    #[error(transparent)]
    Name(#[from] CertificateError),
    /// TLS cannot be set up with the certificates.
    #[error(transparent)]
    Lane(#[from] SetupError),
    /// The ledger's folder cannot be used.
    #[error(transparent)]
    LedgerFolder(#[from] FolderStorageError),
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// The system has no random bytes.
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
    /// The digest of the model's file cannot be computed.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The model cannot be handed off.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A handoff cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanRefused),
    /// The learned rates cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    /// No server of the folder has learned any rate.
    #[error("{} does not exist: no server has measured anything yet", path.display())]
    NothingMeasured {
        /// The file of learned rates.
        path: PathBuf,
    },
    /// The engine did not take a request.
    #[error(transparent)]
    Engine(#[from] Refused),
    /// A request failed after it had begun.
    #[error("{0}")]
    Answer(String),
    /// A handoff failed.
    #[error(transparent)]
    Bring(#[from] BringError),
    /// The pages of a handoff cannot be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The process of a demonstration's producer did not start.
    #[error("the producer did not start: {reason}")]
    NoProducer {
        /// Its last words, or the system's error.
        reason: String,
    },
    /// The process of a demonstration's producer ended before it had joined.
    #[error("{0}")]
    ProducerEnded(String),
    /// The answers of a demonstration differ.
    #[error("the bits differ")]
    BitsDiffer,
    /// The system refused a thread, a folder, a process or a socket.
    #[error(transparent)]
    System(#[from] io::Error),
}
