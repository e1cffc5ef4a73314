//! The list of MAC keys in a file, `keys.toml`, oldest first:
//!
//! ```toml
//! count = 1               # of the keys that follow: a list that was cut is told from a short one
//!
//! [[key]]
//! id = 1
//! state = "verify-only"   # then "active", then "next"; anywhere "revoked", which has no `key`
//! created_unix_s = 1796000000
//! key = "64 hexadecimal digits"
//! ```

use std::path::Path;

use muser_files::{self as files, FileError, Secrecy};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{KEY_BYTES, KEYS_MAX, KeyRing, KeyState, MacKey};
use crate::hex;

/// Failure to load or save a key ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read, locked or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a list of keys. The place is given, never the text, which may be a secret.
    #[error("the list of MAC keys is not valid at byte {at}")]
    NotAList {
        /// Byte offset at which parsing stopped.
        at: usize,
    },
    /// A cluster begins with a key, and a revoked one stays on the list.
    #[error(
        "the list of MAC keys is empty, and no command takes keys off it: it was cut. Take the keys.toml of another \
         machine of the cluster: muser cluster import FOLDER --keys FILE"
    )]
    Empty,
    /// Cut between two keys. Ids of the lost ones would be given to others.
    #[error(
        "the list of MAC keys announces {count} and has {found}: it was cut, or changed by hand. Take the keys.toml of \
         another machine of the cluster: muser cluster import FOLDER --keys FILE"
    )]
    Cut {
        /// As announced.
        count: usize,
        /// As found.
        found: usize,
    },
    /// An entry contradicts itself or another.
    #[error("MAC key {id}: {fault}")]
    Entry {
        /// Id of the key.
        id: u32,
        /// Violated rule of the list.
        fault: EntryFault,
    },
    /// The same id has different bytes in two lists: they are of two clusters, or of one that was begun twice.
    #[error("MAC key {id} is another one here: the two lists are not of the same cluster")]
    OtherKey {
        /// Id of the key.
        id: u32,
    },
    /// More keys than are kept.
    #[error("the list has {keys} MAC keys, at most {KEYS_MAX} are kept")]
    TooMany {
        /// Keys in the list.
        keys: usize,
    },
}

