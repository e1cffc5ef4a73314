//! The bytes of a replay ledger: one header, then records of one size. Little-endian throughout.
//!
//! Header, 64 bytes:
//!
//! | at | field         | meaning                                                              |
//! |----|---------------|----------------------------------------------------------------------|
//! | 0  | magic         | `MUSERLED`                                                           |
//! | 8  | version       | u32, [`VERSION`]                                                     |
//! | 12 | record_bytes  | u32, [`RECORD_BYTES`]                                                |
//! | 16 | generation    | u64, counts the times the file was written anew                      |
//! | 24 | floor_unix_ms | u64, handoffs that expire at or before this time may be forgotten    |
//! | 32 | reserved      | 28 zero bytes                                                        |
//! | 60 | crc32c        | u32, checksum of bytes 0..60                                         |
//!
//! Record, 160 bytes:
//!
//! | at  | field          | meaning                                                             |
//! |-----|----------------|---------------------------------------------------------------------|
//! | 0   | key_id         | u32, which MAC key the handoff was sealed with                      |
//! | 4   | first_page     | u32, first page of the handoff                                      |
//! | 8   | nonce          | 32 bytes, chosen by the receiver                                    |
//! | 40  | prompt_digest  | 32 bytes                                                            |
//! | 72  | boot_id        | 16 bytes, the receiver's run                                        |
//! | 88  | rows           | u64, positions that the handoff carries                             |
//! | 96  | expiry_unix_ms | u64, after this time the handoff is refused by its age              |
//! | 104 | time_unix_ms   | u64, when it was accepted                                           |
//! | 112 | index          | u64, place in this file, from 0                                     |
//! | 120 | batch_start    | u64, index of the first record that was made durable with this one  |
//! | 128 | chain          | 28 bytes, see below                                                 |
//! | 156 | crc32c         | u32, checksum of bytes 0..156                                       |
//!
//! The chain is the beginning of BLAKE3 over the 32 bytes of the previous link and this record's bytes 0..128; the first
//! link is BLAKE3 over the header. So a record cannot be moved, exchanged or taken out without notice.

use super::crc32c::crc32c;

/// Length of the header.
pub const HEADER_BYTES: usize = 64;
/// Length of a record.
pub const RECORD_BYTES: usize = 160;
const RECORD_BYTES_FIELD: u32 = 160;
const _: () = assert!(RECORD_BYTES_FIELD as usize == RECORD_BYTES);
/// The only version there is.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"MUSERLED";
const CHAIN_BYTES: usize = 28;

/// One accepted handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Id of the MAC key that sealed the handoff.
    pub key_id: u32,
    /// Chosen by the receiver, never twice under one key.
    pub nonce: [u8; 32],
    /// Digest of the prompt's tokens.
    pub prompt_digest: [u8; 32],
    /// The receiver's run.
    pub boot_id: [u8; 16],
    /// Index of the first page.
    pub first_page: u32,
    /// Positions carried.
    pub rows: u64,
    /// From this time on the handoff is refused by its age alone.
    pub expiry_unix_ms: u64,
    /// Time of acceptance.
    pub time_unix_ms: u64,
}

impl LedgerEntry {
    /// Replay key: an entry with the same one is refused.
    pub(super) fn key(&self) -> ReplayKey {
        (self.key_id, self.nonce)
    }
}

/// MAC key id and nonce.
pub(super) type ReplayKey = (u32, [u8; 32]);

/// The link that the next record continues.
pub(super) type Chain = [u8; 32];

/// Fields of the 64-byte header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub generation: u64,
    pub floor_unix_ms: u64,
}

/// 64 bytes that are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not a replay ledger.
    #[error("it does not begin with the mark of a replay ledger")]
    WrongMagic,
    /// The checksum does not match.
    #[error("its header's checksum is {found:#010x}, its bytes give {computed:#010x}")]
    WrongChecksum {
        /// Checksum in the file.
        found: u32,
        /// Checksum of its bytes.
        computed: u32,
    },
    /// Written by another version.
    #[error(
        "it has version {found} and records of {record_bytes} bytes, this program reads version {VERSION} and {RECORD_BYTES}"
    )]
    WrongVersion {
        /// Version in the file.
        found: u32,
        /// Length of its records.
        record_bytes: u32,
    },
}

impl Header {
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&RECORD_BYTES_FIELD.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.floor_unix_ms.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        if bytes[..8] != MAGIC {
            return Err(HeaderError::WrongMagic);
        }
        let (found, computed) = (u32_at(bytes, 60), crc32c(&bytes[..60]));
        if found != computed {
            return Err(HeaderError::WrongChecksum { found, computed });
        }
        let (version, record_bytes) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if version != VERSION || record_bytes != RECORD_BYTES_FIELD {
            return Err(HeaderError::WrongVersion { found: version, record_bytes });
        }
        Ok(Self { generation: u64_at(bytes, 16), floor_unix_ms: u64_at(bytes, 24) })
    }

    /// The first link.
    pub fn chain(self) -> Chain {
        *blake3::hash(&self.encode()).as_bytes()
    }
}

