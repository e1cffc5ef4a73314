//! The cache file beside a model, so that 17 GB are not read at every start.
//!
//! All integers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `MUSERDIG` |
//! | 8 | 4 | version of this format, 1 |
//! | 12 | 4 | n, the number of files of the model |
//! | 16 | 56 n | per file: length (8), time of modification in ns since 1970 (16, signed), BLAKE3 of its header (32) |
//! | 16 + 56 n | 32 | digest of the tensors |
//! | 48 + 56 n | 32 | checksum: BLAKE3, context `muser 2026 digest cache, version 1`, of everything before |

use super::Digest;
use crate::gguf::ModelFiles;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CHECKSUM_CONTEXT: &str = "muser 2026 digest cache, version 1";
/// A file modified this recently may be modified again without its time changing: the coarsest clock of a file system in
/// use ticks every two seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Where a model's cache file is and what it must begin with to be believed.
pub(super) struct Cache<'a> {
    files: &'a ModelFiles,
    path: PathBuf,
    /// The file up to the digest.
    begin: Vec<u8>,
}

impl<'a> Cache<'a> {
    /// The cache of a model on disk; `None` for one in memory or on a file system without times of modification.
    pub(super) fn of(files: &'a ModelFiles) -> Option<Self> {
        let first = files.paths().next().filter(|path| !path.as_os_str().is_empty())?;
        let mut name = OsString::from(first);
        name.push(".muser-digest");
        let mut begin = b"MUSERDIG".to_vec();
        begin.extend_from_slice(&1u32.to_le_bytes());
        begin.extend_from_slice(&u32::try_from(files.paths().len()).ok()?.to_le_bytes());
        for stamp in files.stamps() {
            begin.extend_from_slice(&stamp.bytes.to_le_bytes());
            begin.extend_from_slice(&nanoseconds(stamp.modified?).to_le_bytes());
            begin.extend_from_slice(blake3::hash(stamp.header).as_bytes());
        }
        Some(Self { files, path: name.into(), begin })
    }

    /// The digest in the cache file, if that is whole and of this model as it is now.
    pub(super) fn load(&self) -> Option<Digest> {
        let bytes = self.begin.len() + 64;
        let mut content = Vec::with_capacity(bytes + 1);
        // One byte more than it may have, so that a longer file is noticed without being read.
        File::open(&self.path).ok()?.take(bytes as u64 + 1).read_to_end(&mut content).ok()?;
        let rest = content.strip_prefix(self.begin.as_slice())?;
        let digest = Digest(*rest.first_chunk()?);
        (content == self.content(digest)).then_some(digest)
    }

    /// Writes the cache file, if that is possible and the model's files have not changed since they were opened.
    pub(super) fn store(&self, digest: Digest) {
        if !self.is_settled() {
            return;
        }
        // Under a name of its own first, so that no reader and no second writer sees half a file.
        let mut name = OsString::from(&self.path);
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = Path::new(&name);
        let written = write_new(temporary, &self.content(digest)).and_then(|()| fs::rename(temporary, &self.path));
        if written.is_err() {
            // Nothing was promised: the digest is computed again next time.
            let _ = fs::remove_file(temporary);
        }
    }

    fn content(&self, digest: Digest) -> Vec<u8> {
        let mut content = self.begin.clone();
        content.extend_from_slice(&digest.0);
        let checksum = blake3::derive_key(CHECKSUM_CONTEXT, &content);
        content.extend_from_slice(&checksum);
        content
    }

    /// Whether every file still has the length and time it was opened with, and that time is long enough ago.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now();
        self.files.paths().zip(self.files.stamps()).all(|(path, stamp)| {
            let unchanged = fs::metadata(path)
                .is_ok_and(|found| found.len() == stamp.bytes && found.modified().ok() == stamp.modified);
            let age = stamp.modified.and_then(|modified| now.duration_since(modified).ok());
            unchanged && age.is_some_and(|age| age >= SETTLED_AFTER)
        })
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut File::create_new(path)?, content)
}

/// Nanoseconds since 1970, negative before.
fn nanoseconds(time: SystemTime) -> i128 {
    // A duration has fewer than 2^64 * 10^9 nanoseconds, which an i128 holds.
    let signed = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after),
        Err(before) => -signed(before.duration()),
    }
}
