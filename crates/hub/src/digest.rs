//! SHA-256 of files.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};

use crate::address::hex_digit;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A SHA-256 digest; shown and read as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256([u8; 32]);

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 hexadecimal digits, not {0:?}")]
pub struct Sha256Error(String);

/// A digest being computed.
#[derive(Clone)]
pub(crate) struct Hasher {
    context: Context,
    /// Bytes hashed so far.
    pub(crate) bytes: u64,
}

/// The digest of the file at `path`.
///
/// # Errors
/// If it cannot be read.
pub fn sha256_of_file(path: &Path) -> io::Result<Sha256> {
    let mut hasher = Hasher::new();
    hasher.read(&mut File::open(path)?, |_| true)?;
    Ok(hasher.finish())
}

impl Hasher {
    pub(crate) fn new() -> Self {
        Self { context: Context::new(&SHA256), bytes: 0 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Hashes all of `source`; `go_on` is called after each chunk with the bytes so far, and may end it. Returns true
    /// if the end was reached.
    pub(crate) fn read(&mut self, source: &mut impl Read, mut go_on: impl FnMut(u64) -> bool) -> io::Result<bool> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match source.read(&mut chunk) {
                Ok(0) => return Ok(true),
                Ok(count) => self.update(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !go_on(self.bytes) {
                return Ok(false);
            }
        }
    }

    pub(crate) fn finish(&self) -> Sha256 {
        let mut bytes = [0; 32];
        // SHA-256 has 32 bytes.
        bytes.copy_from_slice(self.context.clone().finish().as_ref());
        Sha256(bytes)
    }
}

impl Sha256 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

impl FromStr for Sha256 {
    type Err = Sha256Error;

    fn from_str(text: &str) -> Result<Self, Sha256Error> {
        let refused = || Sha256Error(text.chars().take(80).collect());
        let (digits, []) = text.as_bytes().as_chunks() else { return Err(refused()) };
        let byte = |[high, low]: &[u8; 2]| Some(hex_digit(*high)? << 4 | hex_digit(*low)?);
        let bytes: Option<Vec<u8>> = digits.iter().map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(refused)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-4's example.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_the_standards_and_survives_being_written_and_read() {
        let digest = Sha256::of(b"abc");
        assert_eq!(digest.to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(digest));
        assert_eq!(ABC.to_uppercase().parse(), Ok(digest));
        for wrong in ["", "ba", &ABC[1..], &format!("{ABC}0"), &ABC.replace('b', "g"), &format!("{ABC}00")] {
            assert!(wrong.parse::<Sha256>().is_err(), "{wrong}");
        }
    }
}
