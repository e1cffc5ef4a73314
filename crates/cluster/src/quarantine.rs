//! The producers that sent wrong keys and values: `quarantine.toml`, read again whenever it changes.
//!
//! ```toml
//! [[quarantined]]
//! node = "64 hexadecimal digits"
//! since_unix_s = 1796000000
//! model = "64 hexadecimal digits"     # the identity of what it computed, wrongly
//! layer = 3
//! position = 1234
//! found = "layer 3, position 1234, keys of head 0, element 7"
//! ```
//!
//! Unlike a revoked node, a quarantined one is still a member of the cluster: only this decoder does not ask it any more,
//! until somebody who knows why lifts it. Without the file nobody is quarantined.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Secrecy, Stamp};
use crate::identity::NodeId;

/// The list of a cluster folder. Shared by reference among threads.
#[derive(Debug)]
pub struct Quarantine {
    path: PathBuf,
    known: Mutex<Known>,
}

/// A producer that sent something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Who.
    pub node: NodeId,
    /// When, in seconds since 1970.
    pub since_unix_s: u64,
    /// The identity of the model and layout.
    pub model: [u8; 32],
    /// The first layer, at that position, that was wrong.
    pub layer: usize,
    /// The first position that was wrong.
    pub position: usize,
    /// What was found, in words.
    pub found: String,
}

/// Why the list cannot be used. Nobody is asked then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuarantineError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a list of the quarantined.
    #[error("{}: the list is not valid: {error}", path.display())]
    NotAList {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        error: Box<toml::de::Error>,
    },
    /// A node or a model that is no digest.
    #[error("{}: entry {entry} has a node or a model that is not 64 hexadecimal digits", path.display())]
    BadEntry {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        entry: usize,
    },
    /// It could not be written in this form.
    #[error("the quarantine cannot be written: {0}")]
    NotWritable(#[source] Box<toml::ser::Error>),
}

#[derive(Debug)]
struct Known {
    /// `None` where there is no file.
    stamp: Option<Stamp>,
    list: Vec<Quarantined>,
    /// Those that could not be written down: they count all the same.
    unwritten: Vec<NodeId>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    #[serde(default)]
    quarantined: Vec<EntryForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    node: String,
    since_unix_s: u64,
    model: String,
    layer: usize,
    position: usize,
    found: String,
}

impl Quarantine {
    /// Reads the list.
    ///
    /// # Errors
    /// [`QuarantineError`].
    pub fn load(path: &Path) -> Result<Self, QuarantineError> {
        let stamp = stamp_of(path)?;
        let known = Known { stamp, list: read(path)?, unwritten: Vec::new() };
        Ok(Self { path: path.into(), known: Mutex::new(known) })
    }

    /// Whether this node is quarantined, after reading the list again if it changed.
    ///
    /// # Errors
    /// The list changed and cannot be read; the node must not be asked.
    pub fn holds(&self, node: NodeId) -> Result<bool, QuarantineError> {
        let mut known = self.lock();
        // Looked at before reading: a change in between is seen the next time.
        let stamp = stamp_of(&self.path)?;
        if stamp != known.stamp {
            known.list = read(&self.path)?;
            known.stamp = stamp;
        }
        Ok(known.unwritten.contains(&node) || known.list.iter().any(|entry| entry.node == node))
    }

    /// Adds a node, durably.
    ///
    /// # Errors
    /// [`QuarantineError`]: then it counts as quarantined for as long as this value lives.
    pub fn add(&self, entry: Quarantined) -> Result<(), QuarantineError> {
        let mut known = self.lock();
        known.unwritten.push(entry.node);
        let node = entry.node;
        let held = files::hold(&self.path, Secrecy::Public)?;
        let mut list = read(&self.path)?;
        list.push(entry);
        held.replace(&text_of(&list)?)?;
        // From now on the list says it, so that it can be lifted there.
        known.unwritten.retain(|unwritten| *unwritten != node);
        known.stamp = stamp_of(&self.path)?;
        known.list = list;
        Ok(())
    }

    /// Lifts a node's quarantine, durably; false if there was none.
    ///
    /// # Errors
    /// [`QuarantineError`]; the list is as it was.
    pub fn readmit(&self, node: NodeId) -> Result<bool, QuarantineError> {
        let held = files::hold(&self.path, Secrecy::Public)?;
        let mut list = read(&self.path)?;
        let before = list.len();
        list.retain(|entry| entry.node != node);
        if list.len() == before {
            return Ok(false);
        }
        held.replace(&text_of(&list)?)?;
        Ok(true)
    }

