//! The header in front of every frame. The byte table below is the specification.

use crate::crc32c::crc32c;

/// The first 24 bytes of every frame, little-endian.
///
/// | byte | field         | meaning                                                          |
/// |------|---------------|------------------------------------------------------------------|
/// | 0    | magic         | `b"MUSR"`                                                        |
/// | 4    | version       | `u16`, layout of the frame itself: [`FRAME_VERSION`]             |
/// | 6    | kind          | `u16`, see [`FrameKind`]                                         |
/// | 8    | flags         | `u32`, must be 0                                                 |
/// | 12   | body_bytes    | `u64`, length of the body                                        |
/// | 20   | header_crc32c | `u32`, checksum of bytes 0..20                                   |
/// | 24   | body          | `body_bytes` bytes                                               |
/// | …    | digest        | 32 bytes, BLAKE3 of the body                                     |
///
/// The header has its own checksum, so that `body_bytes` is verified before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the body.
    pub kind: FrameKind,
    /// Length of the body, in bytes.
    pub body_bytes: u64,
}

/// Message type of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FrameKind {
    /// [`Hello`](crate::Hello), from the receiver.
    Hello = 1,
    /// [`HelloAck`](crate::HelloAck), from the sender.
    HelloAck = 2,
    /// [`Refuse`](crate::Refuse), from either side.
    Refuse = 3,
    /// [`Request`](crate::Request), from the receiver.
    Request = 4,
    /// [`Accept`](crate::Accept), from the sender.
    Accept = 5,
    /// [`Pages`](crate::Pages), from the sender.
    Pages = 6,
    /// [`Progress`](crate::Progress), from the sender.
    Progress = 7,
    /// [`Commit`](crate::Commit), from the sender.
    Commit = 8,
    /// A handoff id, from the receiver.
    Installed = 9,
    /// [`Cancel`](crate::Cancel), from either side.
    Cancel = 10,
    /// Eight bytes to send back, from either side.
    Ping = 11,
    /// The eight bytes of a ping.
    Pong = 12,
}

/// The longest bodies that are taken, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of a [`FrameKind::Request`]; see [`Limits::new`].
    pub request_bytes_max: u64,
    /// Of a [`FrameKind::Pages`].
    pub pages_bytes_max: u64,
}

/// Error of a frame. Every variant is the peer's or the network's fault, and ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer does not speak this protocol.
    #[error("not a muser frame: magic {0:02x?}")]
    BadMagic([u8; 4]),
    /// The header was damaged.
    #[error("the header's checksum is {got:08x}, its bytes give {want:08x}")]
    BadHeaderChecksum {
        /// As received.
        got: u32,
        /// As computed here.
        want: u32,
    },
    /// Another layout of frames.
    #[error("frame version {got}, this build reads {FRAME_VERSION}")]
    WrongVersion {
        /// As received.
        got: u16,
    },
    /// A flag that this version does not define.
    #[error("flags {0:08x} are not 0")]
    Flags(u32),
    /// A kind that this version does not define.
    #[error("unknown frame kind {0}")]
    UnknownKind(u16),
    /// Refused before anything is allocated for the body.
    #[error("a {kind:?} body of {got} bytes exceeds the limit of {max}")]
    BodyTooLarge {
        /// The frame's kind.
        kind: FrameKind,
        /// Announced length.
        got: u64,
        /// The limit for this kind.
        max: u64,
    },
    /// The body was damaged.
    #[error("the digest of a {0:?} body is wrong")]
    BadBodyDigest(FrameKind),
}

/// Layout of frames. Raise it on any change to the header's byte table.
pub const FRAME_VERSION: u16 = 2;

impl FrameHeader {
    /// Encoded size, in bytes.
    pub const BYTES: usize = 24;
    /// Size of the digest behind the body, in bytes.
    pub const DIGEST_BYTES: usize = 32;

    /// Reads a header.
    ///
    /// # Errors
    /// Any [`FrameError`] but [`FrameError::BadBodyDigest`]; the checksum is verified before any other field is used.
    pub fn decode(bytes: &[u8; Self::BYTES], limits: &Limits) -> Result<Self, FrameError> {
        let magic = field(bytes, 0);
        if magic != MAGIC {
            return Err(FrameError::BadMagic(magic));
        }
        let (got, want) = (u32::from_le_bytes(field(bytes, 20)), crc32c(&bytes[..20]));
        if got != want {
            return Err(FrameError::BadHeaderChecksum { got, want });
        }
        let version = u16::from_le_bytes(field(bytes, 4));
        if version != FRAME_VERSION {
            return Err(FrameError::WrongVersion { got: version });
        }
        let kind = FrameKind::decode(u16::from_le_bytes(field(bytes, 6)))?;
        let flags = u32::from_le_bytes(field(bytes, 8));
        if flags != 0 {
            return Err(FrameError::Flags(flags));
        }
        let (got, max) = (u64::from_le_bytes(field(bytes, 12)), limits.of(kind));
        if got > max {
            return Err(FrameError::BodyTooLarge { kind, got, max });
        }
        Ok(Self { kind, body_bytes: got })
    }

