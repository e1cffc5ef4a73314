//! The producers that sent wrong keys and values: `quarantine.toml`, read again whenever it changes.
//!
//! ```toml
//! version = 2                         # see `list_file`
//! count = 1
//! shortened_unix_s = 0
//!
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
//! until an operator lifts the quarantine. Without a file no node is quarantined.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use muser_files::{self as files, Content, FileError, Held, Secrecy, Watched};
use serde::{Deserialize, Serialize};

use crate::identity::NodeId;
use crate::list_file::{self, HeadForm, ListFault};

/// The list of a cluster folder. Shared by reference among threads.
#[derive(Debug)]
pub struct Quarantine {
    file: Watched<QuarantineList>,
    /// Quarantined by this process, but not written to the file: they count all the same.
    unwritten: Mutex<Vec<NodeId>>,
}

/// Quarantined producer, and the first wrong row that it sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Node id of the producer.
    pub node: NodeId,
    /// Start of the quarantine, seconds since 1970.
    pub since_unix_s: u64,
    /// The identity of the model and layout.
    pub model: [u8; 32],
    /// The first layer, at that position, that was wrong.
    pub layer: usize,
    /// The first position that was wrong.
    pub position: usize,
    /// Description of the difference, for people.
    pub found: String,
}

/// The list cannot be used. No producer is asked then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuarantineError {
    /// The file cannot be read, locked or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a list of the quarantined.
    #[error("{}: the list is not valid: {error}", path.display())]
    NotAList {
        /// The file.
        path: PathBuf,
        /// Syntax or type error of the TOML.
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
    /// Entries are missing.
    #[error("{}: {fault}; entries are only taken off by muser cluster readmit", path.display())]
    Fault {
        /// The file.
        path: PathBuf,
        /// Evidence that the list was cut.
        fault: ListFault,
    },
    /// It could not be written in this form.
    #[error("the quarantine cannot be written: {0}")]
    NotWritable(#[source] Box<toml::ser::Error>),
}

/// A list as it was read.
#[derive(Debug, Default)]
struct QuarantineList {
    entries: Vec<Quarantined>,
    shortened_unix_s: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    version: Option<u32>,
    count: Option<usize>,
    shortened_unix_s: Option<u64>,
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
        Ok(Self { file: Watched::load(path)?, unwritten: Mutex::new(Vec::new()) })
    }

    /// True if this node is quarantined, after reading the list again if it changed. Blocks on the disk without a time
    /// limit: for commands.
    ///
    /// # Errors
    /// The list changed and cannot be used; the node must not be asked. Nodes that were on it before stay quarantined.
    pub fn holds(&self, node: NodeId) -> Result<bool, QuarantineError> {
        self.found(node, self.file.read().map(|list| list.has(node)))
    }

    /// Counts a node as quarantined from this moment on: as long as this value lives, or until [`Self::add`] wrote it down.
    pub fn begin(&self, node: NodeId) {
        self.unwritten().push(node);
    }

    /// As [`Self::holds`]; the list is read in a thread of its own, and for two seconds at most.
    ///
    /// # Errors
    /// As of [`Self::holds`], and that the disk does not answer.
    pub async fn lookup(&self, node: NodeId) -> Result<bool, QuarantineError> {
        self.found(node, self.file.current().await.map(|list| list.has(node)))
    }

    /// State when the list was last read, without blocking.
    pub fn known(&self, node: NodeId) -> bool {
        self.unwritten().contains(&node) || self.file.known().has(node)
    }

    /// Adds a node, durably. May wait for the disk for as long as that takes.
    ///
    /// # Errors
    /// [`QuarantineError`]: then it counts as quarantined for as long as this value lives.
    pub fn add(&self, entry: Quarantined) -> Result<(), QuarantineError> {
        let node = entry.node;
        self.unwritten().push(node);
        let (held, mut list) = self.hold()?;
        list.entries.push(entry);
        held.replace(&list.text()?)?;
        // From now on the list says it, so that it can be lifted there; it is read before anybody else can do so.
        self.file.read()?;
        self.unwritten().retain(|unwritten| *unwritten != node);
        Ok(())
    }

    /// Lifts a node's quarantine, durably; false if there was none.
    ///
    /// # Errors
    /// [`QuarantineError`]; the list is as it was.
    pub fn readmit(&self, node: NodeId, now_unix_s: u64) -> Result<bool, QuarantineError> {
        let (held, mut list) = self.hold()?;
        if !list.has(node) {
            return Ok(false);
        }
        list.entries.retain(|entry| entry.node != node);
        list.shortened_unix_s = list_file::shortened_again(list.shortened_unix_s, now_unix_s);
        held.replace(&list.text()?)?;
        Ok(true)
    }

    /// All entries in the order of the file, which is read again.
    ///
    /// # Errors
    /// [`QuarantineError`].
    pub fn list(&self) -> Result<Vec<Quarantined>, QuarantineError> {
        Ok(self.file.read()?.entries.clone())
    }

    /// True if the node is quarantined but not written down yet, or is on the last good list while the current one
    /// cannot be used; else the outcome of the current list.
    fn found(&self, node: NodeId, found: Result<bool, QuarantineError>) -> Result<bool, QuarantineError> {
        if self.unwritten().contains(&node) || self.file.known().has(node) && found.is_err() {
            return Ok(true);
        }
        found
    }

    /// The list while no other process changes it.
    fn hold(&self) -> Result<(Held, QuarantineList), QuarantineError> {
        let held = files::hold(self.file.path(), Secrecy::Public)?;
        let list = QuarantineList::read(self.file.path(), Some(&self.file.known()))?;
        Ok((held, list))
    }

    fn unwritten(&self) -> MutexGuard<'_, Vec<NodeId>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content for QuarantineList {
    type Error = QuarantineError;

    fn read(path: &Path, known: Option<&Self>) -> Result<Self, QuarantineError> {
        let list = match files::read(path, Secrecy::Public) {
            Err(FileError::Missing { .. }) => Self::default(),
            text => Self::parse(path, &text?)?,
        };
        if let Some(known) = known {
            let missing = known.entries.iter().filter(|entry| !list.has(entry.node)).count();
            let shortened = list_file::Shortenings {
                known_unix_s: known.shortened_unix_s,
                successor_unix_s: list.shortened_unix_s,
            };
            list_file::check_successor(missing, known.entries.len(), shortened)
                .map_err(|fault| QuarantineError::Fault { path: path.into(), fault })?;
        }
        Ok(list)
    }
}

