//! Read-only memory mapping: the crate's only `unsafe`.
//!
//! A mapped file is shared with every process that may write it. If another process truncates the file while it is mapped,
//! touching a page behind the new end raises SIGBUS and kills this process; if another process overwrites it in place, the
//! bytes change under us. Neither can be prevented from here: replace model files by renaming a new file over the old name,
//! never by writing into them.

use std::fs::{self, File};
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use crate::file_state::FileState;

/// A whole file as bytes, paged in when touched.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
    state: FileState,
}

impl MappedFile {
    /// Maps the file at `path` read-only. An empty file is an empty slice.
    ///
    /// # Errors
    /// If the file cannot be opened, is not a regular file (a pipe would block, a directory has no bytes), or cannot be
    /// mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Looked at before opening, because opening a pipe waits for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let state = FileState::of(&file.metadata()?);
        // SAFETY: the map is private to this struct and only ever read. The one duty left, that nobody truncates or
        // rewrites the file meanwhile, is passed on to the user by the documentation of this module: it cannot be
        // enforced, and breaking it ends in SIGBUS or in changed weights, not in a dangling pointer.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map, state })
    }

    /// Advises the system that `range` will not be read for a while: its pages leave this process's resident memory and
    /// come back from the file when touched. Where the system has no such advice nothing happens.
    pub fn release(&self, range: Range<usize>) {
        release(&self.map, range);
    }

    /// State of the file when it was opened.
    pub(crate) fn state(&self) -> FileState {
        self.state
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(unix)]
fn release(map: &memmap2::Mmap, range: Range<usize>) {
    let advice = memmap2::UncheckedAdvice::DontNeed;
    // SAFETY: the map is shared and read-only, so dropping its pages loses nothing: a later read finds the file's bytes again.
    let outcome = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
    // Advice that is not taken costs memory and nothing else.
    let _ = outcome;
}

#[cfg(not(unix))]
fn release(_map: &memmap2::Mmap, _range: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_reads_as_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, b"seven b").unwrap();
        assert_eq!(&MappedFile::open(&path).unwrap()[..], b"seven b");
    }

    #[test]
    fn released_bytes_read_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(&path, &bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        assert_eq!(&file[..], bytes);
        file.release(5000..300_001);
        assert_eq!(&file[..], bytes);
        file.release(399_999..usize::MAX);
        assert_eq!(&file[..], bytes);
    }

    #[test]
    fn an_empty_file_is_an_empty_slice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, b"").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
    }

    #[test]
    fn a_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(MappedFile::open(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
