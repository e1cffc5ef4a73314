//! The hub's cache of one repository, in the layout of the hub's own client, so that both find each other's files:
//!
//! | path below the cache's folder | content |
//! |---|---|
//! | `models--USER--NAME/blobs/ETAG` | a file's bytes, once for all revisions |
//! | `models--USER--NAME/blobs/ETAG.incomplete` | the same, until it is whole |
//! | `models--USER--NAME/snapshots/COMMIT/PATH` | a relative link to the blob |
//! | `models--USER--NAME/refs/REVISION` | the commit that the revision was last seen at |
//! | `.locks/models--USER--NAME/ETAG.lock` | locked while the blob is written |

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(windows)]
use std::os::windows::fs::symlink_file as symlink;

use crate::error::Error;
use crate::file_name::FileName;
use crate::reference::{RepoId, Revision, is_commit};

/// Folders in folders that are looked into.
const DEPTH_MAX: usize = 16;

/// The cache of one repository.
pub(crate) struct RepoCache {
    /// `models--USER--NAME`.
    pub(crate) folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(crate) fn new(hub_cache: &Path, repo: &RepoId) -> Self {
        let name = format!("models--{}--{}", repo.user(), repo.name());
        Self { locks: hub_cache.join(".locks").join(&name), folder: hub_cache.join(name) }
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Links the file's name in the snapshot to its blob. Returns the link's path.
    pub(crate) fn link(&self, commit: &str, file: &FileName, etag: &str) -> Result<PathBuf, Error> {
        let path = self.snapshot(commit).join(file.to_path());
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(Error::disk("create the folder", folder))?;
        // Out of the snapshot's folders, of the snapshot, and of `snapshots`.
        let up: PathBuf = std::iter::repeat_n("..", file.parts().count() + 1).collect();
        let target = up.join("blobs").join(etag);
        if fs::read_link(&path).is_ok_and(|found| found == target) {
            return Ok(path);
        }
        replace(&path, |aside| symlink(&target, aside))?;
        Ok(path)
    }

    /// Writes `commit` to the ref of `revision`.
    pub(crate) fn set_ref(&self, revision: &Revision, commit: &str) -> Result<(), Error> {
        let path = self.ref_path(revision);
        if revision.is_commit() || fs::read_to_string(&path).is_ok_and(|known| known == commit) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder).map_err(Error::disk("create the folder", folder))?;
        replace(&path, |aside| fs::write(aside, commit))
    }

    /// The commit that `revision` was last seen at, if it is in the cache.
    pub(crate) fn commit_of(&self, revision: &Revision) -> Option<String> {
        if revision.is_commit() {
            return Some(revision.as_str().to_owned());
        }
        let text = fs::read_to_string(self.ref_path(revision)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// GGUF files of a snapshot whose links resolve, sorted by name.
    pub(crate) fn files(&self, commit: &str) -> Vec<FileName> {
        let mut found = Vec::new();
        gather(&self.snapshot(commit), "", DEPTH_MAX, &mut found);
        found.sort_unstable();
        found
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    fn ref_path(&self, revision: &Revision) -> PathBuf {
        self.folder.join("refs").join(revision.as_str())
    }
}

/// Creates a file under a temporary name by `make`, and renames it to `path`, which so never holds a part of it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Error> {
    let mut aside = path.to_owned().into_os_string();
    aside.push(format!(".{}.new", std::process::id()));
    let aside = PathBuf::from(aside);
    // One that a process of the same number left behind.
    let _ = fs::remove_file(&aside);
    make(&aside).and_then(|()| fs::rename(&aside, path)).map_err(Error::disk("write", path))
}

fn gather(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<FileName>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && depth > 0 {
            gather(&entry.path(), &format!("{path}/"), depth - 1, found);
        } else if fs::metadata(entry.path()).is_ok_and(|target| target.is_file()) {
            found.extend(path.parse::<FileName>().ok().filter(FileName::is_gguf));
        }
    }
}
