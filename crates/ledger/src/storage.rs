//! Storage of a ledger's bytes: a trait of five operations, and its implementation by files of a cluster folder.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use muser_files::{self as files, FileError, sync_folder};

/// A growing sequence of bytes that survives a crash up to the last [`sync`](Self::sync).
pub trait LedgerStorage: Send {
    /// All bytes, none if there is no ledger yet. Refuses more than `bytes_max`.
    ///
    /// # Errors
    /// I/O error of the storage; [`io::ErrorKind::FileTooLarge`] above the limit.
    fn read_all(&mut self, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Adds bytes to the end. After an error any part of them may be there.
    ///
    /// # Errors
    /// I/O error of the storage.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns when everything appended or cut survives a crash.
    ///
    /// # Errors
    /// I/O error of the storage. The fate of bytes appended since the last success is unknown then.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts everything from `bytes` on.
    ///
    /// # Errors
    /// I/O error of the storage.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;

    /// Puts `bytes` in the place of everything, durably: after a crash there is all of the old or all of the new.
    ///
    /// # Errors
    /// [`ReplaceError`], by whether the old bytes stayed.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), ReplaceError>;
}

/// Failure of a replacement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The old bytes are in place, untouched.
    #[error("the new ledger could not be written, the old one stays: {0}")]
    OldStays(#[source] io::Error),
    /// The new bytes are in place, but a crash may bring the old ones back.
    #[error("the new ledger is in place, but may not survive a crash: {0}")]
    Unknown(#[source] io::Error),
}

/// A ledger in a folder: `replay.ledger`, and `replay.lock`, which is locked for as long as this value lives.
pub struct FolderStorage {
    folder: PathBuf,
    /// `None` until there is a ledger.
    file: Option<File>,
    _lock: File,
}

/// Failure to open the folder's ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderStorageError {
    /// Another process holds it: two writers would accept one handoff twice.
    #[error("{} is held by another process", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// Other users may write it, and could make it forget a handoff.
    #[error(transparent)]
    File(#[from] FileError),
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

impl FolderStorage {
    /// Opens the folder's ledger, creating the folder if it does not exist. A ledger file that exists already has its
    /// name synced too, so that it survives a crash.
    ///
    /// # Errors
    /// [`FolderStorageError::Locked`] while another process has it, or an I/O error.
    pub fn open(folder: &Path) -> Result<Self, FolderStorageError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |error| FolderStorageError::Io { path, error }
        };
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o755);
        builder.recursive(true).create(folder).map_err(at(folder))?;
        // The folder's own name must survive a crash, or the ledger in it does not.
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_folder(parent).map_err(at(parent))?;
        }
        let lock_path = folder.join("replay.lock");
        let lock = files::open_regular(OpenOptions::new().create(true).truncate(false).write(true), &lock_path)
            .map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderStorageError::Locked { path: lock_path }),
            Err(TryLockError::Error(error)) => return Err(FolderStorageError::Io { path: lock_path, error }),
        }
        let path = folder.join("replay.ledger");
        let file = match files::open_regular(OpenOptions::new().read(true).append(true), &path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(FolderStorageError::Io { path, error }),
        };
        if let Some(file) = &file {
            files::check_public(&path, file)?;
        }
        // A run that ended while it replaced the ledger may have left a name that a crash would take back, and with it
        // whatever is recorded from here on.
        sync_folder(folder).map_err(at(folder))?;
        Ok(Self { folder: folder.to_owned(), file, _lock: lock })
    }

    fn file(&mut self) -> io::Result<&mut File> {
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Writes and syncs the new file under another name. The old one is untouched.
    fn write_aside(&self, bytes: &[u8]) -> io::Result<(File, PathBuf)> {
        let aside = self.folder.join("replay.ledger.new");
        // One may be left from a crash; it never counted.
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o644);
        let mut file = options.open(&aside)?;
        match file.write_all(bytes).and_then(|()| file.sync_all()) {
            Ok(()) => Ok((file, aside)),
            Err(error) => {
                // A disk that is full gets its room back.
                let _ = fs::remove_file(&aside);
                Err(error)
            }
        }
    }
}

impl LedgerStorage for FolderStorage {
    fn read_all(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let Some(file) = &mut self.file else { return Ok(Vec::new()) };
        if file.metadata()?.len() > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file()?.set_len(bytes)
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), ReplaceError> {
        let (file, aside) = self.write_aside(bytes).map_err(ReplaceError::OldStays)?;
        fs::rename(aside, self.folder.join("replay.ledger")).map_err(ReplaceError::OldStays)?;
        self.file = Some(file);
        sync_folder(&self.folder).map_err(ReplaceError::Unknown)
    }
}
