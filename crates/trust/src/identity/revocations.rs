//! The nodes and certificates that are no longer admitted: `revoked.toml`, read again whenever it changes.
//!
//! ```toml
//! version = 2                         # see `list_file`
//! count = 1
//! shortened_unix_s = 0
//!
//! [[revoked]]
//! node = "64 hexadecimal digits"      # or serial = "32 hexadecimal digits"
//! since_unix_s = 1796000000
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use muser_files::{self as files, Content, FileError, Held, Secrecy, Watched};
use serde::Deserialize;

use super::authority::{CLOCK_SKEW_S, LIFETIME_MAX_S};
use super::facts::{NodeFacts, NodeId, Serial};
use crate::list_file::{self, HeadForm, ListFault};

/// Revoked node or certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Revoked {
    /// A node: all certificates of its key, also future ones.
    Node(NodeId),
    /// One certificate.
    Serial(Serial),
}

/// The deny-list of a cluster folder. Shared by reference among threads.
#[derive(Debug)]
pub struct Revocations(Watched<DenyList>);

/// The deny-list cannot be used. No peer is admitted then, and the file is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevocationsError {
    /// The file cannot be read, locked or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a list of revocations.
    #[error("{}: the list is not valid: {error}", path.display())]
    NotAList {
        /// The file.
        path: PathBuf,
        /// Syntax or type error of the TOML.
        #[source]
        error: Box<toml::de::Error>,
    },
    /// An entry names neither a node nor a serial, or both, or one that is not hexadecimal digits of the right number.
    #[error("{}: entry {entry} is not one node of 64 digits or one serial of 32", path.display())]
    BadEntry {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        entry: usize,
    },
    /// Entries are missing.
    #[error(
        "{}: {fault}; take the whole list of another machine: muser cluster import FOLDER --revoked FILE (--instead if this one is lost)",
        path.display()
    )]
    Fault {
        /// The file.
        path: PathBuf,
        /// Evidence that the list was cut.
        fault: ListFault,
    },
}

/// A list as it was read.
#[derive(Debug)]
struct DenyList {
    /// With seconds since 1970, in the order of the file.
    entries: Vec<(Revoked, u64)>,
    revoked: HashSet<Revoked>,
    shortened_unix_s: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    version: Option<u32>,
    count: Option<usize>,
    shortened_unix_s: Option<u64>,
    #[serde(default)]
    revoked: Vec<EntryForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    node: Option<String>,
    serial: Option<String>,
    since_unix_s: u64,
}

impl Revocations {
    /// Reads the list. A list that is gone, or cut, is an error, not an empty list.
    ///
    /// # Errors
    /// [`RevocationsError`].
    pub fn load(path: &Path) -> Result<Self, RevocationsError> {
        Watched::load(path).map(Self)
    }

    /// The entry that revokes this certificate or its node, after reading the list again if it changed. Blocks on the
    /// disk without a time limit: for commands.
    ///
    /// # Errors
    /// The list changed and cannot be used; the certificate must not be admitted. Entries that were on it before still
    /// count.
    pub fn revokes(&self, facts: &NodeFacts) -> Result<Option<Revoked>, RevocationsError> {
        self.found(facts, self.0.read().map(|list| list.find(facts)))
    }

    /// As [`Self::revokes`]; the list is read in a thread of its own, and for two seconds at most.
    ///
    /// # Errors
    /// As of [`Self::revokes`], and that the disk does not answer.
    pub async fn lookup(&self, facts: &NodeFacts) -> Result<Option<Revoked>, RevocationsError> {
        self.found(facts, self.0.current().await.map(|list| list.find(facts)))
    }

    /// State when the list was last read, without blocking.
    pub fn known(&self, facts: &NodeFacts) -> Option<Revoked> {
        self.0.known().find(facts)
    }

    /// Adds to the list, durably, what is not on it yet.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list is as it was.
    pub fn revoke(&self, revoked: Revoked, now_unix_s: u64) -> Result<(), RevocationsError> {
        self.revoke_all(&[(revoked, now_unix_s)])
    }

    /// Likewise for many entries, with seconds since 1970, by writing the list once.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list is as it was.
    pub fn revoke_all(&self, more: &[(Revoked, u64)]) -> Result<(), RevocationsError> {
        let (held, mut list) = self.hold()?;
        let before = list.entries.len();
        list.add(more);
        if list.entries.len() > before {
            held.replace(&list.text())?;
        }
        Ok(())
    }

    /// Takes serials off the list whose certificates have run out by now, whenever they were made. Returns how many.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list is as it was.
    pub fn prune(&self, now_unix_s: u64) -> Result<usize, RevocationsError> {
        let (held, mut list) = self.hold()?;
        let before = list.entries.len();
        let oldest_unix_s = now_unix_s.saturating_sub(LIFETIME_MAX_S + CLOCK_SKEW_S);
        list.entries.retain(|(revoked, since)| matches!(revoked, Revoked::Node(_)) || *since >= oldest_unix_s);
        let pruned = before - list.entries.len();
        if pruned > 0 {
            list.shortened_unix_s = list_file::shortened_again(list.shortened_unix_s, now_unix_s);
            held.replace(&list.text())?;
        }
        Ok(pruned)
    }