impl QuarantineList {
    fn parse(path: &Path, text: &str) -> Result<Self, QuarantineError> {
        let form: ListForm = toml::from_str(text)
            .map_err(|error| QuarantineError::NotAList { path: path.into(), error: Box::new(error) })?;
        let ListForm { version, count, shortened_unix_s, quarantined } = form;
        let head = HeadForm { version, count, shortened_unix_s };
        let fault = |fault| QuarantineError::Fault { path: path.into(), fault };
        let shortened_unix_s = head.check(quarantined.len()).map_err(fault)?;
        let one = |(place, form): (usize, EntryForm)| {
            let bad = || QuarantineError::BadEntry { path: path.into(), entry: place + 1 };
            let node = NodeId::from_hex(&form.node).ok_or_else(bad)?;
            let model = NodeId::from_hex(&form.model).ok_or_else(bad)?.0;
            let EntryForm { since_unix_s, layer, position, found, .. } = form;
            Ok(Quarantined { node, since_unix_s, model, layer, position, found })
        };
        let entries = quarantined.into_iter().enumerate().map(one).collect::<Result<_, QuarantineError>>()?;
        Ok(Self { entries, shortened_unix_s })
    }

    fn has(&self, node: NodeId) -> bool {
        self.entries.iter().any(|entry| entry.node == node)
    }

    fn text(&self) -> Result<String, QuarantineError> {
        let form = |entry: &Quarantined| EntryForm {
            node: entry.node.to_string(),
            since_unix_s: entry.since_unix_s,
            model: NodeId(entry.model).to_string(),
            layer: entry.layer,
            position: entry.position,
            found: entry.found.clone(),
        };
        let HeadForm { version, count, shortened_unix_s } = HeadForm::new(self.entries.len(), self.shortened_unix_s);
        let quarantined = self.entries.iter().map(form).collect();
        let list = ListForm { version, count, shortened_unix_s, quarantined };
        toml::to_string(&list).map_err(|error| QuarantineError::NotWritable(Box::new(error)))
    }
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
        assert!(other.readmit(NodeId([1; 32]), 9).unwrap() && !other.readmit(NodeId([1; 32]), 9).unwrap());
        assert!(!ours.holds(NodeId([1; 32])).unwrap() && ours.holds(NodeId([2; 32])).unwrap());
        // A list that is cut, or gone, lifts nothing.
        let whole = fs::read(&path).unwrap();
        for len in (0..whole.len() - 1).map(Some).chain([None]) {
            match len {
                Some(len) => fs::write(&path, &whole[..len]).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert!(ours.holds(NodeId([2; 32])).unwrap() && ours.holds(NodeId([3; 32])).is_err(), "{len:?}");
            assert!(ours.readmit(NodeId([2; 32]), 10).is_err() && ours.add(entry(4, 1)).is_err(), "{len:?}");
        }
        fs::write(&path, &whole).unwrap();
        assert!(!ours.holds(NodeId([3; 32])).unwrap());
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
        fs::remove_file(&path).unwrap();
        // It could not be written down, and counts all the same.
        assert!(ours.holds(NodeId([1; 32])).unwrap() && !ours.holds(NodeId([2; 32])).unwrap());
        let text =
            "[[quarantined]]\nnode = \"12\"\nsince_unix_s = 1\nmodel = \"\"\nlayer = 1\nposition = 1\nfound = \"\"\n";
        fs::write(&path, text).unwrap();
        assert!(matches!(ours.list(), Err(QuarantineError::BadEntry { entry: 1, .. })));
    }
}
