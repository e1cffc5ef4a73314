//! The cache file beside a model, so that 17 GB are not read at every start.
//!
//! All integers are little-endian; times are in ns since 1970.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | `MUSERDIG` |
//! | 8 | 4 | version of this format, 2 |
//! | 12 | 4 | n, the number of files of the model |
//! | 16 | 88 n | per file: length (8), time of modification (16, signed), time of change (16, signed), device (8), inode (8), BLAKE3 of its header (32) |
//! | 16 + 88 n | 32 | BLAKE3 of the first and the last 2048 bytes of each tensor, sorted by name |
//! | 48 + 88 n | 32 | digest of the tensors |
//! | 80 + 88 n | 32 | checksum: BLAKE3, context `muser 2026 digest cache, version 2`, of everything before |

use super::Digest;
use crate::file_state::FileState;
use crate::gguf::ModelFiles;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CHECKSUM_CONTEXT: &str = "muser 2026 digest cache, version 2";
/// Bytes at each end of a tensor that are read at every start.
const SAMPLE_BYTES: usize = 2048;
/// A file changed this recently may be changed again without its time changing: the coarsest clock of a file system in
/// use ticks every two seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Cache file of a model's digest: its path, and the bytes it must begin with to be valid.
pub(super) struct Cache<'a> {
    files: &'a ModelFiles,
    now: SystemTime,
    path: PathBuf,
    /// Bytes of the cache file before the digest.
    begin: Vec<u8>,
}

impl<'a> Cache<'a> {
    /// The cache of a model on disk; `None` for one in memory, or where the system has no time of change (ctime).
    pub(super) fn of(files: &'a ModelFiles, now: SystemTime) -> Option<Self> {
        let first = files.paths().next().filter(|path| !path.as_os_str().is_empty())?;
        let mut name = OsString::from(first);
        name.push(".muser-digest");
        let mut begin = b"MUSERDIG".to_vec();
        begin.extend_from_slice(&2u32.to_le_bytes());
        begin.extend_from_slice(&u32::try_from(files.paths().len()).ok()?.to_le_bytes());
        for stamp in files.stamps() {
            let FileState { bytes, modified, change } = stamp.state?;
            let change = change?;
            begin.extend_from_slice(&bytes.to_le_bytes());
            begin.extend_from_slice(&nanoseconds(modified?).to_le_bytes());
            begin.extend_from_slice(&change.at_ns.to_le_bytes());
            begin.extend_from_slice(&change.device.to_le_bytes());
            begin.extend_from_slice(&change.inode.to_le_bytes());
            begin.extend_from_slice(blake3::hash(stamp.header).as_bytes());
        }
        begin.extend_from_slice(samples(files).as_bytes());
        Some(Self { files, now, path: name.into(), begin })
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

    /// True if every file still is in the state in which it was opened, and was last changed at least [`SETTLED_AFTER`]
    /// ago.
    fn is_settled(&self) -> bool {
        self.files.paths().zip(self.files.stamps()).all(|(path, stamp)| {
            let unchanged = fs::metadata(path).is_ok_and(|found| Some(FileState::of(&found)) == stamp.state);
            let modified = stamp.state.and_then(|state| state.modified);
            let changed = stamp.state.and_then(|state| state.change).map(|change| change.at_ns);
            let times = [modified.map(nanoseconds), changed];
            let now = nanoseconds(self.now);
            let age = SETTLED_AFTER.as_nanos().cast_signed();
            unchanged && times.into_iter().all(|time| time.is_some_and(|time| now - time >= age))
        })
    }
}

/// Digest of both ends of every tensor: enough to notice another model of the same shape, and a small tensor whole.
fn samples(files: &ModelFiles) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for tensor in files.tensors_by_name() {
        let bytes = tensor.bytes().unwrap_or_default();
        hasher.update(&bytes[..bytes.len().min(SAMPLE_BYTES)]);
        hasher.update(&bytes[bytes.len().saturating_sub(SAMPLE_BYTES)..]);
    }
    hasher.finalize()
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
