//! Permission checks of the files of a cluster folder, by the rules that ssh has for its own.
//!
//! A file, and each folder on its path, belongs to root or to the user of this process, and only that owner may write
//! it. In a folder with the sticky bit others may create files, but not replace ours. A secret may be read by its group
//! and by no other user.

use std::fs;
use std::path::Path;

use super::{FileError, Secrecy};

/// Mode bits with which others than the owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bits that no secret has: all of others', and the group's but for reading.
const SECRET_FORBIDS: u32 = 0o037;

/// Checks an opened file.
#[cfg(unix)]
pub(super) fn check_file(path: &Path, metadata: &fs::Metadata, secrecy: Secrecy) -> Result<(), FileError> {
    use std::os::unix::fs::MetadataExt;
    let mode = metadata.mode() & 0o777;
    if secrecy == Secrecy::Secret && mode & SECRET_FORBIDS != 0 {
        return Err(FileError::TooOpen { path: path.into(), mode });
    }
    if mode & OTHERS_WRITE != 0 {
        return Err(FileError::Writable { path: path.into(), mode });
    }
    check_owner(path, metadata)
}

/// Checks the folder that names the file, and the one where it really lies if the name is a link.
#[cfg(unix)]
pub(super) fn check_folders(path: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::MetadataExt;
    const STICKY: u32 = 0o1000;
    let real = fs::canonicalize(path).map_err(|error| FileError::of(path, error))?;
    for folder in [super::folder_of(path), super::folder_of(&real)] {
        let metadata = fs::metadata(folder).map_err(|error| FileError::of(folder, error))?;
        let mode = metadata.mode() & 0o7777;
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            return Err(FileError::Writable { path: folder.into(), mode });
        }
        check_owner(folder, &metadata)?;
    }
    Ok(())
}

#[cfg(unix)]
fn check_owner(path: &Path, metadata: &fs::Metadata) -> Result<(), FileError> {
    let (owner, user) = (std::os::unix::fs::MetadataExt::uid(metadata), rustix::process::geteuid().as_raw());
    if owner == 0 || owner == user { Ok(()) } else { Err(FileError::Foreign { path: path.into(), owner, user }) }
}

/// No check: elsewhere the access lists of the folder decide.
#[cfg(not(unix))]
pub(super) fn check_file(_: &Path, _: &fs::Metadata, _: Secrecy) -> Result<(), FileError> {
    Ok(())
}

/// No check, likewise.
#[cfg(not(unix))]
pub(super) fn check_folders(_: &Path) -> Result<(), FileError> {
    Ok(())
}
