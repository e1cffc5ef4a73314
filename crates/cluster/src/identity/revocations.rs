//! The nodes and certificates that are no longer admitted: `revoked.toml`, read again whenever it changes.
//!
//! ```toml
//! [[revoked]]
//! node = "64 hexadecimal digits"      # or serial = "32 hexadecimal digits"
//! since_unix_s = 1796000000
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::facts::{NodeFacts, NodeId, Serial};
use crate::files::{self, FileError, Secrecy, Stamp};

/// What was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// A node: all certificates of its key, also future ones.
    Node(NodeId),
    /// One certificate.
    Serial(Serial),
}

/// The deny-list of a cluster folder. Shared by reference among threads.
#[derive(Debug)]
pub struct Revocations {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    stamp: Stamp,
    revoked: HashSet<Revoked>,
}

/// Why the deny-list cannot be used. Nobody is admitted then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevocationsError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a list of revocations.
    #[error("{}: the list is not valid: {error}", path.display())]
    NotAList {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        error: Box<toml::de::Error>,
    },
    /// An entry names neither or both, or not by hexadecimal digits of the right number.
    #[error("{}: entry {entry} is not one node of 64 digits or one serial of 32", path.display())]
    BadEntry {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        entry: usize,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    #[serde(default)]
    revoked: Vec<EntryForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    since_unix_s: u64,
}

impl Revocations {
    /// Reads the list. A list that is gone is an error, not an empty list.
    ///
    /// # Errors
    /// [`RevocationsError`].
    pub fn load(path: &Path) -> Result<Self, RevocationsError> {
        let stamp = Stamp::of(path)?;
        let revoked = revoked_of(path, &read(path)?)?;
        Ok(Self { path: path.into(), known: Mutex::new(Known { stamp, revoked }) })
    }

    /// Whether this certificate or its node is revoked, after reading the list again if it changed.
    ///
    /// # Errors
    /// The list changed and cannot be read; the certificate must not be admitted.
    pub fn revokes(&self, facts: &NodeFacts) -> Result<Option<Revoked>, RevocationsError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at before reading: a change in between is seen the next time.
        let stamp = Stamp::of(&self.path)?;
        if stamp != known.stamp {
            known.revoked = revoked_of(&self.path, &read(&self.path)?)?;
            known.stamp = stamp;
        }
        let either = [Revoked::Node(facts.id), Revoked::Serial(facts.serial)];
        Ok(either.into_iter().find(|revoked| known.revoked.contains(revoked)))
    }

    /// Adds to the list, durably, what is not on it yet.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list is as it was.
    pub fn revoke(&self, revoked: Revoked, now_unix_s: u64) -> Result<(), RevocationsError> {
        let held = files::hold(&self.path, Secrecy::Public)?;
        let mut list = parse(&self.path, &held.read()?)?;
        if revoked_of(&self.path, &list)?.contains(&revoked) {
            return Ok(());
        }
        let (node, serial) = match revoked {
            Revoked::Node(id) => (Some(id.to_string()), None),
            Revoked::Serial(serial) => (None, Some(serial.to_string())),
        };
        list.revoked.push(EntryForm { node, serial, since_unix_s: now_unix_s });
        Ok(held.replace(&text_of(&list))?)
    }

    /// All that was revoked and since when, in seconds since 1970; in the order of the file, which is read again.
    ///
    /// # Errors
    /// [`RevocationsError`].
    pub fn list(&self) -> Result<Vec<(Revoked, u64)>, RevocationsError> {
        entries_of(&self.path, &read(&self.path)?)
    }

    /// Writes an empty list where there is none.
    pub(super) fn create(path: &Path) -> Result<(), FileError> {
        files::create(path, "", Secrecy::Public)
    }
}

fn text_of(list: &ListForm) -> String {
    let mut text = String::new();
    for EntryForm { node, serial, since_unix_s } in &list.revoked {
        text += "[[revoked]]\n";
        for (key, digits) in [("node", node), ("serial", serial)] {
            if let Some(digits) = digits {
                text += &format!("{key} = \"{digits}\"\n");
            }
        }
        text += &format!("since_unix_s = {since_unix_s}\n");
    }
    text
}

fn read(path: &Path) -> Result<ListForm, RevocationsError> {
    parse(path, &files::read(path, Secrecy::Public)?)
}

fn parse(path: &Path, text: &str) -> Result<ListForm, RevocationsError> {
    toml::from_str(text).map_err(|error| RevocationsError::NotAList { path: path.into(), error: Box::new(error) })
}

fn revoked_of(path: &Path, list: &ListForm) -> Result<HashSet<Revoked>, RevocationsError> {
    Ok(entries_of(path, list)?.into_iter().map(|(revoked, _)| revoked).collect())
}

fn entries_of(path: &Path, list: &ListForm) -> Result<Vec<(Revoked, u64)>, RevocationsError> {
    let one = |(place, form): (usize, &EntryForm)| {
        let revoked = match (&form.node, &form.serial) {
            (Some(digits), None) => NodeId::from_hex(digits).map(Revoked::Node),
            (None, Some(digits)) => Serial::from_hex(digits).map(Revoked::Serial),
            _ => None,
        };
        let revoked = revoked.ok_or_else(|| RevocationsError::BadEntry { path: path.into(), entry: place + 1 })?;
        Ok((revoked, form.since_unix_s))
    };
    list.revoked.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::facts::{NodeName, Roles};
    use super::*;

    fn facts(id: u8, serial: u8) -> NodeFacts {
        NodeFacts {
            id: NodeId([id; 32]),
            name: NodeName::new("a").unwrap(),
            roles: Roles::Both,
            serial: Serial([serial; 16]),
            not_before_unix_s: 0,
            not_after_unix_s: 1,
        }
    }

    #[test]
    fn what_another_process_revokes_counts_at_once_and_a_lost_list_admits_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revoked.toml");
        assert!(matches!(Revocations::load(&path), Err(RevocationsError::File(FileError::Missing { .. }))));
        Revocations::create(&path).unwrap();
        let (ours, other) = (Revocations::load(&path).unwrap(), Revocations::load(&path).unwrap());
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), None);
        other.revoke(Revoked::Node(NodeId([1; 32])), 5).unwrap();
        other.revoke(Revoked::Serial(Serial([9; 16])), 6).unwrap();
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), Some(Revoked::Node(NodeId([1; 32]))));
        assert_eq!(ours.revokes(&facts(2, 9)).unwrap(), Some(Revoked::Serial(Serial([9; 16]))));
        assert_eq!(ours.revokes(&facts(2, 1)).unwrap(), None);
        let listed = [(Revoked::Node(NodeId([1; 32])), 5), (Revoked::Serial(Serial([9; 16])), 6)];
        assert_eq!(ours.list().unwrap(), listed);

        fs::write(&path, "[[revoked]]\nsince_unix_s = 1\n").unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::BadEntry { entry: 1, .. })));
        fs::write(&path, "revoked = 7").unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::NotAList { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::File(FileError::Missing { .. }))));
    }
}
