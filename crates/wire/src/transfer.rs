//! The messages of one handoff, in the order in which they are sent.

use crate::HandoffId;
use crate::body::{BodyError, Fields};
use crate::codec::Codecs;
use crate::header::FrameKind;
use crate::manifest::LaneBinding;

/// The oldest and the newest version of messages that this build speaks. Raise both on any change to a byte table of a
/// message.
pub const VERSIONS: (u16, u16) = (6, 6);

/// The receiver's request: the rows of these tokens, except for the pages that it holds.
///
/// | byte | field         | meaning                                                                   |
/// |------|---------------|---------------------------------------------------------------------------|
/// | 0    | handoff       | 16 bytes, drawn by the receiver                                           |
/// | 16   | key_id        | `u32`, the key of the manifest's MAC                                      |
/// | 20   | nonce         | 32 bytes, drawn by the receiver, used once                                |
/// | 52   | expires_in_ms | `u32`, from the request on                                                |
/// | 56   | rows          | `u32`, rows to have: one per token listed                                 |
/// | 60   | held_pages    | `u32`, full pages that the receiver has, from position 0                  |
/// | 64   | held_name     | 32 bytes, chained name of the last held page, zeroes for none             |
/// | 96   | codecs        | `u32`, bit mask of page codecs that the receiver unpacks                  |
/// | 100  | realm         | 32 bytes, who may use what is computed for this, among the receiver's own |
/// | 132  | tokens        | `rows` ids, `u32` each; the boundary token is not among them              |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Drawn by the receiver.
    pub handoff: HandoffId,
    /// The key of the manifest's MAC.
    pub key_id: u32,
    /// Drawn by the receiver, used once.
    pub nonce: [u8; 32],
    /// Time for the whole handoff.
    pub expires_in_ms: u32,
    /// Full pages that the receiver has, from position 0.
    pub held_pages: u32,
    /// Chained name of the last held page, zeroes for none.
    pub held_name: [u8; 32],
    /// Codecs that the receiver unpacks.
    pub codecs: Codecs,
    /// Sharing scope among the receiver's requests: only requests of the same realm reuse what the sender computes for
    /// this one. Opaque; the sender combines it with the receiver's identity, so that no node can name another node's
    /// realm.
    pub realm: [u8; 32],
    /// The tokens of the rows to have, without the boundary token.
    pub tokens: Vec<u32>,
}

/// The sender's acceptance: nonce and amounts of the handoff.
///
/// | byte | field         | meaning                                                             |
/// |------|---------------|---------------------------------------------------------------------|
/// | 0    | handoff       | 16 bytes                                                            |
/// | 16   | nonce         | 32 bytes, drawn by the sender                                       |
/// | 48   | first_page    | `u32`, held pages that the sender took into account                 |
/// | 52   | rows          | `u32`, as requested                                                 |
/// | 56   | page_count    | `u64`, pages to come, over all layers                               |
/// | 64   | payload_bytes | `u64`, their bytes before packing                                   |
/// | 72   | reused_rows   | `u32`, rows that the sender had and does not compute                |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The handoff.
    pub handoff: HandoffId,
    /// Drawn by the sender.
    pub nonce: [u8; 32],
    /// Held pages that the sender took into account.
    pub first_page: u32,
    /// Rows, as requested.
    pub rows: u32,
    /// Pages to come, over all layers.
    pub page_count: u64,
    /// Their bytes before packing.
    pub payload_bytes: u64,
    /// Rows that the sender had and does not compute.
    pub reused_rows: u32,
}

/// Some pages of one layer group.
///
/// | byte | field      | meaning                                                          |
/// |------|------------|------------------------------------------------------------------|
/// | 0    | handoff    | 16 bytes                                                         |
/// | 16   | sequence   | `u64`, 0, 1, 2, … over the handoff's `Pages` frames              |
/// | 24   | group      | `u8`, index of the layer group                                   |
/// | 25   | first_page | `u32`, absolute index                                            |
/// | 29   | page_count | `u32`                                                            |
/// | 33   | entries    | for each layer of the group, then each page in range and in plan |
///
/// An entry:
///
/// | byte | field        | meaning                                       |
/// |------|--------------|-----------------------------------------------|
/// | 0    | codec        | `u8`, see [`PageCodec`](crate::PageCodec)     |
/// | 1    | zero         | 3 bytes, 0                                    |
/// | 4    | stored_bytes | `u32`, at most the bytes of a page            |
/// | 8    | bytes        | `stored_bytes` bytes                          |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages<'a> {
    /// The handoff.
    pub handoff: HandoffId,
    /// Index of this frame among the handoff's `Pages` frames.
    pub sequence: u64,
    /// Index of the layer group.
    pub group: u8,
    /// Absolute index of the first page in range.
    pub first_page: u32,
    /// Pages in range.
    pub page_count: u32,
    /// The entries as raw bytes; the plan gives their layers and pages.
    pub entries: &'a [u8],
}

