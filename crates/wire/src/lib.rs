//! The handoff protocol without sockets: bytes in, bytes and events out.
//!
//! A *receiver* (the decoding node) connects, a *sender* (the node that computes prompts) listens. A connection carries
//! one handshake and then any number of handoffs, one at a time. [`FrameReader`] cuts the byte stream into checked
//! frames, [`Message`] reads and writes their bodies, [`HandoffPlan`] lists the pages to move, [`Manifest`] binds all
//! of it to a key, and [`Endpoint`] is the state machine of an end: a [`Receiver`] or a [`Sender`], by its role.
//!
//! The crate has no socket, thread or clock; a moment is an argument, in milliseconds from any fixed point.

#![forbid(unsafe_code)]

mod arrivals;
mod body;
mod checklist;
mod codec;
mod crc32c;
mod departures;
mod endpoint;
mod failure;
mod header;
mod hello;
mod link;
mod manifest;
mod message;
mod plan;
mod reader;
mod receiver;
mod refuse;
mod sender;
mod transfer;

pub use body::BodyError;
pub use codec::{Codecs, PageCodec, PagePacker, UnpackError};
pub use departures::{SendError, Sent};
pub use endpoint::Endpoint;
pub use failure::Failure;
pub use header::{FRAME_VERSION, FrameError, FrameHeader, FrameKind, Limits};
pub use hello::{Component, Hello, HelloAck, Identity, Node};
pub use manifest::{KeyError, KeyState, LaneBinding, MacKeys, Manifest};
pub use message::Message;
pub use plan::{Framing, HandoffPlan, PlanError, layer_groups};
pub use reader::{Frame, FrameReader, write_frame};
pub use receiver::{Receiver, ReceiverEvent, ReceiverSettings, Receiving, RequestError, Stats};
pub use refuse::{Cancel, CancelReason, Refuse, RefuseCode};
pub use sender::{Acceptance, Sender, SenderEvent, SenderSettings, Sending};
pub use transfer::{Accept, Commit, Pages, Progress, Request, SenderTimes, VERSIONS};

/// Names a handoff; drawn at random by the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffId(pub [u8; 16]);

impl HandoffId {
    /// No handoff.
    pub const NONE: Self = Self([0; 16]);
}

/// Rows of a list of tokens. A longer list than a `u32` counts is refused before it gets here.
fn rows_of(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}
