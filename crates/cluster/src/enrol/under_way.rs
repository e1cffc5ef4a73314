//! The folder of an enrolment under way: `enrolment-` and 16 hexadecimal digits, in the cluster folder.
//!
//! It has what the tests need, and from the moment before it goes out `granted.toml`: what was granted, and to whom. The
//! process holds a lock on it and removes it at the end; the kernel lets go of the lock however the process ends. So a folder
//! whose lock is free was left by a process that was killed, and what was granted in it is taken back by [`take_back`].

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::{Path, PathBuf};

use muser_files::{self as files, FileError, Secrecy};
use muser_trust::identity::{ClusterFolder, NodeFacts, NodeId, Revocations, Revoked, Serial};
use muser_trust::{hex, random};
use serde::{Deserialize, Serialize};

use super::failure::EnrolError;

const BEGIN: &str = "enrolment-";
const GRANTED: &str = "granted.toml";

/// A folder that this process has.
#[derive(Debug)]
pub(super) struct EnrolmentFolder {
    path: PathBuf,
    /// Free once this is gone.
    _lock: File,
    /// It is left behind if what was granted could not be taken back.
    stays: bool,
}

/// Grant of an enrolment that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its certificate.
    pub serial: Serial,
    /// Time of the grant, in seconds since 1970.
    pub since_unix_s: u64,
    /// State of its enrolment.
    pub state: PendingState,
}

/// State of an enrolment that has granted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingState {
    /// Its enrolment goes on.
    UnderWay,
    /// The enrolling process was killed.
    Abandoned,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct GrantedForm {
    node: String,
    name: String,
    serial: String,
    since_unix_s: u64,
}

impl EnrolmentFolder {
    /// Makes a folder in the one at `folder`, with an empty deny-list.
    pub(super) fn begin(folder: &Path) -> Result<Self, EnrolError> {
        let digits: [u8; 8] = random::bytes()?;
        let path = folder.join(format!("{BEGIN}{}", hex::encode(&digits)));
        // Whoever looks for folders that were left has this lock, and sees none that is not locked yet.
        let held = files::lock(folder).map_err(file)?;
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let at = |error| file(FileError::Io { path: path.clone(), error });
        builder.create(&path).map_err(at)?;
        let lock = File::open(&path).map_err(at)?;
        lock.try_lock().map_err(|error| at(error.into()))?;
        drop(held);
        let made = Self { path, _lock: lock, stays: false };
        Revocations::create(&made.path.join("revoked.toml")).map_err(file)?;
        Ok(made)
    }

    /// Folder of the ledger of the tests. Handoffs of an enrolment are bound to a run of the node that ends with it, so no
    /// later one takes them again.
    pub(super) fn ledger(&self) -> PathBuf {
        self.path.join("ledger")
    }

    /// The empty deny-list of the tests.
    pub(super) fn revocations(&self) -> Result<Revocations, EnrolError> {
        Ok(Revocations::load(&self.path.join("revoked.toml"))?)
    }

    /// Notes, durably, what is about to be granted.
    pub(super) fn note(&self, node: &NodeFacts, now_unix_s: u64) -> Result<(), EnrolError> {
        let (id, serial) = (node.id.to_string(), node.serial.to_string());
        let form = GrantedForm { node: id, name: node.name.to_string(), serial, since_unix_s: now_unix_s };
        let text = toml::to_string(&form).map_err(|error| EnrolError::Keep(error.to_string()))?;
        files::create(&self.path.join(GRANTED), &text, Secrecy::Public).map_err(file)?;
        // The folder's own name has to survive, too.
        let above = self.path.parent().unwrap_or(Path::new("."));
        files::sync_folder(above).map_err(|error| file(FileError::Io { path: above.into(), error }))
    }

    /// Keeps the folder on disk for [`take_back`], which revokes the grant later.
    pub(super) fn leave(&mut self) {
        self.stays = true;
    }
}

impl Drop for EnrolmentFolder {
    fn drop(&mut self) {
        if !self.stays {
            // If it cannot be, the next enrolment sees to it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Grants of enrolments that have not ended, or never will.
///
/// # Errors
/// I/O error of the operating system.
pub fn pending(folder: &ClusterFolder) -> Result<Vec<Pending>, EnrolError> {
    let mut all = Vec::new();
    for path in folders(folder.path()).map_err(EnrolError::Io)? {
        let Some(found) = read(&path)? else { continue };
        let state = if is_free(&path).is_some() { PendingState::Abandoned } else { PendingState::UnderWay };
        all.push(Pending { state, ..found });
    }
    Ok(all)
}

/// Revokes what was granted by enrolments whose process was killed, and removes what these left. Returns what was revoked.
///
/// # Errors
/// I/O error, or a deny-list that cannot be used; grants not revoked are found again by the next call.
pub fn take_back(folder: &ClusterFolder, now_unix_s: u64) -> Result<Vec<Pending>, EnrolError> {
    let held = files::lock(folder.path()).map_err(file)?;
    let left: Vec<(PathBuf, File)> = folders(folder.path())
        .map_err(EnrolError::Io)?
        .into_iter()
        .filter_map(|path| is_free(&path).map(|lock| (path, lock)))
        .collect();
    drop(held);
    let mut revoked = Vec::new();
    for (path, _lock) in &left {
        if let Some(found) = read(path)? {
            folder.load_revocations()?.revoke(Revoked::Serial(found.serial), now_unix_s)?;
            revoked.push(found);
        }
        fs::remove_dir_all(path).map_err(|error| file(FileError::Io { path: path.clone(), error }))?;
    }
    Ok(revoked)
}

/// The folders of enrolments, in no order.
fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_ours = |name: &str| {
        let digits = name.strip_prefix(BEGIN);
        digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A link is nobody's folder.
        if entry.file_type()?.is_dir() && entry.file_name().to_str().is_some_and(is_ours) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The lock of a folder that no process has any more.
fn is_free(path: &Path) -> Option<File> {
    let lock = File::open(path).ok()?;
    lock.try_lock().is_ok().then_some(lock)
}

/// The grant on record there, if there is one.
fn read(path: &Path) -> Result<Option<Pending>, EnrolError> {
    let path = path.join(GRANTED);
    let text = match files::read(&path, Secrecy::Public) {
        Err(FileError::Missing { .. }) => return Ok(None),
        text => text.map_err(file)?,
    };
    let damaged = || {
        EnrolError::Keep(format!(
            "{}: it is damaged; revoke who was let in last, and remove its folder",
            path.display()
        ))
    };
    let form: GrantedForm = toml::from_str(&text).map_err(|_| damaged())?;
    let node = NodeId::from_hex(&form.node).ok_or_else(damaged)?;
    let serial = Serial::from_hex(&form.serial).ok_or_else(damaged)?;
    let (name, since_unix_s, state) = (form.name, form.since_unix_s, PendingState::Abandoned);
    Ok(Some(Pending { node, name, serial, since_unix_s, state }))
}

fn file(error: FileError) -> EnrolError {
    EnrolError::Identity(error.into())
}
