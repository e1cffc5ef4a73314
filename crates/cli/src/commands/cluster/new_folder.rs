//! A folder that gets its name only once it is complete.
//!
//! Until then it is `NAME.PROCESS.partial`, locked by its process. A command that is killed leaves it, with a private key in
//! it; the next command that makes a folder beside it finds its lock free, and removes it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};

use super::ClusterFailure;
use crate::output::tell;

/// Attempts to make a folder that others remove before it is locked: they were looking at it in the same moment.
const ATTEMPTS: usize = 10;
/// Files of a folder under way; files and folders of programs that were killed while they made them come to it.
const OURS: [&str; 8] =
    [".lock", "ca.key", "ca.pem", "keys.toml", "muser.toml", "node.key", "node.pem", "revoked.toml"];

/// A folder being made, for its owner alone. It has another name beside the final one until [`Self::finish`]; dropped
/// before, it is removed with all that is in it.
pub struct NewFolder {
    path: PathBuf,
    /// The name until it is whole; `None` once it is.
    partial: Option<PathBuf>,
    /// Free once this is gone.
    _lock: File,
}

impl NewFolder {
    /// Begins the folder that will be at `path`, where there is nothing or an empty folder; the folders above are made.
    pub fn begin(path: &Path) -> Result<Self, ClusterFailure> {
        let at = |error| ClusterFailure::Folder { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| ClusterFailure::NoName(path.to_owned()))?;
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() && fs::read_dir(path).map_err(at)?.next().is_none() => {}
            Ok(_) => return Err(ClusterFailure::Exists(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(error)),
        }
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            fs::create_dir_all(above).map_err(at)?;
        }
        // The process's number keeps two that make the same folder from disturbing each other.
        let mut partial = OsString::from(name);
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        remove_left_over(parent_of(path)).map_err(at)?;
        for _ in 0..ATTEMPTS {
            if let Some(lock) = make(&partial).map_err(at)? {
                return Ok(Self { path: path.to_owned(), partial: Some(partial), _lock: lock });
            }
        }
        Err(at(io::ErrorKind::ResourceBusy.into()))
    }

    /// Path of the folder while it is incomplete.
    pub fn partial(&self) -> &Path {
        self.partial.as_deref().unwrap_or(&self.path)
    }

    /// Gives the folder its name. What appeared there since [`Self::begin`] is not replaced, unless it is an empty folder.
    pub fn finish(mut self) -> Result<(), ClusterFailure> {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
        // Later writers create a new lock; if it is missing there is nothing to remove.
        let _ = fs::remove_file(self.partial().join(".lock"));
        fs::rename(self.partial(), &self.path).map_err(|error| match error.kind() {
            AlreadyExists | DirectoryNotEmpty | NotADirectory => ClusterFailure::Exists(self.path.clone()),
            _ => ClusterFailure::Folder { path: self.path.clone(), error },
        })?;
        self.partial = None;
        let above = parent_of(&self.path);
        let synced = File::open(above).and_then(|above| above.sync_all());
        synced.map_err(|error| ClusterFailure::Folder { path: above.to_owned(), error })
    }
}

/// Makes a folder with mode 700 and locks it; `None` if another process removed it before it was locked.
fn make(partial: &Path) -> io::Result<Option<File>> {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(partial)?;
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let lock = match File::open(partial) {
        Err(error) if gone(&error) => return Ok(None),
        lock => lock?,
    };
    // Another process that holds the lock is about to remove the folder.
    Ok((lock.try_lock().is_ok() && partial.exists()).then_some(lock))
}

/// Removes partial folders whose process has ended.
fn remove_left_over(above: &Path) -> io::Result<()> {
    for entry in fs::read_dir(above)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let process = name.to_str().and_then(|name| name.strip_suffix(".partial")?.rsplit_once('.'));
        let is_partial = process.is_some_and(|(_, process)| process.parse::<u32>().is_ok());
        if !is_partial || !entry.file_type()?.is_dir() || !has_only_ours(&path) {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        if lock.try_lock().is_ok() {
            tell(format_args!("muser: removing {path:?}, which was left by a command that was killed"));
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

/// True if a folder holds only files that a partial folder may hold; false if it cannot be read.
fn has_only_ours(path: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(path) else { return false };
    entries.all(|entry| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        let name = name.to_string_lossy();
        OURS.contains(&&*name)
            || name.starts_with("enrolment-")
            || OURS.iter().any(|ours| name.starts_with(&format!(".{ours}.")) && name.ends_with(".new"))
    })
}

/// The folder that a path is in.
fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Best effort: the failure that led here is what the user needs to read.
            let _ = fs::remove_dir_all(partial);
        }
    }
}