    /// All that was revoked and since when, in seconds since 1970; in the order of the file, which is read again.
    ///
    /// # Errors
    /// [`RevocationsError`].
    pub fn list(&self) -> Result<Vec<(Revoked, u64)>, RevocationsError> {
        Ok(self.0.read()?.entries.clone())
    }

    /// Adds to the list at `path` what is on the list at `carried`, which came from another machine.
    ///
    /// # Errors
    /// [`RevocationsError`], also if the list at `path` is not whole; it is as it was.
    pub(super) fn import(path: &Path, carried: &Path) -> Result<(), RevocationsError> {
        let list = DenyList::carried(carried)?;
        Self::load(path)?.revoke_all(&list.entries)
    }

    /// Puts the list at `carried` in the place of the one at `path`, whatever that is.
    ///
    /// # Errors
    /// [`RevocationsError`]; the list at `path` is as it was.
    pub(super) fn put_instead(path: &Path, carried: &Path, now_unix_s: u64) -> Result<(), RevocationsError> {
        let mut list = DenyList::carried(carried)?;
        let held = files::hold(path, Secrecy::Public)?;
        let before = held.read().ok().and_then(|text| DenyList::parse(path, &text).ok());
        let before = before.map_or(list.shortened_unix_s, |before| before.shortened_unix_s.max(list.shortened_unix_s));
        list.shortened_unix_s = list_file::shortened_again(before, now_unix_s);
        Ok(held.replace(&list.text())?)
    }

    /// Writes a list without entries where there is none.
    ///
    /// # Errors
    /// [`FileError::Exists`] if there is one, or another [`FileError`]; nothing is overwritten.
    pub fn create(path: &Path) -> Result<(), FileError> {
        files::create(path, &HeadForm::new(0, 0).text(), Secrecy::Public)
    }

    /// Outcome by the current list; if that cannot be used, the last good list's entry, or the error if it has none.
    fn found(
        &self,
        facts: &NodeFacts,
        found: Result<Option<Revoked>, RevocationsError>,
    ) -> Result<Option<Revoked>, RevocationsError> {
        found.or_else(|error| self.0.known().find(facts).map(Some).ok_or(error))
    }

    /// The list while no other process changes it.
    fn hold(&self) -> Result<(Held, DenyList), RevocationsError> {
        let held = files::hold(self.0.path(), Secrecy::Public)?;
        let list = DenyList::parse(self.0.path(), &held.read()?)?;
        list.succeeds(self.0.path(), &self.0.known())?;
        Ok((held, list))
    }
}

impl Content for DenyList {
    type Error = RevocationsError;

    fn read(path: &Path, known: Option<&Self>) -> Result<Self, RevocationsError> {
        let list = Self::parse(path, &files::read(path, Secrecy::Public)?)?;
        known.map_or(Ok(()), |known| list.succeeds(path, known))?;
        Ok(list)
    }
}

impl DenyList {
    fn parse(path: &Path, text: &str) -> Result<Self, RevocationsError> {
        let form: ListForm = toml::from_str(text)
            .map_err(|error| RevocationsError::NotAList { path: path.into(), error: Box::new(error) })?;
        let ListForm { version, count, shortened_unix_s, revoked } = form;
        let head = HeadForm { version, count, shortened_unix_s };
        let fault = |fault| RevocationsError::Fault { path: path.into(), fault };
        let shortened_unix_s = head.check(revoked.len()).map_err(fault)?;
        let one = |(place, form): (usize, &EntryForm)| {
            let revoked = match (&form.node, &form.serial) {
                (Some(digits), None) => NodeId::from_hex(digits).map(Revoked::Node),
                (None, Some(digits)) => Serial::from_hex(digits).map(Revoked::Serial),
                _ => None,
            };
            let revoked = revoked.ok_or_else(|| RevocationsError::BadEntry { path: path.into(), entry: place + 1 })?;
            Ok((revoked, form.since_unix_s))
        };
        let entries: Vec<_> = revoked.iter().enumerate().map(one).collect::<Result<_, RevocationsError>>()?;
        let revoked = entries.iter().map(|(revoked, _)| *revoked).collect();
        Ok(Self { entries, revoked, shortened_unix_s })
    }

    /// A list carried here by an operator, who vouches for the file's permissions.
    fn carried(path: &Path) -> Result<Self, RevocationsError> {
        Self::parse(path, &files::read_carried(path)?)
    }

    fn find(&self, facts: &NodeFacts) -> Option<Revoked> {
        let either = [Revoked::Node(facts.id), Revoked::Serial(facts.serial)];
        either.into_iter().find(|revoked| self.revoked.contains(revoked))
    }

    fn add(&mut self, more: &[(Revoked, u64)]) {
        let new = more.iter().filter(|(revoked, _)| self.revoked.insert(*revoked));
        self.entries.extend(new);
    }

