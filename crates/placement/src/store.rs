//! File of a policy's learned rates, read at start-up so that a restart keeps them.
//!
//! ```toml
//! model = "64 hexadecimal digits"     # its identity, which is of weights, arithmetic and layout
//!
//! [[place]]                           # without an address: this node
//! address = "192.0.2.1:9932"
//! node = "64 hexadecimal digits"      # who answered there
//! position_ms = [0.41, 0.42, 0.0]     # by depth, 0 for what was not measured
//! byte_ms = 8.1e-7                    # none if nothing travelled yet
//! fixed_ms = 12.5
//! ```
//!
//! Failures are not kept: after a restart every producer may be tried.

use std::path::{Path, PathBuf};

use muser_files::{self as files, FileError, Secrecy};
use muser_trust::Address;
use muser_trust::identity::NodeId;
use serde::{Deserialize, Serialize};

use super::rates::{DEPTHS, Rates};
use super::{Known, Place, Policy, PolicySettings};

/// Failure to read or write the learned rates. A caller may go on without them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The file cannot be read, locked or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not valid TOML, or another layout.
    #[error("{}: {error}", path.display())]
    NotRates {
        /// The file.
        path: PathBuf,
        /// Syntax or type error of the TOML.
        #[source]
        error: Box<toml::de::Error>,
    },
    /// The model is not 64 hexadecimal digits.
    #[error("{}: the model is no digest", path.display())]
    BadModel {
        /// The file.
        path: PathBuf,
    },
    /// An entry's node is not 64 hexadecimal digits, or one of its numbers is no time.
    #[error("{}: entry {entry} has no valid node, or a number that is no time", path.display())]
    BadEntry {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        entry: usize,
    },
    /// The rates could not be written as TOML.
    #[error("what was learnt cannot be written: {0}")]
    NotWritable(#[source] Box<toml::ser::Error>),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListForm {
    model: String,
    #[serde(default)]
    place: Vec<PlaceForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    position_ms: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fixed_ms: Option<f64>,
}

impl Policy {
    /// A policy with the rates of the file. They count as measured `now_ms`, so that their places are tried again
    /// in time.
    ///
    /// # Errors
    /// [`PolicyFileError`], also if there is no file.
    pub fn load(path: &Path, settings: PolicySettings, now_ms: u64) -> Result<Self, PolicyFileError> {
        let text = files::read(path, Secrecy::Public)?;
        let list: ListForm = toml::from_str(&text)
            .map_err(|error| PolicyFileError::NotRates { path: path.into(), error: Box::new(error) })?;
        let model = NodeId::from_hex(&list.model).ok_or_else(|| PolicyFileError::BadModel { path: path.into() })?;
        let mut policy = Self::new(settings, model.0);
        for (index, form) in list.place.iter().enumerate() {
            let bad = || PolicyFileError::BadEntry { path: path.into(), entry: index + 1 };
            let place = form.address.map_or(Place::Local, Place::Producer);
            let node = form.node.as_ref().map(|digits| NodeId::from_hex(digits).ok_or_else(bad)).transpose()?;
            let rates = form.rates().ok_or_else(bad)?;
            policy.places.insert(place, Known { rates, node, measured_at_ms: Some(now_ms), ..Known::default() });
        }
        Ok(policy)
    }

    /// Writes the learned rates, in the place of an earlier file.
    ///
    /// # Errors
    /// I/O error; the earlier file is still there.
    pub fn save(&self, path: &Path) -> Result<(), PolicyFileError> {
        let mut places: Vec<_> = self.places.iter().filter(|(_, known)| known.rates != Rates::default()).collect();
        places.sort_unstable_by_key(|(place, _)| **place);
        let form = |(place, known): (&Place, &Known)| PlaceForm {
            address: match place {
                Place::Local => None,
                Place::Producer(address) => Some(*address),
            },
            node: known.node.map(|node| node.to_string()),
            position_ms: known.rates.position_ms.iter().map(|position_ms| position_ms.unwrap_or(0.0)).collect(),
            byte_ms: known.rates.byte_ms,
            fixed_ms: known.rates.fixed_ms,
        };
        let list = ListForm { model: NodeId(self.model).to_string(), place: places.into_iter().map(form).collect() };
        let text = toml::to_string(&list).map_err(|error| PolicyFileError::NotWritable(Box::new(error)))?;
        Ok(files::replace(path, &text, Secrecy::Public)?)
    }
}

impl PlaceForm {
    fn rates(&self) -> Option<Rates> {
        let is_time = |ms: &f64| ms.is_finite() && *ms > 0.0;
        if self.position_ms.len() > DEPTHS || self.byte_ms.iter().chain(&self.fixed_ms).any(|ms| !is_time(ms)) {
            return None;
        }
        let mut rates = Rates { byte_ms: self.byte_ms, fixed_ms: self.fixed_ms, ..Rates::default() };
        for (to, from) in rates.position_ms.iter_mut().zip(&self.position_ms) {
            *to = match from {
                0.0 => None,
                ms if is_time(ms) => Some(*ms),
                _ => return None,
            };
        }
        Some(rates)
    }
}