/// Progress of the sender's computation.
///
/// | byte | field      | meaning                     |
/// |------|------------|-----------------------------|
/// | 0    | handoff    | 16 bytes                    |
/// | 16   | rows_done  | `u32`, rows computed        |
/// | 20   | rows_total | `u32`, rows of the handoff  |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The handoff.
    pub handoff: HandoffId,
    /// Rows computed.
    pub rows_done: u32,
    /// Rows of the handoff.
    pub rows_total: u32,
}

/// The sender's commit: counts, manifest root and MAC over all pages sent.
///
/// | byte | field        | meaning                                              |
/// |------|--------------|------------------------------------------------------|
/// | 0    | handoff      | 16 bytes                                             |
/// | 16   | frames       | `u64`, `Pages` frames sent                           |
/// | 24   | stored_bytes | `u64`, bytes of their pages as stored in the frames  |
/// | 32   | times        | 40 bytes, see [`SenderTimes`]                        |
/// | 72   | lane         | 32 bytes, the [`LaneBinding`] of the connection      |
/// | 104  | root         | 32 bytes, see [`Manifest`](crate::Manifest)          |
/// | 136  | mac          | 32 bytes, see [`Manifest`](crate::Manifest)          |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The handoff.
    pub handoff: HandoffId,
    /// `Pages` frames sent.
    pub frames: u64,
    /// Bytes of their pages, as stored in the frames.
    pub stored_bytes: u64,
    /// Sender-side time by phase: queue, compute, pack, send.
    pub times: SenderTimes,
    /// The connection over which it is sent.
    pub lane: LaneBinding,
    /// The manifest's root.
    pub root: blake3::Hash,
    /// The manifest's MAC.
    pub mac: blake3::Hash,
}

/// Sender-side time by phase, in microseconds. Computing and sending overlap. A kernel reports its sending in ticks of
/// some milliseconds, so that a short `send_busy_us` is imprecise.
///
/// | byte | field        | meaning                                                                             |
/// |------|--------------|-------------------------------------------------------------------------------------|
/// | 0    | queue_us     | `u64`, from the request to the beginning of its computation                         |
/// | 8    | compute_us   | `u64`, from there to the last row                                                   |
/// | 16   | pack_us      | `u64`, making frames of pages: packing, copying, digests                            |
/// | 24   | send_busy_us | `u64`, part of `send_wall_us`: the kernel was sending; `u64::MAX` if it does not tell |
/// | 32   | send_wall_us | `u64`, from the first page's hand-over to the kernel to that of the last page's end |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderTimes {
    /// From the request to the beginning of its computation.
    pub queue_us: u64,
    /// From there to the last row.
    pub compute_us: u64,
    /// Making frames of pages: packing, copying, digests.
    pub pack_us: u64,
    /// The part of `send_wall_us` in which the kernel was sending; `None` if it does not tell.
    pub send_busy_us: Option<u64>,
    /// From the first page's hand-over to the kernel to that of the last page's end.
    pub send_wall_us: u64,
}

impl SenderTimes {
    pub(crate) fn to_bytes(self) -> [u8; 40] {
        let Self { queue_us, compute_us, pack_us, send_busy_us, send_wall_us } = self;
        let send_busy_us = send_busy_us.unwrap_or(u64::MAX);
        let mut bytes = [0; 40];
        for (to, time) in bytes.chunks_exact_mut(8).zip([queue_us, compute_us, pack_us, send_busy_us, send_wall_us]) {
            to.copy_from_slice(&time.to_le_bytes());
        }
        bytes
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, BodyError> {
        Ok(Self {
            queue_us: fields.u64()?,
            compute_us: fields.u64()?,
            pack_us: fields.u64()?,
            send_busy_us: Some(fields.u64()?).filter(|busy_us| *busy_us != u64::MAX),
            send_wall_us: fields.u64()?,
        })
    }
}

impl Request {
    /// Bytes in front of the tokens.
    pub const FIXED_BYTES: usize = 132;

