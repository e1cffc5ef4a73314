//! Files of the cluster folder: written whole or not at all, and secrets that only their owner reads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Far above every file of a cluster folder but the ledger.
const BYTES_MAX: u64 = 4 << 20;

/// Why a file of the cluster folder cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It is not there.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It would be overwritten.
    #[error("{} exists already and is not overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A secret that others can read is none.
    #[error("{} holds a secret, but has mode {mode:03o}: only its owner may use it, and at most its group read it", path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Nothing of ours is that long.
    #[error("{} has {bytes} bytes, at most {BYTES_MAX} are read", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// What the disk says.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the disk says.
        #[source]
        error: io::Error,
    },
}

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Mode 0644.
    Public,
    /// Mode 0600 when written; read only if others have no access and the group none but reading.
    Secret,
}

/// What changes when a file is replaced or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    bytes: u64,
    modified: SystemTime,
    file: u64,
}

impl Stamp {
    /// That of the file which is there now.
    pub(crate) fn of(path: &Path) -> Result<Self, FileError> {
        let at = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => FileError::Missing { path: path.into() },
            _ => FileError::Io { path: path.into(), error },
        };
        let metadata = fs::metadata(path).map_err(at)?;
        #[cfg(unix)]
        let file = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let file = 0;
        Ok(Self { bytes: metadata.len(), modified: metadata.modified().map_err(at)?, file })
    }
}

/// The text of a file.
pub(crate) fn read(path: &Path, secrecy: Secrecy) -> Result<String, FileError> {
    let at = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Missing { path: path.into() },
        _ => FileError::Io { path: path.into(), error },
    };
    let mut file = File::open(path).map_err(at)?;
    // Of the opened file, so that it cannot be exchanged in between.
    let metadata = file.metadata().map_err(at)?;
    if secrecy == Secrecy::Secret {
        check_mode(path, &metadata)?;
    }
    if metadata.len() > BYTES_MAX {
        return Err(FileError::TooLong { path: path.into(), bytes: metadata.len() });
    }
    let mut text = String::new();
    Read::by_ref(&mut file).take(BYTES_MAX).read_to_string(&mut text).map_err(at)?;
    Ok(text)
}

/// Writes a file that is not there yet.
pub(crate) fn create(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), FileError> {
    let aside = write_aside(path, text, secrecy)?;
    // A link, unlike a renaming, never takes the place of another file.
    let linked = fs::hard_link(&aside, path);
    let _ = fs::remove_file(&aside);
    linked.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists { path: path.into() },
        _ => FileError::Io { path: path.into(), error },
    })?;
    sync_folder_of(path)
}

/// Writes a file, in the place of an older one if there is one.
pub(crate) fn replace(path: &Path, text: &str, secrecy: Secrecy) -> Result<(), FileError> {
    let aside = write_aside(path, text, secrecy)?;
    fs::rename(&aside, path).map_err(|error| FileError::Io { path: path.into(), error })?;
    sync_folder_of(path)
}

/// Makes the names in a folder survive a crash.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The text, durable, in a file beside `path` that has its final permissions from the beginning.
fn write_aside(path: &Path, text: &str, secrecy: Secrecy) -> Result<PathBuf, FileError> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    let aside = PathBuf::from(aside);
    let at = |error| FileError::Io { path: aside.clone(), error };
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if secrecy == Secrecy::Secret { 0o600 } else { 0o644 });
    }
    let mut file = options.open(&aside).map_err(at)?;
    file.write_all(text.as_bytes()).map_err(at)?;
    file.sync_all().map_err(at)?;
    Ok(aside)
}

fn sync_folder_of(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(folder).map_err(|error| FileError::Io { path: folder.into(), error })
}

#[cfg(unix)]
fn check_mode(path: &Path, metadata: &fs::Metadata) -> Result<(), FileError> {
    use std::os::unix::fs::MetadataExt;
    let mode = metadata.mode() & 0o777;
    if mode & 0o037 != 0 {
        return Err(FileError::TooOpen { path: path.into(), mode });
    }
    Ok(())
}

/// Elsewhere the access lists of the folder decide.
#[cfg(not(unix))]
fn check_mode(_: &Path, _: &fs::Metadata) -> Result<(), FileError> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_is_never_overwritten_and_a_replaced_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        create(&path, "first", Secrecy::Secret).unwrap();
        assert!(matches!(create(&path, "second", Secrecy::Secret), Err(FileError::Exists { .. })));
        assert_eq!(read(&path, Secrecy::Secret).unwrap(), "first");
        replace(&path, "third", Secrecy::Secret).unwrap();
        assert_eq!(read(&path, Secrecy::Secret).unwrap(), "third");
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a"]);
        assert!(matches!(read(&folder.path().join("b"), Secrecy::Public), Err(FileError::Missing { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create(&path, "s", Secrecy::Secret).unwrap();
        for (mode, allowed) in
            [(0o600, true), (0o640, true), (0o400, true), (0o644, false), (0o660, false), (0o601, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match read(&path, Secrecy::Secret) {
                Ok(_) => assert!(allowed, "{mode:o}"),
                Err(FileError::TooOpen { mode: found, .. }) => assert!(!allowed && found == mode, "{mode:o}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
