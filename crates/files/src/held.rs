//! Changes of a file: one process at a time reads it, changes it, and puts the whole of it in its place.
//!
//! A folder has one lock, the file `.lock` in it; the kernel releases it when the holding process ends. The file that a
//! killed process left half written has a temporary name, and is removed by the next writer of the same file. A
//! symbolic link stays one: its target is changed, under the lock of the target's folder.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{BYTES_MAX, FileError, Secrecy, folder_of, permissions, read, sync_folder};

/// Longest wait for the lock: far above what as many commands as people start at a time take.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two attempts to get the lock: there is no system call that waits for it for a time.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A file that no other process changes for as long as this value lives.
#[derive(Debug)]
pub struct Held {
    /// Without links.
    path: PathBuf,
    secrecy: Secrecy,
    _lock: File,
}

/// Takes the lock of the folder in which the file lies, or is going to.
///
/// # Errors
/// [`FileError::Busy`] if it is held by another for longer than 30 s, or an I/O error.
pub fn hold(path: &Path, secrecy: Secrecy) -> Result<Held, FileError> {
    hold_within(path, secrecy, LOCK_LIMIT)
}

/// Likewise, by another time limit.
pub(super) fn hold_within(path: &Path, secrecy: Secrecy, limit: Duration) -> Result<Held, FileError> {
    let path = real(path)?;
    let lock = lock_within(folder_of(&path), limit)?;
    Ok(Held { path, secrecy, _lock: lock })
}

impl Held {
    /// The text of the file.
    ///
    /// # Errors
    /// As of [`read`](crate::read).
    pub fn read(&self) -> Result<String, FileError> {
        read(&self.path, self.secrecy)
    }

    /// Writes the file, which is not there yet.
    ///
    /// # Errors
    /// As of [`create`](crate::create).
    pub fn create(&self, text: &str) -> Result<(), FileError> {
        let aside = self.write_aside(text, None)?;
        // A link, unlike a renaming, never takes the place of another file.
        let linked = fs::hard_link(&aside, &self.path);
        let _ = fs::remove_file(&aside);
        linked.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists { path: self.path.clone() },
            _ => FileError::Io { path: self.path.clone(), error },
        })?;
        self.sync_name()
    }

    /// Writes the file, in the place of an older one if there is one, whose mode, user and group it keeps.
    ///
    /// # Errors
    /// As of [`replace`](crate::replace).
    pub fn replace(&self, text: &str) -> Result<(), FileError> {
        let old = match fs::symlink_metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => return Err(FileError::NotAFile { path: self.path.clone() }),
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(FileError::of(&self.path, error)),
        };
        if let Some(old) = &old {
            permissions::check_file(&self.path, old, self.secrecy)?;
        }
        let aside = self.write_aside(text, old.as_ref())?;
        let renamed = fs::rename(&aside, &self.path);
        if let Err(error) = renamed {
            let _ = fs::remove_file(&aside);
            return Err(FileError::of(&self.path, error));
        }
        self.sync_name()
    }

    /// The text, durable, in a file of its own that has its final permissions before it has any content.
    fn write_aside(&self, text: &str, old: Option<&Metadata>) -> Result<PathBuf, FileError> {
        if text.len() as u64 > BYTES_MAX {
            return Err(FileError::TooLong { path: self.path.clone(), bytes: text.len() as u64 });
        }
        let name = self.path.file_name().unwrap_or_default();
        let folder = folder_of(&self.path);
        remove_left_over(folder, name).map_err(|error| FileError::of(folder, error))?;
        let mut aside = begin_of_aside(name);
        aside.push(format!("{}.new", std::process::id()));
        let aside = folder.join(aside);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(
            &mut options,
            if self.secrecy == Secrecy::Secret { 0o600 } else { 0o644 },
        );
        let mut file = options.open(&aside).map_err(|error| FileError::of(&aside, error))?;
        let written = keep_permissions(&self.path, &file, old).and_then(|()| {
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            written.map_err(|error| FileError::of(&aside, error))
        });
        if let Err(error) = written {
            // A disk that is full gets its room back.
            let _ = fs::remove_file(&aside);
            return Err(error);
        }
        Ok(aside)
    }

    fn sync_name(&self) -> Result<(), FileError> {
        let folder = folder_of(&self.path);
        sync_folder(folder).map_err(|error| FileError::of(folder, error))
    }
}

/// The place that a path leads to, which need not exist if the path is no link.
fn real(path: &Path) -> Result<PathBuf, FileError> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            let folder = folder_of(path);
            let folder = fs::canonicalize(folder).map_err(|error| FileError::of(folder, error))?;
            Ok(folder.join(path.file_name().unwrap_or_default()))
        }
        found => found.map_err(|error| FileError::Io { path: path.into(), error }),
    }
}

/// The folder's lock, for as long as the value lives.
///
/// # Errors
/// As of [`hold`].
pub fn lock(folder: &Path) -> Result<File, FileError> {
    lock_within(folder, LOCK_LIMIT)
}

fn lock_within(folder: &Path, limit: Duration) -> Result<File, FileError> {
    let path = folder.join(".lock");
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    }
    let file = options.open(&path).map_err(|error| FileError::Io { path: path.clone(), error })?;
    give_to_owner_of(folder, &file);
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < limit => sleep(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Err(FileError::Busy { path, waited: limit }),
            Err(TryLockError::Error(error)) => return Err(FileError::Io { path, error }),
        }
    }
}

/// First part of the names of files that are going to take the place of the one called `name`.
fn begin_of_aside(name: &OsStr) -> std::ffi::OsString {
    let mut begin = std::ffi::OsString::from(".");
    begin.push(name);
    begin.push(".");
    begin
}

/// Removes the temporary files of killed writers of the file called `name`. Called with the folder's lock held.
fn remove_left_over(folder: &Path, name: &OsStr) -> io::Result<()> {
    let begin = begin_of_aside(name);
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(begin.as_encoded_bytes()) && bytes.ends_with(b".new") {
            fs::remove_file(folder.join(name))?;
        }
    }
    Ok(())
}

/// Gives a new file the mode, the user and the group of the one whose place it takes.
#[cfg(unix)]
fn keep_permissions(path: &Path, file: &File, old: Option<&Metadata>) -> Result<(), FileError> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let Some(old) = old else {
        give_to_owner_of(folder_of(path), file);
        return Ok(());
    };
    let new = file.metadata().map_err(|error| FileError::of(path, error))?;
    let (owner, group) = (old.uid(), old.gid());
    if (new.uid(), new.gid()) != (owner, group) {
        let lost = |error| FileError::OwnerLost { path: path.into(), owner, group, error };
        fchown(file, Some(owner), Some(group)).map_err(lost)?;
    }
    let mode = fs::Permissions::from_mode(old.mode() & 0o777);
    file.set_permissions(mode).map_err(|error| FileError::of(path, error))
}

#[cfg(not(unix))]
fn keep_permissions(_: &Path, _: &File, _: Option<&Metadata>) -> Result<(), FileError> {
    Ok(())
}

/// Gives a file that root makes in another user's folder to that user, who could not change it otherwise.
#[cfg(unix)]
fn give_to_owner_of(folder: &Path, file: &File) {
    use std::os::unix::fs::{MetadataExt, fchown};
    if rustix::process::geteuid().is_root()
        && let Ok(folder) = fs::metadata(folder)
        && folder.uid() != 0
    {
        // If it cannot be, root's files are taken, too.
        let _ = fchown(file, Some(folder.uid()), Some(folder.gid()));
    }
}

#[cfg(not(unix))]
fn give_to_owner_of(_: &Path, _: &File) {}
