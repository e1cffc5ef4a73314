//! Frames of an enrolment: a header that is checked before its body is read, and the fields of a body.
//!
//! | at | field      | meaning                          |
//! |----|------------|----------------------------------|
//! | 0  | magic      | 4 bytes, `MUEN`                  |
//! | 4  | version    | `u8`, 2                          |
//! | 5  | kind       | `u8`, see [`Kind`]               |
//! | 6  | reserved   | `u16`, 0                         |
//! | 8  | body_bytes | `u32`, at most what the kind may |
//!
//! All numbers are little-endian. TLS keeps the bytes intact, so there is no checksum.

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 12;
const MAGIC: [u8; 4] = *b"MUEN";
const VERSION: u8 = 2;

/// Kind of a frame: its message type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Application of a new node.
    Apply = 1,
    /// Certificate and keys: every test was good.
    Grant = 2,
    /// The new node is ready to be tested.
    Joined = 3,
    /// Results of the tests.
    Report = 4,
    /// The new node has completed its folder.
    Kept = 6,
    /// Refusal with its reason; ends the connection.
    Refuse = 7,
    /// Membership in the cluster of the tests.
    Trial = 8,
    /// Request for a pong.
    Ping = 16,
    /// Answer to a ping.
    Pong = 17,
    /// Request for bulk bytes.
    AskBulk = 18,
    /// Bulk bytes.
    Bulk = 19,
    /// End of the bulk bytes, with their number.
    BulkEnd = 20,
    /// Number of bulk bytes received.
    BulkSeen = 21,
    /// Time that sending took.
    BulkSent = 22,
}

/// Bytes that are no message of an enrolment. The peer's fault; ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Not a frame of this protocol.
    #[error("what came is no frame of an enrolment")]
    NotAFrame,
    /// Another version of the protocol.
    #[error("the peer speaks version {found} of enrolments, this program speaks {VERSION}")]
    Version {
        /// Version received.
        found: u8,
    },
    /// No such kind.
    #[error("there is no frame of kind {kind}")]
    UnknownKind {
        /// As received.
        kind: u8,
    },
    /// Longer than any of its kind.
    #[error("a {kind:?} frame of {bytes} bytes was announced, at most {most} are taken")]
    TooLong {
        /// Its kind.
        kind: Kind,
        /// As announced.
        bytes: u32,
        /// The limit.
        most: u32,
    },
    /// The body ends inside a field.
    #[error("the body of a {kind:?} frame lacks {missing} bytes")]
    Truncated {
        /// Its kind.
        kind: Kind,
        /// Bytes of the field under way that are not there.
        missing: usize,
    },
    /// The body goes on behind its last field.
    #[error("a {kind:?} frame has {extra} bytes behind its last field")]
    Trailing {
        /// Its kind.
        kind: Kind,
        /// Bytes too many.
        extra: usize,
    },
    /// A field has a value without a meaning.
    #[error("{field} of a {kind:?} frame has no meaning")]
    Value {
        /// Its kind.
        kind: Kind,
        /// The field.
        field: &'static str,
    },
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Apply,
        Self::Grant,
        Self::Joined,
        Self::Report,
        Self::Kept,
        Self::Refuse,
        Self::Trial,
        Self::Ping,
        Self::Pong,
        Self::AskBulk,
        Self::Bulk,
        Self::BulkEnd,
        Self::BulkSeen,
        Self::BulkSent,
    ];

    /// Longest body, in bytes.
    pub fn body_bytes_max(self) -> u32 {
        match self {
            Self::Apply => 8 << 10,
            // A full ring of MAC keys, and a deny-list of the same length as its file may have.
            Self::Grant => 8 << 20,
            // Two certificates and one key.
            Self::Trial => 16 << 10,
            Self::Report | Self::Refuse => 2 << 10,
            Self::Bulk => 64 << 10,
            Self::Joined | Self::Kept => 0,
            Self::Ping | Self::Pong | Self::AskBulk | Self::BulkEnd | Self::BulkSeen | Self::BulkSent => 32,
        }
    }
}

/// The header of a frame whose body has `body_bytes` bytes.
pub(super) fn header_of(kind: Kind, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    (header[4], header[5]) = (VERSION, kind as u8);
    header[8..].copy_from_slice(&body_bytes.to_le_bytes());
    header
}

/// Kind and length of the body that follows `header`.
///
/// # Errors
/// [`FrameError`]; nothing behind the header can be understood then.
pub fn parse_header(header: &[u8; HEADER_BYTES]) -> Result<(Kind, u32), FrameError> {
    let [magic @ .., version, kind, reserved_low, reserved_high, b0, b1, b2, b3] = *header;
    if magic != MAGIC {
        return Err(FrameError::NotAFrame);
    }
    if version != VERSION {
        return Err(FrameError::Version { found: version });
    }
    let known = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
    let kind = known.ok_or(FrameError::UnknownKind { kind })?;
    if [reserved_low, reserved_high] != [0, 0] {
        return Err(FrameError::Value { kind, field: "reserved" });
    }
    let (bytes, most) = (u32::from_le_bytes([b0, b1, b2, b3]), kind.body_bytes_max());
    if bytes > most {
        return Err(FrameError::TooLong { kind, bytes, most });
    }
    Ok((kind, bytes))
}

/// The part of a body that is not read yet.
pub(super) struct Fields<'a> {
    kind: Kind,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(kind: Kind, body: &'a [u8]) -> Self {
        Self { kind, rest: body }
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let truncated = FrameError::Truncated { kind: self.kind, missing: count.saturating_sub(self.rest.len()) };
        let (field, rest) = self.rest.split_at_checked(count).ok_or(truncated)?;
        self.rest = rest;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let field = self.bytes(N)?;
        Ok(std::array::from_fn(|index| field[index]))
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    /// UTF-8 text of `count` bytes.
    pub(super) fn text(&mut self, count: usize, field: &'static str) -> Result<&'a str, FrameError> {
        let bytes = self.bytes(count)?;
        std::str::from_utf8(bytes).map_err(|_| self.value(field))
    }

    /// Everything that is left.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(super) fn value(&self, field: &'static str) -> FrameError {
        FrameError::Value { kind: self.kind, field }
    }

    /// Checks that everything was read.
    pub(super) fn finish(self) -> Result<(), FrameError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(FrameError::Trailing { kind: self.kind, extra }),
        }
    }
}
