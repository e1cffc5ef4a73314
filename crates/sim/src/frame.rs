//! Frames on the network, as an attacker without a key can read and change them.

use muser_wire::{FrameHeader, FrameKind, HandoffId, PageCodec, Pages, Request};

/// One frame, whole.
#[derive(Clone, Debug)]
pub(crate) struct Frame(pub(crate) Vec<u8>);

/// Position in a frame at which a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    InHeader,
    HeaderEnd,
    InBody,
    BodyEnd,
    InDigest,
    FrameEnd,
}

impl Place {
    pub(crate) const ALL: [Self; 6] =
        [Self::InHeader, Self::HeaderEnd, Self::InBody, Self::BodyEnd, Self::InDigest, Self::FrameEnd];
}

impl Frame {
    /// Takes the first frame off `bytes`, if it is whole. The bytes come from a state machine, so its lengths are right.
    pub(crate) fn split_off(bytes: &mut Vec<u8>) -> Option<Self> {
        let length = FrameHeader::BYTES + body_bytes(bytes)? + FrameHeader::DIGEST_BYTES;
        (bytes.len() >= length).then(|| Self(bytes.drain(..length).collect()))
    }

    /// A frame of `kind`, intact.
    pub(crate) fn new(kind: FrameKind, body: &[u8]) -> Self {
        let mut bytes = Vec::new();
        muser_wire::write_frame(&mut bytes, kind, |out| out.extend_from_slice(body));
        Self(bytes)
    }

    /// A header that announces `body_bytes` bytes, with the right checksum, and nothing behind it.
    pub(crate) fn header(kind: FrameKind, body_bytes: u64) -> Vec<u8> {
        FrameHeader { kind, body_bytes }.encode().to_vec()
    }

    pub(crate) fn kind(&self) -> FrameKind {
        FrameKind::ALL[usize::from(self.0[6]).saturating_sub(1) % FrameKind::ALL.len()]
    }

    /// Bytes of the frame that lie before `place`; inside a part, `random` chooses where.
    pub(crate) fn offset(&self, place: Place, random: &mut fastrand::Rng) -> usize {
        let (header, digest) = (FrameHeader::BYTES, self.0.len() - FrameHeader::DIGEST_BYTES);
        match place {
            Place::InHeader => random.usize(1..header),
            Place::HeaderEnd => header,
            // Every body has at least eight bytes.
            Place::InBody => random.usize(header + 1..digest),
            Place::BodyEnd => digest,
            Place::InDigest => random.usize(digest + 1..self.0.len()),
            Place::FrameEnd => self.0.len(),
        }
    }

    /// Flips a bit of the header, the body or the digest, and leaves the checksums as they were.
    pub(crate) fn flip(&mut self, place: Place, random: &mut fastrand::Rng) {
        let at = self.offset(place, random).min(self.0.len() - 1);
        self.0[at] ^= 1 << random.u8(0..8);
    }

    /// Flips a bit of the header's fields or of the body, and recomputes the checksums.
    pub(crate) fn forge(&mut self, place: Place, random: &mut fastrand::Rng) {
        if matches!(place, Place::InHeader | Place::HeaderEnd) {
            self.0[random.usize(4..20)] ^= 1 << random.u8(0..8);
            let checksum = crc32c(&self.0[..20]);
            self.0[20..24].copy_from_slice(&checksum.to_le_bytes());
        } else {
            let mut body = self.body().to_vec();
            // Most fields are at the front of a body; the first page of `Pages`, if it is packed, begins behind its entry.
            let end = if random.bool() { body.len() } else { body.len().min(40) };
            let packed = Pages::FIXED_BYTES + Pages::ENTRY_BYTES;
            let is_packed = self.kind() == FrameKind::Pages && body[Pages::FIXED_BYTES] == PageCodec::PlanesLz4 as u8;
            let at = if is_packed && random.bool() { packed } else { random.usize(0..end) };
            body[at] ^= 1 << random.u8(0..8);
            *self = Self::new(self.kind(), &body);
        }
    }

    /// Gives a `Pages` frame the next sequence number.
    pub(crate) fn renumber(&mut self) {
        if self.kind() == FrameKind::Pages {
            let mut body = self.body().to_vec();
            body[16] = body[16].wrapping_add(1);
            *self = Self::new(FrameKind::Pages, &body);
        }
    }

    /// Removes all pages of a `Pages` frame.
    pub(crate) fn empty(&mut self) {
        if self.kind() == FrameKind::Pages {
            let mut body = self.body()[..Pages::FIXED_BYTES].to_vec();
            body[29..].fill(0);
            *self = Self::new(FrameKind::Pages, &body);
        }
    }

    /// The tokens of a request for `handoff`, if it is one.
    pub(crate) fn tokens_of(&self, handoff: HandoffId) -> Option<Vec<u32>> {
        let body = self.body();
        let is_it = self.kind() == FrameKind::Request && body[..16] == handoff.0;
        let (tokens, _) = body.get(Request::FIXED_BYTES..)?.as_chunks();
        is_it.then(|| tokens.iter().map(|token| u32::from_le_bytes(*token)).collect())
    }

    fn body(&self) -> &[u8] {
        &self.0[FrameHeader::BYTES..self.0.len() - FrameHeader::DIGEST_BYTES]
    }
}

fn body_bytes(bytes: &[u8]) -> Option<usize> {
    let field = bytes.get(12..20)?;
    let length = u64::from_le_bytes(std::array::from_fn(|index| field[index]));
    usize::try_from(length).ok().filter(|_| bytes.len() >= FrameHeader::BYTES)
}

/// CRC-32C, independent of the implementation under test.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}