    /// The bytes that [`FrameHeader::decode`] reads back.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&FRAME_VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[12..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        let checksum = crc32c(&out[..20]);
        out[20..24].copy_from_slice(&checksum.to_le_bytes());
        out
    }
}

impl FrameKind {
    /// Every kind, in the order of the numbers 1, 2, ….
    pub const ALL: [Self; 12] = [
        Self::Hello,
        Self::HelloAck,
        Self::Refuse,
        Self::Request,
        Self::Accept,
        Self::Pages,
        Self::Progress,
        Self::Commit,
        Self::Installed,
        Self::Cancel,
        Self::Ping,
        Self::Pong,
    ];

    fn decode(raw: u16) -> Result<Self, FrameError> {
        let known = usize::from(raw).checked_sub(1).and_then(|index| Self::ALL.get(index));
        known.copied().ok_or(FrameError::UnknownKind(raw))
    }
}

impl Limits {
    /// Longest body of every kind but `Request` and `Pages`, in bytes.
    pub const CONTROL_BYTES_MAX: u64 = 64 << 10;
    /// Longest `Pages` body by default, in bytes.
    pub const PAGES_BYTES_DEFAULT: u32 = 16 << 20;

    /// Requests of up to `context_max` tokens, and `Pages` bodies of up to `pages_bytes_max` bytes.
    pub fn new(context_max: u32, pages_bytes_max: u32) -> Self {
        let tokens = 4 * u64::from(context_max);
        Self {
            request_bytes_max: crate::Request::FIXED_BYTES as u64 + tokens,
            pages_bytes_max: u64::from(pages_bytes_max),
        }
    }

    /// The longest body of `kind`, in bytes.
    pub fn of(&self, kind: FrameKind) -> u64 {
        match kind {
            FrameKind::Request => self.request_bytes_max,
            FrameKind::Pages => self.pages_bytes_max,
            _ => Self::CONTROL_BYTES_MAX,
        }
    }
}

fn field<const N: usize>(header: &[u8; FrameHeader::BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| header[at + index])
}

const MAGIC: [u8; 4] = *b"MUSR";

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { request_bytes_max: 1 << 20, pages_bytes_max: 1 << 24 };

    #[test]
    fn every_kind_is_read_back_and_no_other_number_is_a_kind() {
        for (index, kind) in FrameKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
            let header = FrameHeader { kind, body_bytes: 8 };
            assert_eq!(FrameHeader::decode(&header.encode(), &LIMITS), Ok(header));
        }
        for raw in [0, 13, 0x0100, u16::MAX] {
            assert_eq!(FrameHeader::decode(&forged(6, &raw.to_le_bytes()), &LIMITS), Err(FrameError::UnknownKind(raw)));
        }
    }

    #[test]
    fn flags_versions_and_long_bodies_are_refused_under_a_valid_checksum() {
        let decode = |at, bytes: &[u8]| FrameHeader::decode(&forged(at, bytes), &LIMITS);
        assert_eq!(decode(8, &[0, 0, 0, 1]), Err(FrameError::Flags(1 << 24)));
        assert_eq!(decode(4, &[1, 0]), Err(FrameError::WrongVersion { got: 1 }));
        let (kind, max) = (FrameKind::Ping, Limits::CONTROL_BYTES_MAX);
        assert_eq!(decode(12, &(max + 1).to_le_bytes()), Err(FrameError::BodyTooLarge { kind, got: max + 1, max }));
        assert!(decode(12, &max.to_le_bytes()).is_ok());
        assert!(matches!(decode(12, &u64::MAX.to_le_bytes()), Err(FrameError::BodyTooLarge { .. })));
    }

    /// A ping's header with other bytes at `at` and a checksum that fits.
    fn forged(at: usize, bytes: &[u8]) -> [u8; FrameHeader::BYTES] {
        let mut header = FrameHeader { kind: FrameKind::Ping, body_bytes: 8 }.encode();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        let checksum = crc32c(&header[..20]);
        header[20..].copy_from_slice(&checksum.to_le_bytes());
        header
    }
}
