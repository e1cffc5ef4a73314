//! Lists of the cluster folder that detect lost entries: the deny-list and the quarantine.
//!
//! ```toml
//! version = 2
//! count = 12              # of the entries that follow: a list that was cut is told from a short one
//! shortened_unix_s = 0    # when a command last took entries off
//! ```
//!
//! A list that was cut, or is empty without these lines, is not taken. Nor is one that lacks entries which this process has
//! read before, unless a command took entries off since. What was on the list stays in force then. Lists of version 1 have no
//! such lines; they are read as long as they have an entry, and written in the new form.

/// The version that is written.
const VERSION: u32 = 2;

/// The lines before the entries, as they are in the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadForm {
    pub(crate) version: Option<u32>,
    pub(crate) count: Option<usize>,
    pub(crate) shortened_unix_s: Option<u64>,
}

/// Fault of a list that is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListFault {
    /// Even a list without entries has the lines before them.
    #[error("it is empty, and even a list without entries has a head: it was cut")]
    Empty,
    /// Cut inside its head.
    #[error("its head is not whole: it was cut")]
    NoHead,
    /// Cut behind its head.
    #[error("it announces {count} entries and has {found}: it was cut, or changed by hand")]
    Cut {
        /// As announced.
        count: usize,
        /// As found.
        found: usize,
    },
    /// Unknown format version.
    #[error("it has version {found}, this program reads 1 and {VERSION}")]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// Known entries are missing, and no command removed them.
    #[error("it lacks {missing} of the {known} entries that this process knows, and no command took them off")]
    Shorter {
        /// Missing entries.
        missing: usize,
        /// Entries that were there.
        known: usize,
    },
}

impl HeadForm {
    /// Of a list with `count` entries, from which a command took some off at `shortened_unix_s`.
    pub(crate) fn new(count: usize, shortened_unix_s: u64) -> Self {
        Self { version: Some(VERSION), count: Some(count), shortened_unix_s: Some(shortened_unix_s) }
    }

    /// Time of the last shortening, if the list is whole with `found` entries.
    pub(crate) fn check(&self, found: usize) -> Result<u64, ListFault> {
        match (self.version, self.count, self.shortened_unix_s) {
            (None, None, None) if found == 0 => Err(ListFault::Empty),
            (None | Some(1), None, None) => Ok(0),
            (Some(VERSION), Some(count), Some(shortened_unix_s)) => {
                if count == found {
                    Ok(shortened_unix_s)
                } else {
                    Err(ListFault::Cut { count, found })
                }
            }
            (None | Some(1 | VERSION), ..) => Err(ListFault::NoHead),
            (Some(found), ..) => Err(ListFault::Version { found }),
        }
    }

    /// The lines.
    pub(crate) fn text(&self) -> String {
        let line = |key: &str, value: Option<u64>| value.map(|value| format!("{key} = {value}\n")).unwrap_or_default();
        let count = self.count.map(|count| count as u64);
        line("version", self.version.map(u64::from))
            + &line("count", count)
            + &line("shortened_unix_s", self.shortened_unix_s)
    }
}

/// Times at which the known list and its successor were last shortened, seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortenings {
    pub(crate) known_unix_s: u64,
    pub(crate) successor_unix_s: u64,
}

/// Checks a list that takes the place of a known one: `missing` of the `known` entries are not on it any more.
pub(crate) fn check_successor(missing: usize, known: usize, shortened: Shortenings) -> Result<(), ListFault> {
    if missing > 0 && shortened.successor_unix_s <= shortened.known_unix_s {
        Err(ListFault::Shorter { missing, known })
    } else {
        Ok(())
    }
}

/// Time of a shortening, seconds since 1970: at least one above the last, so that every process sees them differ.
pub(crate) fn shortened_again(before_unix_s: u64, now_unix_s: u64) -> u64 {
    now_unix_s.max(before_unix_s.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_tells_a_short_list_from_a_cut_one() {
        let head = HeadForm::new(2, 7);
        assert_eq!(head.text(), "version = 2\ncount = 2\nshortened_unix_s = 7\n");
        assert_eq!(head.check(2), Ok(7));
        assert_eq!(head.check(1), Err(ListFault::Cut { count: 2, found: 1 }));
        assert_eq!(HeadForm::new(0, 0).check(0), Ok(0));
        assert_eq!(HeadForm::default().check(0), Err(ListFault::Empty));
        // Version 1, as folders have it that were made before.
        assert_eq!(HeadForm::default().check(3), Ok(0));
        assert_eq!(HeadForm { shortened_unix_s: None, ..head }.check(2), Err(ListFault::NoHead));
        assert_eq!(HeadForm { version: Some(9), ..head }.check(2), Err(ListFault::Version { found: 9 }));
    }

    #[test]
    fn entries_are_missed_unless_a_command_took_them_off_since() {
        let at = |successor_unix_s| Shortenings { known_unix_s: 3, successor_unix_s };
        assert_eq!(check_successor(0, 5, at(3)), Ok(()));
        assert_eq!(check_successor(1, 5, at(3)), Err(ListFault::Shorter { missing: 1, known: 5 }));
        assert_eq!(check_successor(1, 5, at(shortened_again(3, 2))), Ok(()));
    }
}
