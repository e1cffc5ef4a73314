//! Location of one file on disk: final name, partial name, notes with the server's validators, and the lock that keeps
//! two pulls from writing at once.
//!
//! Notes are small files in a folder of their own, named by a digest of the final path, so that nothing but the partial
//! file ever appears beside the user's files or in the hub's cache.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::digest::Sha256;
use crate::error::Error;
use crate::retry::{PullEvent, Watch, pause, tell};

/// Bytes of a note that are read.
const NOTE_BYTES_MAX: u64 = 512;
/// Poll interval of a lock that another process holds.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Paths of one file.
pub(crate) struct Place {
    /// The file's name, once it is whole.
    pub(crate) path: PathBuf,
    /// Its name until then.
    pub(crate) partial: PathBuf,
    lock: PathBuf,
    notes: PathBuf,
    key: String,
}

/// Kind of note: the validator (etag or time of change) that the server gave for the partial or the whole file.
#[derive(Clone, Copy)]
pub(crate) enum Note {
    /// For the partial file.
    Partial,
    /// For the whole file.
    Whole,
}

/// Lock guard: while it lives, no other pull writes the file.
pub(crate) struct Held {
    _lock: File,
}

impl Place {
    /// A file in a cache, whose folder is created. `lock`: the lock file that other programs with this cache use.
    pub(crate) fn in_cache(path: &Path, lock: Option<PathBuf>, downloads: &Path) -> Result<Self, Error> {
        let folder = path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(Error::disk("create the folder", folder))?;
        Self::new(path, lock, downloads)
    }

    /// A file that the user names; its folder must exist. Links are followed, so that the file is replaced and not the link.
    pub(crate) fn of_user(path: &Path, downloads: &Path) -> Result<Self, Error> {
        match fs::metadata(path) {
            Ok(found) if !found.is_file() => Err(Error::NotAFile { path: path.into() }),
            Ok(_) => {
                let path = fs::canonicalize(path).map_err(Error::disk("find", path))?;
                Self::new(&path, None, downloads)
            }
            Err(_) => Self::new(path, None, downloads),
        }
    }

    fn new(path: &Path, lock: Option<PathBuf>, downloads: &Path) -> Result<Self, Error> {
        let is_file = path.file_name().zip(path.parent());
        let (name, folder) = is_file.ok_or_else(|| Error::NotAFile { path: path.into() })?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let path = fs::canonicalize(folder).map_err(Error::disk("find the folder", folder))?.join(name);
        let key = Sha256::of(path.as_os_str().as_encoded_bytes()).to_string();
        let notes = downloads.join(".notes");
        fs::create_dir_all(&notes).map_err(Error::disk("create the folder", &notes))?;
        let lock = lock.unwrap_or_else(|| notes.join(format!("{key}.lock")));
        let mut partial = path.clone().into_os_string();
        partial.push(".incomplete");
        Ok(Self { path, partial: partial.into(), lock, notes, key })
    }

    /// Waits until no other pull writes `file`; `watch` is called meanwhile, and may cancel.
    pub(crate) fn lock(&self, file: &str, watch: &mut Watch<'_>) -> Result<Held, Error> {
        let folder = self.lock.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(Error::disk("create the folder", folder))?;
        let open = OpenOptions::new().write(true).create(true).truncate(false).open(&self.lock);
        let lock = open.map_err(Error::disk("open", &self.lock))?;
        let mut is_told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Held { _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(reason)) => return Err(Error::disk("lock", &self.lock)(reason)),
            }
            if !is_told {
                tell(watch, PullEvent::Waiting { file })?;
                is_told = true;
            }
            pause(LOCK_PAUSE, watch)?;
        }
    }

    /// Reads the note; `None` if it is absent, empty or not printable ASCII.
    pub(crate) fn note(&self, which: Note) -> Option<String> {
        let mut text = String::new();
        File::open(self.note_path(which)).ok()?.take(NOTE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let is_header = !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        is_header.then_some(text)
    }

    /// Notes `text`, or nothing.
    pub(crate) fn set_note(&self, which: Note, text: Option<&str>) -> Result<(), Error> {
        let path = self.note_path(which);
        let done = match text {
            Some(text) => fs::write(&path, text),
            None => remove_if_there(&path),
        };
        done.map_err(Error::disk("write", &path))
    }

    /// Size of the whole file, if there is one.
    pub(crate) fn whole_bytes(&self) -> Result<Option<u64>, Error> {
        match fs::metadata(&self.path) {
            Ok(found) if found.is_file() => Ok(Some(found.len())),
            Ok(_) => Err(Error::NotAFile { path: self.path.clone() }),
            Err(_) => Ok(None),
        }
    }

    /// As [`Self::whole_bytes`], if the file begins with `magic`.
    pub(crate) fn whole_bytes_of(&self, magic: &[u8]) -> Result<Option<u64>, Error> {
        Ok(self.whole_bytes()?.filter(|_| begins_with(&self.path, magic)))
    }

    /// Removes the partial file and its note.
    pub(crate) fn forget_partial(&self) -> Result<(), Error> {
        remove_if_there(&self.partial).map_err(Error::disk("remove", &self.partial))?;
        self.set_note(Note::Partial, None)
    }

    /// Gives the partial file, whose bytes are on the disk, its final name.
    pub(crate) fn name(&self, validator: Option<&str>) -> Result<(), Error> {
        fs::rename(&self.partial, &self.path).map_err(Error::disk("name", &self.path))?;
        sync_folder(&self.path)?;
        // In this order: whatever note the file has when a crash comes between, it is of no file with another content.
        self.set_note(Note::Whole, validator)?;
        self.set_note(Note::Partial, None)
    }

    fn note_path(&self, which: Note) -> PathBuf {
        let ending = match which {
            Note::Partial => "partial",
            Note::Whole => "whole",
        };
        self.notes.join(format!("{}.{ending}", self.key))
    }
}

/// Makes the names in the folder of `path` last.
fn sync_folder(path: &Path) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(Path::new(""));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::disk("sync the folder", folder))
}

/// True if the file at `path` can be read and begins with `magic`.
pub(crate) fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut first = vec![0; magic.len()];
    magic.is_empty() || File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok_and(|()| first == magic)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
