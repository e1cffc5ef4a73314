//! Reads the parts of a GGUF file in order; nothing is read that was not first checked to be there.

use super::error::GgufFault;

/// A position in a file.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

/// A fault and the byte where it is, before it is known which key or tensor it belongs to.
pub(super) struct FaultAt {
    pub(super) fault: GgufFault,
    pub(super) offset: usize,
}

impl<'a> Cursor<'a> {
    /// Bytes between here and the end of the file.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], FaultAt> {
        let rest = &self.bytes[self.at..];
        match usize::try_from(count).ok().and_then(|count| rest.get(..count)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                Err(FaultAt { fault: GgufFault::Truncated { need: count, have: rest.len() as u64 }, offset: self.at })
            }
        }
    }

    /// The next `N` bytes as an array.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FaultAt> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// A little-endian u32.
    pub(super) fn u32(&mut self) -> Result<u32, FaultAt> {
        self.array().map(u32::from_le_bytes)
    }

    /// A little-endian u64.
    pub(super) fn u64(&mut self) -> Result<u64, FaultAt> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: a u64 length and that many bytes.
    pub(super) fn string(&mut self) -> Result<&'a [u8], FaultAt> {
        let length = self.u64()?;
        self.take(length)
    }

    /// A key or tensor name: a string of 1 to `limit` bytes of UTF-8. Its begin is 8 bytes after the cursor's.
    pub(super) fn name(&mut self, limit: u64) -> Result<&'a str, FaultAt> {
        let offset = self.at;
        let length = self.u64()?;
        if length == 0 {
            return Err(FaultAt { fault: GgufFault::EmptyName, offset });
        }
        if length > limit {
            return Err(FaultAt { fault: GgufFault::NameTooLong { length, limit }, offset });
        }
        std::str::from_utf8(self.take(length)?).map_err(|error| FaultAt {
            fault: GgufFault::NameNotUtf8 { valid_bytes: error.valid_up_to() },
            offset: offset + 8 + error.valid_up_to(),
        })
    }
}
