//! Frame reader over bytes that arrive in pieces of any size.

use crate::header::{FrameError, FrameHeader, FrameKind, Limits};

/// Collects one frame at a time. Memory grows with the bytes that arrived, up to the limit of the frame's kind.
#[derive(Debug)]
pub struct FrameReader {
    limits: Limits,
    header_bytes: [u8; FrameHeader::BYTES],
    digest_bytes: [u8; FrameHeader::DIGEST_BYTES],
    /// Bytes of the frame under way that arrived, over header, body and digest.
    arrived: usize,
    header: Option<FrameHeader>,
    body: Vec<u8>,
    hasher: blake3::Hasher,
    complete: Option<blake3::Hash>,
}

/// A whole frame whose digest was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Kind of the body.
    pub kind: FrameKind,
    /// The body.
    pub body: &'a [u8],
    /// BLAKE3 of the body.
    pub digest: blake3::Hash,
}

impl FrameReader {
    /// Reads frames within `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            header_bytes: [0; FrameHeader::BYTES],
            digest_bytes: [0; FrameHeader::DIGEST_BYTES],
            arrived: 0,
            header: None,
            body: Vec::new(),
            hasher: blake3::Hasher::new(),
            complete: None,
        }
    }

    /// Takes bytes from the front of `bytes` up to the end of the frame under way, and returns how many it took.
    /// While a complete frame waits to be released it takes none.
    ///
    /// # Errors
    /// Any [`FrameError`]. Nothing read after that has a meaning.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let mut taken = 0;
        while self.complete.is_none() {
            let rest = &bytes[taken..];
            let Some(header) = self.header else {
                if rest.is_empty() {
                    break;
                }
                taken += self.take_header(rest)?;
                continue;
            };
            let body_left = header.body_bytes - self.body.len() as u64;
            if body_left > 0 && rest.is_empty() {
                break;
            }
            if body_left > 0 {
                taken += self.take_body(rest, body_left);
                continue;
            }
            if rest.is_empty() {
                break;
            }
            taken += self.take_digest(rest, header.kind)?;
        }
        Ok(taken)
    }

    /// The frame that is complete, if one is.
    pub fn frame(&self) -> Option<Frame<'_>> {
        let (header, digest) = (self.header?, self.complete?);
        Some(Frame { kind: header.kind, body: &self.body, digest })
    }

    /// Forgets the frame under way, complete or not, and begins the next one. Its memory is used again.
    pub fn release(&mut self) {
        self.arrived = 0;
        self.header = None;
        self.body.clear();
        self.hasher.reset();
        self.complete = None;
    }

    /// Gives back memory beyond `bytes_max` that no frame under way needs.
    pub(crate) fn rest(&mut self, bytes_max: usize) {
        self.body.shrink_to(bytes_max);
    }

    /// True if part of a frame arrived and the frame is not complete.
    pub fn is_inside_a_frame(&self) -> bool {
        self.arrived > 0 && self.complete.is_none()
    }

    /// Bytes of memory held for bodies.
    pub fn body_capacity(&self) -> usize {
        self.body.capacity()
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let taken = fill(&mut self.header_bytes, self.arrived, bytes);
        self.arrived += taken;
        if self.arrived == FrameHeader::BYTES {
            self.header = Some(FrameHeader::decode(&self.header_bytes, &self.limits)?);
        }
        Ok(taken)
    }

    fn take_body(&mut self, bytes: &[u8], left: u64) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let needed = self.body.len() + taken;
        if needed > self.body.capacity() {
            // Doubled, so that bytes are not copied often, but never beyond what was announced.
            let announced = self.body.len().saturating_add(usize::try_from(left).unwrap_or(usize::MAX));
            let wanted = self.body.capacity().saturating_mul(2).clamp(needed, announced);
            self.body.reserve_exact(wanted - self.body.len());
        }
        self.body.extend_from_slice(&bytes[..taken]);
        self.hasher.update(&bytes[..taken]);
        self.arrived += taken;
        taken
    }

    fn take_digest(&mut self, bytes: &[u8], kind: FrameKind) -> Result<usize, FrameError> {
        let before = self.arrived - FrameHeader::BYTES - self.body.len();
        let taken = fill(&mut self.digest_bytes, before, bytes);
        self.arrived += taken;
        if before + taken == FrameHeader::DIGEST_BYTES {
            let digest = self.hasher.finalize();
            if digest != self.digest_bytes {
                return Err(FrameError::BadBodyDigest(kind));
            }
            self.complete = Some(digest);
        }
        Ok(taken)
    }
}

/// Appends a frame of `kind` to `out`, whose body `write` appends. Returns the body's digest.
pub fn write_frame(out: &mut Vec<u8>, kind: FrameKind, write: impl FnOnce(&mut Vec<u8>)) -> blake3::Hash {
    let start = out.len();
    out.extend_from_slice(&[0; FrameHeader::BYTES]);
    let body = out.len();
    write(out);
    let header = FrameHeader { kind, body_bytes: (out.len() - body) as u64 };
    out[start..body].copy_from_slice(&header.encode());
    let digest = blake3::hash(&out[body..]);
    out.extend_from_slice(digest.as_bytes());
    digest
}

/// Copies from `bytes` into `target` from `at` on, and returns how many bytes fitted.
fn fill(target: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let taken = (target.len() - at).min(bytes.len());
    target[at..at + taken].copy_from_slice(&bytes[..taken]);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { request_bytes_max: 1 << 10, pages_bytes_max: 1 << 40 };

    #[test]
    fn an_announced_length_costs_no_memory_before_its_bytes_arrive() {
        let mut reader = FrameReader::new(LIMITS);
        let header = FrameHeader { kind: FrameKind::Pages, body_bytes: 1 << 40 }.encode();
        assert_eq!(reader.take(&header), Ok(24));
        assert_eq!(reader.body_capacity(), 0);
        for arrived in 1..=100 {
            assert_eq!(reader.take(&[7; 100]), Ok(100));
            assert!(reader.body_capacity() <= 2 * arrived * 100, "{} bytes", reader.body_capacity());
        }
    }

    #[test]
    fn a_body_of_known_length_is_never_given_more_memory_than_its_length() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Pages, |out| out.resize(out.len() + 1001, 5));
        let mut reader = FrameReader::new(LIMITS);
        for piece in bytes.chunks(7) {
            assert_eq!(reader.take(piece), Ok(piece.len()));
        }
        assert_eq!(reader.frame().map(|frame| frame.body.len()), Some(1001));
        assert_eq!(reader.body_capacity(), 1001);
    }

    #[test]
    fn a_complete_frame_holds_back_the_bytes_behind_it_until_it_is_released() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Ping, |out| out.extend_from_slice(b"one"));
        let first = bytes.len();
        write_frame(&mut bytes, FrameKind::Pong, |_| ());
        let mut reader = FrameReader::new(LIMITS);
        assert_eq!(reader.take(&bytes), Ok(first));
        assert_eq!(reader.take(&bytes[first..]), Ok(0));
        assert_eq!(reader.frame().map(|frame| (frame.kind, frame.body)), Some((FrameKind::Ping, &b"one"[..])));
        reader.release();
        assert_eq!(reader.take(&bytes[first..]), Ok(bytes.len() - first));
        assert_eq!(reader.frame().map(|frame| (frame.kind, frame.body.len())), Some((FrameKind::Pong, 0)));
    }
}
