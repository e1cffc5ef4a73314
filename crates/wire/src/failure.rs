//! Failures that end a connection.

use crate::body::BodyError;
use crate::codec::UnpackError;
use crate::header::{FrameError, FrameKind};
use crate::hello::Component;
use crate::manifest::KeyError;
use crate::refuse::{Refuse, RefuseCode};

/// Failure that ended a connection. The handoff under way, if any, is void: its arrived pages must be dropped. Nothing
/// more is read or sent on the connection but the refusal that tells the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Bytes that are not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that is not a message.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A message that the protocol does not allow now, or one for another handoff.
    #[error("an unexpected {kind:?} frame while {state}")]
    Unexpected {
        /// The frame's kind.
        kind: FrameKind,
        /// State of this end.
        state: &'static str,
    },
    /// No common version of messages.
    #[error("the peer speaks versions {min} to {max}")]
    Version {
        /// The peer's oldest.
        min: u16,
        /// The peer's newest.
        max: u16,
    },
    /// The peer's identity differs: its pages would have other bytes.
    #[error("the peer has another {0}")]
    Identity(Component),
    /// An acceptance of something else than was requested, or of another plan.
    #[error("the peer accepted {field} {got}, not {want}")]
    Accept {
        /// The field that differs.
        field: &'static str,
        /// As accepted.
        got: u64,
        /// As requested or planned; the largest possible for the first page.
        want: u64,
    },
    /// A `Pages` frame is missing, came twice, or came out of order.
    #[error("pages frame {got} came where {want} was due")]
    Sequence {
        /// As received.
        got: u64,
        /// The next in order.
        want: u64,
    },
    /// A `Pages` frame without a page of the plan.
    #[error("pages {first_page} and the {page_count} from there of group {group} are not in the plan")]
    NothingPlanned {
        /// The layer group.
        group: u8,
        /// The first page announced.
        first_page: u32,
        /// Pages announced.
        page_count: u32,
    },
    /// The same page twice.
    #[error("page {page} of layer {layer} came twice")]
    Duplicate {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
    },
    /// A page in a form that was not agreed on.
    #[error("page {page} of layer {layer} has codec {codec} and {stored} bytes")]
    Entry {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
        /// Number of the codec and the three bytes behind it.
        codec: u32,
        /// Bytes announced.
        stored: u32,
    },
    /// A packed page that does not unpack to a page.
    #[error("page {page} of layer {layer}: {cause}")]
    Unpack {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
        /// The codec's error.
        cause: UnpackError,
    },
    /// A progress that goes backward or beyond the rows.
    #[error("progress of {done} of {total} rows")]
    Progress {
        /// Rows announced as done.
        done: u32,
        /// Rows announced in total.
        total: u32,
    },
    /// The sender committed before all pages came.
    #[error("committed with {missing} pages missing")]
    Incomplete {
        /// Pages that did not come.
        missing: u64,
    },
    /// The commit was made for another connection than the one that it came over.
    #[error("the manifest is of another lane: it was relayed, or sent again")]
    OtherLane,
    /// The commit names other frames than arrived.
    #[error("committed {frames} frames and {stored_bytes} bytes, or another root than what arrived")]
    Manifest {
        /// Frames, as committed.
        frames: u64,
        /// Stored bytes, as committed.
        stored_bytes: u64,
    },
    /// The commit was not made with the key.
    #[error("the manifest's MAC is not that of key {0}")]
    Mac(u32),
    /// The key is unknown, revoked or not active.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The handoff's time, or the time to acknowledge a cancellation, is over.
    #[error("the handoff expired {late_ms} ms ago")]
    Expired {
        /// Since then.
        late_ms: u64,
    },
    /// The peer neither sends nor takes bytes.
    #[error("nothing moved for {silent_ms} ms")]
    Stalled {
        /// Since then.
        silent_ms: u64,
    },
    /// The peer sent no whole greeting, whatever else it sent.
    #[error("no greeting for {waited_ms} ms")]
    NotGreeted {
        /// Since the connection was opened.
        waited_ms: u64,
    },
    /// The peer's greeting names another node than its certificate.
    #[error("the peer calls itself node {}, and its certificate is that of node {}", hex(.named), hex(.admitted))]
    OtherNode {
        /// Node id in the greeting.
        named: [u8; 32],
        /// Node id in the certificate.
        admitted: [u8; 32],
    },
    /// More pings and other frames without effect than the limits allow.
    #[error("{0} frames came that nothing asked for")]
    Unasked(u64),
    /// The peer sends pings and does not read the answers.
    #[error("{0} pings are not answered because the peer does not read")]
    PingFlood(u32),
    /// The peer refused to go on.
    #[error("the peer refused: {:?} {}", .0.code, .0.detail)]
    RefusedByPeer(Refuse),
    /// The connection ended.
    #[error("the connection ended while {0}")]
    Ended(&'static str),
}

impl Failure {
    /// The code that tells the peer, or none if it need not or cannot be told.
    pub fn code(&self) -> Option<RefuseCode> {
        Some(match self {
            Self::RefusedByPeer(_) | Self::Ended(_) => return None,
            Self::Version { .. } => RefuseCode::Version,
            Self::Identity(_) => RefuseCode::Identity,
            Self::Incomplete { .. } | Self::Manifest { .. } => RefuseCode::BadManifest,
            Self::Mac(_) | Self::OtherLane => RefuseCode::BadMac,
            Self::Key(KeyError::Revoked(_)) => RefuseCode::RevokedKey,
            Self::Key(_) => RefuseCode::UnknownKey,
            Self::Expired { .. } => RefuseCode::Expired,
            Self::Stalled { .. } | Self::NotGreeted { .. } => RefuseCode::Stalled,
            Self::Frame(FrameError::BodyTooLarge { kind: FrameKind::Request, .. }) => RefuseCode::TooLong,
            _ => RefuseCode::Protocol,
        })
    }
}

/// For people.
fn hex(id: &[u8; 32]) -> blake3::Hash {
    blake3::Hash::from_bytes(*id)
}