/// Violated rule of the key list, in one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryFault {
    /// Ids must rise.
    #[error("its id is not above the one before it")]
    Order,
    /// One alone seals.
    #[error("it is active, and so is an older one, or an older one is next")]
    SecondActive,
    /// Keys are verify-only, then active, then next.
    #[error("it is verify-only, and an older one is active or next")]
    VerifyOnlyAfterActive,
    /// A usable key has bytes.
    #[error("its key is not {} hexadecimal digits", 2 * KEY_BYTES)]
    NotAKey,
    /// A revoked key has none.
    #[error("it is revoked, and its bytes are still there")]
    RevokedWithKey,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    /// Lists that were written before it was announced have none.
    count: Option<usize>,
    #[serde(default)]
    key: Vec<EntryForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryForm {
    id: u32,
    state: KeyState,
    created_unix_s: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Drop for EntryForm {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl KeyRing {
    /// Reads a list of keys.
    ///
    /// # Errors
    /// [`KeyFileError`], also if others may read the file.
    pub fn load(path: &Path) -> Result<Self, KeyFileError> {
        let text = Zeroizing::new(files::read(path, Secrecy::Secret)?);
        Self::from_text(&text)
    }

    /// Changes the list in a file, while no other process does: what `change` made of it is written if it succeeds.
    ///
    /// # Errors
    /// Those of `change`, and [`KeyFileError`]; the older list is then still there.
    pub fn change<T, E: From<KeyFileError>>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let held = files::hold(path, Secrecy::Secret).map_err(KeyFileError::from)?;
        let text = Zeroizing::new(held.read().map_err(KeyFileError::from)?);
        let mut ring = Self::from_text(&text)?;
        let changed = change(&mut ring)?;
        held.replace(&ring.to_text()).map_err(KeyFileError::from)?;
        Ok(changed)
    }

    /// Adds what `carried` knows to the list in a file, as [`Self::merge`], while no other process changes it. A list that was
    /// emptied becomes the carried one, one that was cut keeps what it has.
    ///
    /// # Errors
    /// Those of [`Self::merge`], and of reading and writing; the older list is then still there.
    pub fn import(path: &Path, carried: &Self) -> Result<(), KeyFileError> {
        let held = files::hold(path, Secrecy::Secret)?;
        let mut ring = match Self::parse(&Zeroizing::new(held.read()?)) {
            Err(KeyFileError::Empty) => Self { keys: Vec::new() },
            read => read?.0,
        };
        ring.merge(carried)?;
        Ok(held.replace(&ring.to_text())?)
    }

    /// Writes the list, in the place of an older one.
    ///
    /// # Errors
    /// I/O error; the older list is still there.
    pub fn save(&self, path: &Path) -> Result<(), KeyFileError> {
        Ok(files::replace(path, &self.to_text(), Secrecy::Secret)?)
    }

    /// The list as in the file: this is how a ring travels to a new node, inside an authenticated channel.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = format!("count = {}\n\n", self.keys.len());
        for MacKey { id, state, created_unix_s, key } in &self.keys {
            text += &format!("[[key]]\nid = {id}\nstate = \"{state}\"\ncreated_unix_s = {created_unix_s}\n");
            if let Some(key) = key {
                text += &format!("key = \"{}\"\n", *Zeroizing::new(hex::encode(&**key)));
            }
        }
        Zeroizing::new(text)
    }

    /// Reads what [`Self::to_text`] wrote.
    ///
    /// # Errors
    /// [`KeyFileError`] but for the file.
    pub fn from_text(text: &str) -> Result<Self, KeyFileError> {
        let (ring, announced) = Self::parse(text)?;
        let found = ring.keys.len();
        match announced.filter(|&count| count != found) {
            None => Ok(ring),
            Some(count) => Err(KeyFileError::Cut { count, found }),
        }
    }

    /// The keys of a list, and how many it announces.
    fn parse(text: &str) -> Result<(Self, Option<usize>), KeyFileError> {
        let list: ListForm = toml::from_str(text)
            .map_err(|error| KeyFileError::NotAList { at: error.span().map_or(0, |span| span.start) })?;
        if list.key.len() > KEYS_MAX {
            return Err(KeyFileError::TooMany { keys: list.key.len() });
        }
        if list.key.is_empty() {
            return Err(KeyFileError::Empty);
        }
        let mut keys: Vec<MacKey> = Vec::with_capacity(list.key.len());
        for form in &list.key {
            let fault = |fault| KeyFileError::Entry { id: form.id, fault };
            if keys.last().is_some_and(|before| before.id >= form.id) {
                return Err(fault(EntryFault::Order));
            }
            let is_late = keys.iter().any(|older| matches!(older.state, KeyState::Active | KeyState::Next));
            match form.state {
                KeyState::Active if is_late => return Err(fault(EntryFault::SecondActive)),
                KeyState::VerifyOnly if is_late => return Err(fault(EntryFault::VerifyOnlyAfterActive)),
                _ => {}
            }
            let key = match (&form.key, form.state) {
                (None, KeyState::Revoked) => None,
                (Some(_), KeyState::Revoked) => return Err(fault(EntryFault::RevokedWithKey)),
                (digits, _) => {
                    let key = digits.as_deref().and_then(hex::decode).ok_or(fault(EntryFault::NotAKey))?;
                    Some(Zeroizing::new(key))
                }
            };
            keys.push(MacKey { id: form.id, state: form.state, created_unix_s: form.created_unix_s, key });
        }
        Ok((Self { keys }, list.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_emptied_is_refused_and_becomes_the_one_that_is_carried_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut ring = KeyRing::generate(100).unwrap();
        ring.rotate(200).unwrap();
        ring.add(300).unwrap();
        ring.revoke(1).unwrap();
        ring.save(&path).unwrap();
        for emptied in ["", "\n", "# none\n", "key = []\n"] {
            std::fs::write(&path, emptied).unwrap();
            assert!(matches!(KeyRing::load(&path), Err(KeyFileError::Empty)), "{emptied:?}");
            let changed = KeyRing::change(&path, |keys| Ok::<_, KeyFileError>(keys.rotate(400).unwrap()));
            assert!(matches!(changed, Err(KeyFileError::Empty)), "{emptied:?}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), emptied);
            KeyRing::import(&path, &ring).unwrap();
            assert_eq!(*KeyRing::load(&path).unwrap().to_text(), *ring.to_text());
        }
    }

    #[test]
    fn a_list_that_was_cut_anywhere_is_refused_and_is_whole_again_after_an_import() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let mut ring = KeyRing::generate(100).unwrap();
        for hour in 0..3 {
            ring.rotate(200 + hour).unwrap();
        }
        ring.save(&path).unwrap();
        let whole = ring.to_text();
        for end in 0..whole.trim_end().len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let refused = KeyRing::load(&path).err();
            assert!(!matches!(refused, None | Some(KeyFileError::File(_))), "cut at {end}: {refused:?}");
        }
        let second = whole.match_indices("[[key]]").nth(2).unwrap().0;
        std::fs::write(&path, &whole[..second]).unwrap();
        assert!(matches!(KeyRing::load(&path), Err(KeyFileError::Cut { count: 4, found: 2 })));
        KeyRing::import(&path, &ring).unwrap();
        assert_eq!(*KeyRing::load(&path).unwrap().to_text(), *whole);
        // A list of before, without its number.
        let old = whole.replace("count = 4\n", "");
        assert_eq!(*KeyRing::from_text(&old).unwrap().to_text(), *whole);
    }

    #[test]
    fn contradictory_lists_are_refused_and_their_text_is_not_repeated() {
        let key = "ab".repeat(32);
        let entry = |id: u32, state: &str, key: &str| {
            format!("[[key]]\nid = {id}\nstate = \"{state}\"\ncreated_unix_s = 1\n{key}\n")
        };
        let with = format!("key = \"{key}\"");
        let cases = [
            (
                entry(1, "active", &with) + &entry(2, "active", &with),
                "MAC key 2: it is active, and so is an older one, or an older one is next",
            ),
            (
                entry(1, "next", &with) + &entry(2, "active", &with),
                "MAC key 2: it is active, and so is an older one, or an older one is next",
            ),
            (
                entry(1, "next", &with) + &entry(2, "verify-only", &with),
                "MAC key 2: it is verify-only, and an older one is active or next",
            ),
            (
                entry(2, "verify-only", &with) + &entry(2, "active", &with),
                "MAC key 2: its id is not above the one before it",
            ),
            (entry(1, "active", "key = \"abcd\""), "MAC key 1: its key is not 64 hexadecimal digits"),
            (entry(1, "active", ""), "MAC key 1: its key is not 64 hexadecimal digits"),
            (entry(1, "revoked", &with), "MAC key 1: it is revoked, and its bytes are still there"),
            (format!("[[key]]\nid = \"{key}\"\n"), "the list of MAC keys is not valid at byte 13"),
        ];
        for (text, message) in cases {
            assert_eq!(KeyRing::from_text(&text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
