//! File system state of a file (length, times, inode), by which a changed file is noticed without reading it.

use std::fs::Metadata;
use std::time::SystemTime;

/// State of a file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Time of the last write to its content (mtime); the file's owner may set it to any time.
    pub(crate) modified: Option<SystemTime>,
    /// Inode and time of its last change (ctime), which no user can set; `None` where the system has no such thing.
    pub(crate) change: Option<Change>,
}

/// Inode, and the time of its last change (ctime): changed by every write, and by setting the time of modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The device that has the inode.
    pub(crate) device: u64,
    /// Number of the inode.
    pub(crate) inode: u64,
    /// Time of the change, in nanoseconds since 1970.
    pub(crate) at_ns: i128,
}

impl FileState {
    /// The state that `metadata` describe.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok(), change: change(metadata) }
    }
}

#[cfg(unix)]
fn change(metadata: &Metadata) -> Option<Change> {
    use std::os::unix::fs::MetadataExt;
    let at_ns = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
    Some(Change { device: metadata.dev(), inode: metadata.ino(), at_ns })
}

#[cfg(not(unix))]
fn change(_: &Metadata) -> Option<Change> {
    None
}