/// A record with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub entry: LedgerEntry,
    pub index: u64,
    pub batch_start: u64,
}

impl Record {
    /// The bytes after `chain`, which becomes the next link.
    pub fn encode(&self, chain: &mut Chain) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let entry = &self.entry;
        bytes[..4].copy_from_slice(&entry.key_id.to_le_bytes());
        bytes[4..8].copy_from_slice(&entry.first_page.to_le_bytes());
        bytes[8..40].copy_from_slice(&entry.nonce);
        bytes[40..72].copy_from_slice(&entry.prompt_digest);
        bytes[72..88].copy_from_slice(&entry.boot_id);
        let numbers = [entry.rows, entry.expiry_unix_ms, entry.time_unix_ms, self.index, self.batch_start];
        for (place, number) in bytes[88..128].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        *chain = next_link(chain, &bytes);
        bytes[128..156].copy_from_slice(&chain[..CHAIN_BYTES]);
        let crc = crc32c(&bytes[..156]);
        bytes[156..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The record in `bytes` if its checksum is right, whatever precedes it.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        (u32_at(bytes, 156) == crc32c(&bytes[..156])).then(|| Self {
            entry: LedgerEntry {
                key_id: u32_at(bytes, 0),
                first_page: u32_at(bytes, 4),
                nonce: array_at(bytes, 8),
                prompt_digest: array_at(bytes, 40),
                boot_id: array_at(bytes, 72),
                rows: u64_at(bytes, 88),
                expiry_unix_ms: u64_at(bytes, 96),
                time_unix_ms: u64_at(bytes, 104),
            },
            index: u64_at(bytes, 112),
            batch_start: u64_at(bytes, 120),
        })
    }
}

/// The link after `bytes` if they continue `chain`.
pub(super) fn continued(chain: &Chain, bytes: &[u8; RECORD_BYTES]) -> Option<Chain> {
    let link = next_link(chain, bytes);
    (bytes[128..156] == link[..CHAIN_BYTES]).then_some(link)
}

fn next_link(chain: &Chain, bytes: &[u8; RECORD_BYTES]) -> Chain {
    *blake3::Hasher::new().update(chain).update(&bytes[..128]).finalize().as_bytes()
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let entry = LedgerEntry {
            key_id: 0x0403_0201,
            nonce: [0x11; 32],
            prompt_digest: [0x22; 32],
            boot_id: [0x33; 16],
            first_page: 5,
            rows: 640,
            expiry_unix_ms: 0x0102_0304_0506,
            time_unix_ms: 7,
        };
        Record { entry, index: 3, batch_start: 2 }
    }

    #[test]
    fn header_and_record_bytes_match_the_tables() {
        let header = Header { generation: 2, floor_unix_ms: 0x0a0b };
        let mut golden = b"MUSERLED\x01\0\0\0\xa0\0\0\0\x02\0\0\0\0\0\0\0\x0b\x0a\0\0\0\0\0\0".to_vec();
        golden.extend([0; 28]);
        let crc = crc32c(&golden);
        golden.extend(crc.to_le_bytes());
        assert_eq!(header.encode()[..], golden);
        assert_eq!(Header::decode(&header.encode()), Ok(header));

        let mut golden = vec![1, 2, 3, 4, 5, 0, 0, 0];
        golden.extend([0x11; 32].iter().chain(&[0x22; 32]).chain(&[0x33; 16]));
        for number in [640, 0x0102_0304_0506, 7, 3, 2u64] {
            golden.extend(number.to_le_bytes());
        }
        let mut input = header.chain().to_vec();
        input.extend(&golden);
        golden.extend(&blake3::hash(&input).as_bytes()[..28]);
        let crc = crc32c(&golden);
        golden.extend(crc.to_le_bytes());
        let mut chain = header.chain();
        assert_eq!(record().encode(&mut chain)[..], golden);
        assert_eq!(chain, *blake3::hash(&input).as_bytes());
        assert_eq!(Record::decode(golden.as_slice().try_into().unwrap()), Some(record()));
    }

    #[test]
    fn every_flipped_bit_of_header_and_record_is_noticed() {
        let header = Header { generation: 2, floor_unix_ms: 9 }.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
        let bytes = record().encode(&mut [0; 32]);
        for bit in 0..RECORD_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = Header { generation: 0, floor_unix_ms: 0 }.encode();
        bytes[8] = 9;
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(HeaderError::WrongVersion { found: 9, record_bytes: 160 }));
    }
}
