//! Any message, to and from a frame.

use crate::HandoffId;
use crate::body::{BodyError, Fields};
use crate::header::FrameKind;
use crate::hello::{Hello, HelloAck};
use crate::reader::{Frame, write_frame};
use crate::refuse::{Cancel, Refuse};
use crate::transfer::{Accept, Commit, Pages, Progress, Request};

/// The content of a frame. Each type has its byte table; [`Message::Installed`] is the 16 bytes of a handoff id,
/// a ping and a pong are one `u64`. No body has optional parts, and a byte behind the last field is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is named like the type it holds, or explained above")]
pub enum Message<'a> {
    Hello(Hello),
    HelloAck(HelloAck),
    Refuse(Refuse),
    Request(Request),
    Accept(Accept),
    Pages(Pages<'a>),
    Progress(Progress),
    Commit(Commit),
    Installed(HandoffId),
    Cancel(Cancel),
    Ping(u64),
    Pong(u64),
}

impl<'a> Message<'a> {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// Any [`BodyError`].
    pub fn decode(frame: &Frame<'a>) -> Result<Self, BodyError> {
        let body = frame.body;
        Ok(match frame.kind {
            FrameKind::Hello => Self::Hello(Hello::read(body)?),
            FrameKind::HelloAck => Self::HelloAck(HelloAck::read(body)?),
            FrameKind::Refuse => Self::Refuse(Refuse::read(body)?),
            FrameKind::Request => Self::Request(Request::read(body)?),
            FrameKind::Accept => Self::Accept(Accept::read(body)?),
            FrameKind::Pages => Self::Pages(Pages::read(body)?),
            FrameKind::Progress => Self::Progress(Progress::read(body)?),
            FrameKind::Commit => Self::Commit(Commit::read(body)?),
            FrameKind::Installed => Self::Installed(HandoffId(only(frame)?)),
            FrameKind::Cancel => Self::Cancel(Cancel::read(body)?),
            FrameKind::Ping => Self::Ping(u64::from_le_bytes(only(frame)?)),
            FrameKind::Pong => Self::Pong(u64::from_le_bytes(only(frame)?)),
        })
    }

    /// Appends the message as a frame and returns the digest of its body.
    pub fn write_frame(&self, out: &mut Vec<u8>) -> blake3::Hash {
        write_frame(out, self.kind(), |out| match self {
            Self::Hello(hello) => hello.write(out),
            Self::HelloAck(ack) => ack.write(out),
            Self::Refuse(refuse) => refuse.write(out),
            Self::Request(request) => request.write(out),
            Self::Accept(accept) => accept.write(out),
            Self::Pages(pages) => pages.write(out),
            Self::Progress(progress) => progress.write(out),
            Self::Commit(commit) => commit.write(out),
            Self::Installed(handoff) => out.extend_from_slice(&handoff.0),
            Self::Cancel(cancel) => cancel.write(out),
            Self::Ping(value) | Self::Pong(value) => out.extend_from_slice(&value.to_le_bytes()),
        })
    }

    /// The message on its own: of `Pages` what is in front of the entries.
    pub(crate) fn without_entries(self) -> Message<'static> {
        match self {
            Self::Hello(hello) => Message::Hello(hello),
            Self::HelloAck(ack) => Message::HelloAck(ack),
            Self::Refuse(refuse) => Message::Refuse(refuse),
            Self::Request(request) => Message::Request(request),
            Self::Accept(accept) => Message::Accept(accept),
            Self::Pages(pages) => Message::Pages(Pages { entries: &[], ..pages }),
            Self::Progress(progress) => Message::Progress(progress),
            Self::Commit(commit) => Message::Commit(commit),
            Self::Installed(handoff) => Message::Installed(handoff),
            Self::Cancel(cancel) => Message::Cancel(cancel),
            Self::Ping(value) => Message::Ping(value),
            Self::Pong(value) => Message::Pong(value),
        }
    }

    /// The handoff that it is about; `None` for a greeting or a ping.
    pub(crate) fn handoff(&self) -> Option<HandoffId> {
        match self {
            Self::Refuse(Refuse { handoff, .. })
            | Self::Request(Request { handoff, .. })
            | Self::Accept(Accept { handoff, .. })
            | Self::Pages(Pages { handoff, .. })
            | Self::Progress(Progress { handoff, .. })
            | Self::Commit(Commit { handoff, .. })
            | Self::Installed(handoff)
            | Self::Cancel(Cancel { handoff, .. }) => Some(*handoff),
            Self::Hello(_) | Self::HelloAck(_) | Self::Ping(_) | Self::Pong(_) => None,
        }
    }

    /// The kind of frame that holds it.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Hello(_) => FrameKind::Hello,
            Self::HelloAck(_) => FrameKind::HelloAck,
            Self::Refuse(_) => FrameKind::Refuse,
            Self::Request(_) => FrameKind::Request,
            Self::Accept(_) => FrameKind::Accept,
            Self::Pages(_) => FrameKind::Pages,
            Self::Progress(_) => FrameKind::Progress,
            Self::Commit(_) => FrameKind::Commit,
            Self::Installed(_) => FrameKind::Installed,
            Self::Cancel(_) => FrameKind::Cancel,
            Self::Ping(_) => FrameKind::Ping,
            Self::Pong(_) => FrameKind::Pong,
        }
    }
}

/// The one field of a body that has no other.
fn only<const N: usize>(frame: &Frame<'_>) -> Result<[u8; N], BodyError> {
    let mut fields = Fields::new(frame.kind, frame.body);
    let field = fields.array()?;
    fields.finish()?;
    Ok(field)
}
