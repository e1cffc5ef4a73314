//! Failures of an enrolment, grouped by whose fault they are.

use std::io;
use std::time::Duration;

use muser_engine::engine::NotInstallable;
use muser_enrol::{Difference, FrameError, IssueError, Kind, RedeemError, RefuseCode};
use muser_host::Refused;
use muser_kv::{ExportError, InstallError};
use muser_lane::{LaneError, SetupError};
use muser_ledger::OpenError;
use muser_model::Component;
use muser_trust::identity::{AuthorityError, CertificateError, IdentityError, RevocationsError, Roles};
use muser_trust::keys::{KeyError, KeyFileError};
use muser_trust::random::NoRandomness;
use muser_wire::RequestError;
use rustls::{AlertDescription, CertificateError as TlsCertificateError, Error as TlsError};

use crate::handoff::{BringError, HandoffError};

/// Failure of an enrolment. Whatever the node was granted, if anything, is revoked, and nothing of its folder is kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolError {
    /// The ticket's address cannot be reached.
    #[error("{address} cannot be reached: {error}")]
    Connect {
        /// Address in the ticket.
        address: String,
        /// I/O error of the connection attempt.
        error: io::Error,
    },
    /// The peer does not have the CA's key.
    #[error("who answers is not the cluster of this ticket")]
    OtherCluster,
    /// The two clocks are too far apart.
    #[error("the certificate of the other end is not valid by our clock: compare the clocks of the two machines")]
    Clocks,
    /// It speaks TLS for something else.
    #[error("the other end takes no part in an enrolment")]
    NotEnrolling,
    /// It speaks no TLS that we accept.
    #[error("the other end does not speak our TLS: {reason}")]
    Tls {
        /// Message of the TLS library.
        reason: String,
    },
    /// The peer exceeded a time limit.
    #[error("{what} did not come within {} s", limit.as_secs_f64())]
    TooSlow {
        /// The message or step awaited.
        what: &'static str,
        /// Time limit.
        limit: Duration,
    },
    /// The peer closed the connection.
    #[error("the other end closed the connection")]
    Closed,
    /// The network failed.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// A malformed frame of the peer.
    #[error("the other end does not follow the protocol: {0}")]
    Frame(#[from] FrameError),
    /// A well-formed message in the wrong place.
    #[error("the other end sent {got:?} where {wanted:?} was awaited")]
    Unexpected {
        /// Kind received.
        got: Kind,
        /// Kind expected.
        wanted: Kind,
    },
    /// The peer refuses, with a reason.
    #[error("the other end refuses ({code:?}): {detail}")]
    RefusedByPeer {
        /// The reason.
        code: RefuseCode,
        /// Description of the reason.
        detail: String,
    },
    /// The secret is wrong, used or expired.
    #[error(transparent)]
    Redeem(#[from] RedeemError),
    /// Another model, or another layout of keys and values.
    #[error("the two machines do not have the same model: their {0} differ")]
    OtherModel(Component),
    /// The new node's name is not valid.
    #[error(transparent)]
    Name(#[from] CertificateError),
    /// The new node has the enrolling node's name; names must tell nodes apart.
    #[error("the new node wants to be called {name}, as the enrolling node is")]
    SameName {
        /// The name.
        name: String,
    },
    /// Neither node could compute for the other.
    #[error("a {theirs} can do nothing with this node, which is a {ours}")]
    NothingInCommon {
        /// Roles of this node.
        ours: Roles,
        /// Roles that the new one is to have.
        theirs: Roles,
    },
    /// A new producer without an address that decoders could connect to.
    #[error("the new node is to produce, and does not say where it listens")]
    NoAddress,
    /// The ticket expired unused.
    #[error("nobody used the ticket before it expired")]
    NobodyCame,
    /// No lane between the two nodes.
    #[error("no lane between the two: {0}")]
    Lane(#[from] LaneError),
    /// TLS does not take our own identity.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Bytes of the link test were lost.
    #[error("{sent} bytes were sent through the link and {seen} came")]
    BytesLost {
        /// As counted by the sender.
        sent: u64,
        /// As counted by the receiver.
        seen: u64,
    },
    /// The link is too slow to test anything.
    #[error("the link moved nothing in the time of a test")]
    NoBytes,
    /// The handoff failed.
    #[error("the qualification handoff failed: {0}")]
    Bring(#[from] BringError),
    /// The brought pages cannot be installed.
    #[error("the qualification handoff failed: {0}")]
    Install(#[from] InstallError),
    /// The pages to compare with cannot be exported.
    #[error("the qualification handoff failed: {0}")]
    Export(#[from] ExportError),
    /// The brought pages, or the logits from them, have other bits.
    #[error("the qualification failed: {0}")]
    OtherBits(#[from] Difference),
    /// The engine of this node failed.
    #[error("the engine does not compute the qualification prompt: {0}")]
    Engine(String),
    /// The cluster folder of this node.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The CA of this node.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A MAC key of the tests.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The MAC keys of this node, or those that were sent to it.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The deny-list of this node.
    #[error(transparent)]
    Revocations(#[from] RevocationsError),
    /// The ledger of this node.
    #[error(transparent)]
    Ledger(#[from] OpenError),
    /// No ticket can be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// No secret can be made.
    #[error(transparent)]
    Random(#[from] NoRandomness),
    /// The new node could not keep its folder.
    #[error("{0}")]
    Keep(String),
    /// The address cannot be listened on.
    #[error("{address}: {error}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// I/O error of the operating system.
        error: io::Error,
    },
}

impl EnrolError {
    /// Maps an error during a TLS handshake to the failure that it stands for.
    pub(super) fn of_handshake(error: io::Error) -> Self {
        let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) else {
            return Self::of_io(error);
        };
        use TlsCertificateError as Fault;
        match tls {
            TlsError::InvalidCertificate(Fault::UnknownIssuer | Fault::BadSignature)
            | TlsError::InvalidCertificate(Fault::NotValidForName | Fault::NotValidForNameContext { .. })
            | TlsError::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate) => {
                Self::OtherCluster
            }
            TlsError::InvalidCertificate(
                Fault::Expired | Fault::ExpiredContext { .. } | Fault::NotValidYet | Fault::NotValidYetContext { .. },
            )
            | TlsError::AlertReceived(AlertDescription::CertificateExpired) => Self::Clocks,
            TlsError::NoApplicationProtocol | TlsError::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::NotEnrolling
            }
            _ => Self::Tls { reason: tls.to_string() },
        }
    }

    pub(super) fn of_io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }

    /// Refusal code for the peer, if it still reads.
    pub(super) fn code(&self) -> RefuseCode {
        match self {
            Self::Redeem(RedeemError::Wrong) => RefuseCode::WrongTicket,
            Self::Redeem(RedeemError::Used) => RefuseCode::UsedTicket,
            Self::Redeem(RedeemError::Expired { .. }) => RefuseCode::ExpiredTicket,
            Self::Name(_) | Self::SameName { .. } => RefuseCode::BadName,
            Self::Authority(AuthorityError::BadRequest(_)) => RefuseCode::BadRequest,
            Self::OtherModel(_) => RefuseCode::OtherModel,
            Self::Frame(_) | Self::Unexpected { .. } | Self::TooSlow { .. } | Self::NoAddress => RefuseCode::Protocol,
            Self::Lane(_) | Self::BytesLost { .. } | Self::NoBytes | Self::Bring(_) | Self::Install(_) => {
                RefuseCode::Link
            }
            Self::OtherBits(_) => RefuseCode::OtherBits,
            _ => RefuseCode::Internal,
        }
    }
}

impl From<Refused> for EnrolError {
    fn from(refused: Refused) -> Self {
        Self::Engine(refused.to_string())
    }
}

impl From<NotInstallable> for EnrolError {
    fn from(refused: NotInstallable) -> Self {
        Self::Engine(refused.to_string())
    }
}

impl From<RequestError> for EnrolError {
    fn from(error: RequestError) -> Self {
        Self::Bring(HandoffError::Request(error).into())
    }
}