    /// Request of all pages of `tokens`, in any codec of this build, without an expiry, for a realm of no name.
    pub fn new(handoff: HandoffId, key_id: u32, nonce: [u8; 32], tokens: Vec<u32>) -> Self {
        Self {
            handoff,
            key_id,
            nonce,
            expires_in_ms: u32::MAX,
            held_pages: 0,
            held_name: [0; 32],
            codecs: Codecs::ALL,
            realm: [0; 32],
            tokens,
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&self.key_id.to_le_bytes());
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.expires_in_ms.to_le_bytes());
        out.extend_from_slice(&crate::rows_of(&self.tokens).to_le_bytes());
        out.extend_from_slice(&self.held_pages.to_le_bytes());
        out.extend_from_slice(&self.held_name);
        out.extend_from_slice(&self.codecs.0.to_le_bytes());
        out.extend_from_slice(&self.realm);
        out.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Request, body);
        let (handoff, key_id, nonce) = (HandoffId(fields.array()?), fields.u32()?, fields.array()?);
        let (expires_in_ms, rows, held_pages) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (held_name, codecs, realm) = (fields.array()?, Codecs(fields.u32()?), fields.array()?);
        let token_bytes = usize::try_from(4 * u64::from(rows)).unwrap_or(usize::MAX);
        let tokens = fields.bytes(token_bytes)?.chunks_exact(4);
        let tokens = tokens.map(|id| u32::from_le_bytes(std::array::from_fn(|index| id[index]))).collect();
        fields.finish()?;
        Ok(Self { handoff, key_id, nonce, expires_in_ms, held_pages, held_name, codecs, realm, tokens })
    }
}

impl Accept {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.first_page.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.page_count.to_le_bytes());
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&self.reused_rows.to_le_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Accept, body);
        let read = Self {
            handoff: HandoffId(fields.array()?),
            nonce: fields.array()?,
            first_page: fields.u32()?,
            rows: fields.u32()?,
            page_count: fields.u64()?,
            payload_bytes: fields.u64()?,
            reused_rows: fields.u32()?,
        };
        fields.finish()?;
        Ok(read)
    }
}

impl<'a> Pages<'a> {
    /// Bytes in front of the entries.
    pub const FIXED_BYTES: usize = 33;
    /// Bytes in front of each page.
    pub const ENTRY_BYTES: usize = 8;

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.push(self.group);
        out.extend_from_slice(&self.first_page.to_le_bytes());
        out.extend_from_slice(&self.page_count.to_le_bytes());
        out.extend_from_slice(self.entries);
    }

    pub(crate) fn read(body: &'a [u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Pages, body);
        Ok(Self {
            handoff: HandoffId(fields.array()?),
            sequence: fields.u64()?,
            group: fields.u8()?,
            first_page: fields.u32()?,
            page_count: fields.u32()?,
            entries: fields.rest(),
        })
    }
}

impl Progress {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&self.rows_done.to_le_bytes());
        out.extend_from_slice(&self.rows_total.to_le_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Progress, body);
        let read = Self { handoff: HandoffId(fields.array()?), rows_done: fields.u32()?, rows_total: fields.u32()? };
        fields.finish()?;
        Ok(read)
    }
}

impl Commit {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.handoff.0);
        out.extend_from_slice(&self.frames.to_le_bytes());
        out.extend_from_slice(&self.stored_bytes.to_le_bytes());
        out.extend_from_slice(&self.times.to_bytes());
        out.extend_from_slice(&self.lane.0);
        out.extend_from_slice(self.root.as_bytes());
        out.extend_from_slice(self.mac.as_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Commit, body);
        let read = Self {
            handoff: HandoffId(fields.array()?),
            frames: fields.u64()?,
            stored_bytes: fields.u64()?,
            times: SenderTimes::read(&mut fields)?,
            lane: LaneBinding(fields.array()?),
            root: blake3::Hash::from_bytes(fields.array()?),
            mac: blake3::Hash::from_bytes(fields.array()?),
        };
        fields.finish()?;
        Ok(read)
    }
}
