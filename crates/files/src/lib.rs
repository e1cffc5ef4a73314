//! Small text files that several processes share, such as those of a cluster folder: one way to read them and one to
//! write them.
//!
//! All writes to such a folder go through here, so with any number of processes no change is lost and no reader sees
//! half of one.
//!
//! - `held` takes the folder's lock, and writes whole files: aside, synced, renamed.
//! - `watched` follows a file in a process that runs.
//! - `permissions` refuses files that other users may write, and secrets that other users may read.

#![forbid(unsafe_code)]

mod held;
mod permissions;
mod watched;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use held::{Held, hold, lock};
pub use watched::{Content, Watched};

/// Far above every file of a cluster folder but the ledger.
const BYTES_MAX: u64 = 4 << 20;

/// Failure to read or write a file of the cluster folder. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// No such file.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists and would be overwritten.
    #[error("{} exists already and is not overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Not a regular file: reading a pipe, a folder or a device may never end.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The mode gives others than the owner more access to a secret than reading by the group.
    #[error("{} holds a secret, but has mode {mode:03o}: only its owner may use it, and at most its group read it", path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The mode lets other users change the content.
    #[error("{} has mode {mode:04o}: others than its owner may write it; see to its content, then chmod go-w", path.display())]
    Writable {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The owner is neither root nor this user, and could change the content.
    #[error("{} belongs to user {owner}: only files of root and of the user that runs this, {user}, are taken", path.display())]
    Foreign {
        /// The file, or the folder that it is in.
        path: PathBuf,
        /// Its user.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The new file cannot be given the old one's owner and group, so its readers would lose access.
    #[error("{} cannot be written for user {owner} and group {group}, whose it is: {error}", path.display())]
    OwnerLost {
        /// The file.
        path: PathBuf,
        /// Its user.
        owner: u32,
        /// Its group.
        group: u32,
        /// I/O error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Longer than any file of the cluster folder.
    #[error("{} has, or would have, {bytes} bytes, at most {BYTES_MAX} are taken", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The folder's lock is held by another process or thread for longer than the limit.
    #[error("{} is held by another process for more than {} s", path.display(), waited.as_secs_f64())]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// Time limit.
        waited: Duration,
    },
    /// The disk does not answer in time, such as a network mount whose server is down.
    #[error("{} was not read within {} s", path.display(), limit.as_secs_f64())]
    Slow {
        /// The file.
        path: PathBuf,
        /// Time limit.
        limit: Duration,
    },
    /// Any other I/O error.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// I/O error of the operating system.
        #[source]
        error: io::Error,
    },
}

/// Permissions of a kind of file. Whatever the kind, only its owner may write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// Mode 0644 when made.
    Public,
    /// Mode 0600 when made; read only if others have no access and the group none but reading.
    Secret,
}

/// File metadata that changes when a file is replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    bytes: u64,
    modified: SystemTime,
    /// Inode, device, and ctime in seconds and nanoseconds; no program can set ctime.
    file: (u64, u64, i64, i64),
}

impl FileError {
    fn of(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing { path: path.into() },
            _ => Self::Io { path: path.into(), error },
        }
    }
}

impl Stamp {
    /// Stamp of the file now at `path`.
    pub(crate) fn of(path: &Path) -> Result<Self, FileError> {
        let at = |error| FileError::of(path, error);
        let metadata = fs::metadata(path).map_err(at)?;
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt;
            (metadata.ino(), metadata.dev(), metadata.ctime(), metadata.ctime_nsec())
        };
        #[cfg(not(unix))]
        let file = (0, 0, 0, 0);
        Ok(Self { bytes: metadata.len(), modified: metadata.modified().map_err(at)?, file })
    }
}

/// The text of a file.
///
/// # Errors
/// [`FileError`], also if others than its owner may write it or, if it is a secret, read it.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<String, FileError> {
    let file = open(path)?;
    // Of the opened file, so that it cannot be exchanged in between.
    let metadata = file.metadata().map_err(|error| FileError::of(path, error))?;
    permissions::check_file(path, &metadata, secrecy)?;
    permissions::check_folders(path)?;
    text_of(path, file)
}

/// The text of a file carried here from another machine by an operator, who vouches for it: permissions are not
/// checked.
///
/// # Errors
/// [`FileError`].
pub fn read_carried(path: &Path) -> Result<String, FileError> {
    text_of(path, open(path)?)
}

fn text_of(path: &Path, file: File) -> Result<String, FileError> {
    let at = |error| FileError::of(path, error);
    let bytes = file.metadata().map_err(at)?.len();
    if bytes > BYTES_MAX {
        return Err(FileError::TooLong { path: path.into(), bytes });
    }
    let mut text = String::new();
    // One that grows meanwhile is too long, not cut.
    let bytes = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(at)? as u64;
    if bytes > BYTES_MAX { Err(FileError::TooLong { path: path.into(), bytes }) } else { Ok(text) }
}

/// Checks that no other user may write or replace an opened file.
///
/// # Errors
/// [`FileError::Writable`] and [`FileError::Foreign`], or an I/O error.
pub fn check_public(path: &Path, file: &File) -> Result<(), FileError> {
    let metadata = file.metadata().map_err(|error| FileError::of(path, error))?;
    permissions::check_file(path, &metadata, Secrecy::Public)?;
    permissions::check_folders(path)
}

/// Edits a public file of a cluster folder under the folder's lock. `change` gets the text, empty if there is no file;
/// nothing is written if it returns `None`. Returns true if the file was written.
///
/// # Errors
/// [`FileError`]; the file is as it was.
pub fn change_text(path: &Path, change: impl FnOnce(&str) -> Option<String>) -> Result<bool, FileError> {
    let held = hold(path, Secrecy::Public)?;
    let old = match held.read() {
        Err(FileError::Missing { .. }) => String::new(),
        old => old?,
    };
    match change(&old) {
        Some(new) if new == old => Ok(true),
        Some(new) => held.replace(&new).map(|()| true),
        None => Ok(false),
    }
}

/// A regular file, opened for reading.
fn open(path: &Path) -> Result<File, FileError> {
    open_regular(OpenOptions::new().read(true), path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => FileError::NotAFile { path: path.into() },
        _ => FileError::of(path, error),
    })
}

/// Opens a regular file without blocking: a pipe without a writer is refused as [`io::ErrorKind::InvalidInput`] instead
/// of blocking the open.
///
/// # Errors
/// I/O error of the operating system.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Writes a file that is not there yet.
///
/// # Errors
/// [`FileError::Exists`] if it is there, or another [`FileError`]; nothing is overwritten.
pub fn create(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), FileError> {
    hold(path, secrecy)?.create(text)
}

/// Writes a file, in the place of an older one if there is one.
///
/// # Errors
/// [`FileError`]; the older file is still there.
pub fn replace(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), FileError> {
    hold(path, secrecy)?.replace(text)
}

/// Makes the names in a folder survive a crash.
///
/// # Errors
/// I/O error of the operating system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
