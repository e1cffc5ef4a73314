//! Refusals and cancellations: typed reasons that cross the wire.

use crate::HandoffId;
use crate::body::{BodyError, Fields};
use crate::header::FrameKind;

/// A refusal. A refused request leaves the connection usable; any other refusal ends it.
///
/// | byte | field          | meaning                                                                |
/// |------|----------------|------------------------------------------------------------------------|
/// | 0    | handoff        | 16 bytes, zeroes if no handoff is meant                                |
/// | 16   | code           | `u16`, see [`RefuseCode`]                                              |
/// | 18   | field          | `u8`, for [`RefuseCode::Identity`] the component from 1, otherwise 0   |
/// | 19   | retry_after_ms | `u32`, when asking again may help; 0 for not known                     |
/// | 23   | detail_bytes   | `u8`, at most 200                                                      |
/// | 24   | detail         | UTF-8, for people                                                      |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The handoff, zeroes for none.
    pub handoff: HandoffId,
    /// The reason.
    pub code: RefuseCode,
    /// Number of the component or field meant, from 1; 0 for none.
    pub field: u8,
    /// Delay before a retry may help; 0 if not known.
    pub retry_after_ms: u32,
    /// Human-readable detail, at most [`Refuse::DETAIL_BYTES_MAX`] bytes.
    pub detail: String,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RefuseCode {
    /// No common version of messages.
    Version = 1,
    /// Another model, tokenizer, configuration, arithmetic or KV layout.
    Identity = 2,
    /// A key id that this side does not know.
    UnknownKey = 3,
    /// A key id that is no longer valid.
    RevokedKey = 4,
    /// As many handoffs as allowed are under way.
    Busy = 5,
    /// More rows than this side can compute.
    TooLong = 6,
    /// The pages claimed as held are not those of these tokens.
    StaleClaim = 7,
    /// The handoff's time is over.
    Expired = 8,
    /// The handoff was used before.
    Replay = 9,
    /// Frames, bytes or root differ from what arrived.
    BadManifest = 10,
    /// The manifest was not made with the key.
    BadMac = 11,
    /// A frame that the protocol does not allow there.
    Protocol = 12,
    /// A fault of this side.
    Internal = 13,
    /// This side is about to end.
    ShuttingDown = 14,
    /// Nothing arrived for too long.
    Stalled = 15,
}

/// Cancellation of a handoff by one side; the other side answers with the same frame.
///
/// | byte | field   | meaning                       |
/// |------|---------|-------------------------------|
/// | 0    | handoff | 16 bytes                      |
/// | 16   | reason  | `u16`, see [`CancelReason`]   |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// The handoff.
    pub handoff: HandoffId,
    /// The reason.
    pub reason: CancelReason,
}

/// Reason of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum CancelReason {
    /// The client disconnected.
    ClientGone = 1,
    /// Another source of the pages was faster.
    Superseded = 2,
    /// The caller's deadline passed.
    Deadline = 3,
    /// This side is about to end.
    ShuttingDown = 4,
    /// No memory, or another fault of this side.
    Internal = 5,
    /// The pages arrived and could not be installed.
    NotInstalled = 6,
}

impl Refuse {
    /// Longest detail, in bytes.
    pub const DETAIL_BYTES_MAX: usize = 200;

    /// A refusal without field and time. A detail that is too long is cut at a character.
    pub fn new(handoff: HandoffId, code: RefuseCode, detail: &str) -> Self {
        let end = detail.floor_char_boundary(Self::DETAIL_BYTES_MAX);
        Self { handoff, code, field: 0, retry_after_ms: 0, detail: detail[..end].to_owned() }
    }

    /// The component that differs, for a refusal with [`RefuseCode::Identity`].
    pub fn component(&self) -> Option<crate::Component> {
        (self.code == RefuseCode::Identity).then(|| crate::Component::decode(self.field))?
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let detail = &self.detail[..self.detail.floor_char_boundary(Self::DETAIL_BYTES_MAX)];
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&(self.code as u16).to_le_bytes());
        out.push(self.field);
        out.extend_from_slice(&self.retry_after_ms.to_le_bytes());
        out.push(u8::try_from(detail.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(detail.as_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Refuse, body);
        let handoff = HandoffId(fields.array()?);
        let code = fields.u16()?;
        let code = RefuseCode::decode(code).ok_or_else(|| fields.value("code", code.into()))?;
        let (field, retry_after_ms, length) = (fields.u8()?, fields.u32()?, fields.u8()?);
        if usize::from(length) > Self::DETAIL_BYTES_MAX {
            return Err(fields.value("detail_bytes", length.into()));
        }
        let detail = std::str::from_utf8(fields.bytes(length.into())?);
        let detail = detail.map_err(|broken| fields.value("detail at byte", broken.valid_up_to() as u64))?.to_owned();
        fields.finish()?;
        Ok(Self { handoff, code, field, retry_after_ms, detail })
    }
}

impl RefuseCode {
    /// Every code, in the order of the numbers 1, 2, ….
    pub const ALL: [Self; 15] = [
        Self::Version,
        Self::Identity,
        Self::UnknownKey,
        Self::RevokedKey,
        Self::Busy,
        Self::TooLong,
        Self::StaleClaim,
        Self::Expired,
        Self::Replay,
        Self::BadManifest,
        Self::BadMac,
        Self::Protocol,
        Self::Internal,
        Self::ShuttingDown,
        Self::Stalled,
    ];

    fn decode(raw: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u16 == raw)
    }
}

impl Cancel {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&(self.reason as u16).to_le_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Cancel, body);
        let (handoff, reason) = (HandoffId(fields.array()?), fields.u16()?);
        let known = CancelReason::ALL.into_iter().find(|known| *known as u16 == reason);
        let reason = known.ok_or_else(|| fields.value("reason", reason.into()))?;
        fields.finish()?;
        Ok(Self { handoff, reason })
    }
}

impl CancelReason {
    /// Every reason, in the order of the numbers 1, 2, ….
    pub const ALL: [Self; 6] =
        [Self::ClientGone, Self::Superseded, Self::Deadline, Self::ShuttingDown, Self::Internal, Self::NotInstalled];
}