    /// Checks that nothing of `known` is missing here.
    fn succeeds(&self, path: &Path, known: &Self) -> Result<(), RevocationsError> {
        let missing = known.revoked.difference(&self.revoked).count();
        let shortened =
            list_file::Shortenings { known_unix_s: known.shortened_unix_s, successor_unix_s: self.shortened_unix_s };
        list_file::check_successor(missing, known.revoked.len(), shortened)
            .map_err(|fault| RevocationsError::Fault { path: path.into(), fault })
    }

    fn text(&self) -> String {
        let mut text = HeadForm::new(self.entries.len(), self.shortened_unix_s).text();
        for (revoked, since_unix_s) in &self.entries {
            let line = match revoked {
                Revoked::Node(id) => format!("node = \"{id}\""),
                Revoked::Serial(serial) => format!("serial = \"{serial}\""),
            };
            text += &format!("\n[[revoked]]\n{line}\nsince_unix_s = {since_unix_s}\n");
        }
        text
    }
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

    const NODE: Revoked = Revoked::Node(NodeId([1; 32]));
    const SERIAL: Revoked = Revoked::Serial(Serial([9; 16]));

    #[test]
    fn what_another_process_revokes_counts_at_once_and_a_lost_list_admits_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revoked.toml");
        assert!(matches!(Revocations::load(&path), Err(RevocationsError::File(FileError::Missing { .. }))));
        Revocations::create(&path).unwrap();
        let (ours, other) = (Revocations::load(&path).unwrap(), Revocations::load(&path).unwrap());
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), None);
        other.revoke(NODE, 5).unwrap();
        other.revoke(SERIAL, 6).unwrap();
        other.revoke(NODE, 7).unwrap();
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), Some(NODE));
        assert_eq!(ours.revokes(&facts(2, 9)).unwrap(), Some(SERIAL));
        assert_eq!(ours.revokes(&facts(2, 1)).unwrap(), None);
        assert_eq!(ours.list().unwrap(), [(NODE, 5), (SERIAL, 6)]);

        fs::write(&path, "[[revoked]]\nsince_unix_s = 1\n").unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::BadEntry { entry: 1, .. })));
        fs::write(&path, "revoked = 7").unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::NotAList { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(ours.revokes(&facts(2, 1)), Err(RevocationsError::File(FileError::Missing { .. }))));
        // Whoever was revoked is, whatever became of the list.
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), Some(NODE));
    }

    #[test]
    fn a_list_that_is_cut_anywhere_is_refused_and_what_was_on_it_stays_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("revoked.toml");
        Revocations::create(&path).unwrap();
        let ours = Revocations::load(&path).unwrap();
        ours.revoke_all(&[(NODE, 5), (SERIAL, 6), (NODE, 7)]).unwrap();
        assert_eq!(ours.list().unwrap(), [(NODE, 5), (SERIAL, 6)]);
        let whole = fs::read(&path).unwrap();
        // Without the last line's end it says the same.
        for len in 0..whole.len() - 1 {
            fs::write(&path, &whole[..len]).unwrap();
            let cut = "since_unix_s = 6".len();
            assert!(Revocations::load(&path).is_err(), "cut at {len}, {cut}");
            assert!(ours.revokes(&facts(2, 1)).is_err(), "cut at {len}");
            assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), Some(NODE), "cut at {len}");
            assert!(ours.revoke(Revoked::Node(NodeId([7; 32])), 8).is_err(), "cut at {len}");
            assert_eq!(fs::read(&path).unwrap(), &whole[..len]);
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(ours.revokes(&facts(2, 1)).unwrap(), None);
    }

    #[test]
    fn a_whole_list_that_lacks_known_entries_is_refused_unless_a_command_took_them_off() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("revoked.toml"), folder.path().join("other.toml"));
        Revocations::create(&path).unwrap();
        Revocations::create(&other).unwrap();
        let ours = Revocations::load(&path).unwrap();
        ours.revoke_all(&[(NODE, 5), (SERIAL, 6)]).unwrap();
        assert_eq!(ours.revokes(&facts(1, 1)).unwrap(), Some(NODE));
        Revocations::load(&other).unwrap().revoke(SERIAL, 7).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::copy(&other, &path).unwrap();
        let shorter = ListFault::Shorter { missing: 1, known: 2 };
        for _ in 0..2 {
            let refused = ours.revokes(&facts(2, 1)).unwrap_err();
            assert!(matches!(refused, RevocationsError::Fault { fault, .. } if fault == shorter), "{refused}");
        }
        assert!(ours.revoke(Revoked::Node(NodeId([7; 32])), 8).is_err());
        fs::write(&path, whole).unwrap();
        // Imported, it takes nothing off.
        Revocations::import(&path, &other).unwrap();
        assert_eq!(ours.list().unwrap(), [(NODE, 5), (SERIAL, 6)]);
        // A certificate that was revoked so long ago has run out, a node has not.
        let much_later = 7 + LIFETIME_MAX_S + CLOCK_SKEW_S;
        assert_eq!(Revocations::load(&path).unwrap().prune(much_later).unwrap(), 1);
        assert_eq!(ours.list().unwrap(), [(NODE, 5)]);
        Revocations::put_instead(&path, &other, 8).unwrap();
        assert_eq!(ours.list().unwrap(), [(SERIAL, 7)]);
    }
}