    /// All entries in the order of the file, which is read again.
    ///
    /// # Errors
    /// [`QuarantineError`].
    pub fn list(&self) -> Result<Vec<Quarantined>, QuarantineError> {
        read(&self.path)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` where there is no file.
fn stamp_of(path: &Path) -> Result<Option<Stamp>, FileError> {
    match Stamp::of(path) {
        Err(FileError::Missing { .. }) => Ok(None),
        stamp => stamp.map(Some),
    }
}

fn read(path: &Path) -> Result<Vec<Quarantined>, QuarantineError> {
    let text = match files::read(path, Secrecy::Public) {
        Err(FileError::Missing { .. }) => return Ok(Vec::new()),
        text => text?,
    };
    let list: ListForm = toml::from_str(&text)
        .map_err(|error| QuarantineError::NotAList { path: path.into(), error: Box::new(error) })?;
    let one = |(place, form): (usize, EntryForm)| {
        let bad = || QuarantineError::BadEntry { path: path.into(), entry: place + 1 };
        let node = NodeId::from_hex(&form.node).ok_or_else(bad)?;
        let model = NodeId::from_hex(&form.model).ok_or_else(bad)?.0;
        let EntryForm { since_unix_s, layer, position, found, .. } = form;
        Ok(Quarantined { node, since_unix_s, model, layer, position, found })
    };
    list.quarantined.into_iter().enumerate().map(one).collect()
}

fn text_of(list: &[Quarantined]) -> Result<String, QuarantineError> {
    let form = |entry: &Quarantined| EntryForm {
        node: entry.node.to_string(),
        since_unix_s: entry.since_unix_s,
        model: NodeId(entry.model).to_string(),
        layer: entry.layer,
        position: entry.position,
        found: entry.found.clone(),
    };
    let list = ListForm { quarantined: list.iter().map(form).collect() };
    toml::to_string(&list).map_err(|error| QuarantineError::NotWritable(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn entry(node: u8, position: usize) -> Quarantined {
        let found = format!("layer 3, position {position}, \"keys\" of head 0");
        Quarantined { node: NodeId([node; 32]), since_unix_s: 7, model: [9; 32], layer: 3, position, found }
    }

    #[test]
    fn a_quarantine_outlives_the_process_and_is_lifted_by_another_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quarantine.toml");
        let ours = Quarantine::load(&path).unwrap();
        assert!(!ours.holds(NodeId([1; 32])).unwrap() && ours.list().unwrap().is_empty());
        ours.add(entry(1, 50)).unwrap();
        ours.add(entry(2, 60)).unwrap();
        assert!(ours.holds(NodeId([1; 32])).unwrap() && !ours.holds(NodeId([3; 32])).unwrap());
        let other = Quarantine::load(&path).unwrap();
        assert_eq!(other.list().unwrap(), [entry(1, 50), entry(2, 60)]);
        assert!(other.holds(NodeId([2; 32])).unwrap());
        assert!(other.readmit(NodeId([1; 32])).unwrap() && !other.readmit(NodeId([1; 32])).unwrap());
        assert!(!ours.holds(NodeId([1; 32])).unwrap() && ours.holds(NodeId([2; 32])).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!ours.holds(NodeId([2; 32])).unwrap());
    }

    #[test]
    fn a_damaged_list_is_an_error_and_not_an_empty_list() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quarantine.toml");
        let ours = Quarantine::load(&path).unwrap();
        fs::write(&path, "quarantined = 7").unwrap();
        assert!(matches!(ours.holds(NodeId([1; 32])), Err(QuarantineError::NotAList { .. })));
        assert!(matches!(Quarantine::load(&path), Err(QuarantineError::NotAList { .. })));
        assert!(matches!(ours.add(entry(1, 5)), Err(QuarantineError::NotAList { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "quarantined = 7");
        fs::write(&path, "").unwrap();
        // It could not be written down, and counts all the same.
        assert!(ours.holds(NodeId([1; 32])).unwrap() && !ours.holds(NodeId([2; 32])).unwrap());
        let text =
            "[[quarantined]]\nnode = \"12\"\nsince_unix_s = 1\nmodel = \"\"\nlayer = 1\nposition = 1\nfound = \"\"\n";
        fs::write(&path, text).unwrap();
        assert!(matches!(ours.list(), Err(QuarantineError::BadEntry { entry: 1, .. })));
    }
}
