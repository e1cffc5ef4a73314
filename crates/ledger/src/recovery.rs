//! Reads a ledger's bytes after a run that may have ended anywhere, and tells a torn tail from damage.
//!
//! A record is acknowledged only when it is durable, and the next batch is written only after that. So a crash can leave
//! incomplete nothing but the last batch: it is missing from some byte on, or a whole sector of it was never written and
//! reads as zeros. Such a tail was never acknowledged, and is cut off. Everything else that does not fit is damage to
//! records that may have been acknowledged; forgetting those would let a handoff in twice, so the ledger does not open.

use super::record::{Chain, HEADER_BYTES, Header, HeaderError, LedgerEntry, RECORD_BYTES, Record, continued};

/// The smallest unit that a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

/// Content of a ledger up to its last good record.
pub(super) struct Recovered {
    pub header: Header,
    pub entries: Vec<LedgerEntry>,
    pub chain: Chain,
    /// Length of the good prefix; the bytes after it were torn.
    pub good_bytes: usize,
}

/// Damage that keeps a ledger from opening. None of its records is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamageError {
    /// Shorter than a header, which is only ever written as a whole.
    #[error("the ledger has {bytes} bytes, its header alone has {HEADER_BYTES}")]
    NoHeader {
        /// Its length.
        bytes: usize,
    },
    /// The header is not ours.
    #[error("the ledger cannot be read: {0}")]
    Header(#[from] HeaderError),
    /// A record that may have been acknowledged is damaged.
    #[error(
        "the record at byte {offset} of the ledger is damaged; to go on without it, revoke all MAC keys in use and move the ledger away"
    )]
    Record {
        /// Byte offset of the record.
        offset: usize,
    },
}

/// Checks every byte of a ledger.
pub(super) fn recover(bytes: &[u8]) -> Result<Recovered, DamageError> {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(DamageError::NoHeader { bytes: bytes.len() });
    };
    let header = Header::decode(header)?;
    let (records, _) = body.as_chunks::<RECORD_BYTES>();
    let (mut entries, mut chain) = (Vec::with_capacity(records.len()), header.chain());
    for (place, bytes) in records.iter().enumerate() {
        let index = place as u64;
        let good = Record::decode(bytes).filter(|record| record.index == index && record.batch_start <= index);
        let Some((record, link)) = good.zip(continued(&chain, bytes)) else {
            if !is_torn(records, place) {
                return Err(DamageError::Record { offset: HEADER_BYTES + place * RECORD_BYTES });
            }
            break;
        };
        chain = link;
        entries.push(record.entry);
    }
    let good_bytes = HEADER_BYTES + entries.len() * RECORD_BYTES;
    Ok(Recovered { header, entries, chain, good_bytes })
}

/// True if the first bad record, at index `place`, and all after it can be one batch that a crash interrupted.
fn is_torn(records: &[[u8; RECORD_BYTES]], place: usize) -> bool {
    let acknowledged = |bytes: &[u8; RECORD_BYTES]| {
        Record::decode(bytes).is_some_and(|later| later.batch_start > place as u64 && later.batch_start <= later.index)
    };
    has_unwritten_sector(&records[place], place) && !records[place + 1..].iter().any(acknowledged)
}

/// True if the part of a record in one of its sectors is all zeros, and so was never written. Records and header are
/// multiples of 32 bytes, so a part has at least 32, which no written record has as zeros except for an all-zero nonce.
fn has_unwritten_sector(record: &[u8; RECORD_BYTES], place: usize) -> bool {
    let offset = HEADER_BYTES + place * RECORD_BYTES;
    let in_first_sector = (SECTOR_BYTES - offset % SECTOR_BYTES).min(RECORD_BYTES);
    let (first, second) = record.split_at(in_first_sector);
    [first, second].iter().any(|part| !part.is_empty() && part.iter().all(|byte| *byte == 0))
}
