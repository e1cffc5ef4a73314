//! Architectures: each file maps GGUF's keys to a [`ModelConfig`]; the graph is the same for all.

mod dense;
mod llama;
mod muse_glimmer;
mod qwen2;
mod qwen3;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use muser_weights::gguf::{Metadata, MetadataError, Optional};

use crate::config::ModelConfig;
use table::Row;

/// An architecture muser can run.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// GGUF's name of it.
    pub name: &'static str,
    /// Every key that it may carry.
    keys: [&'static [Row]; 2],
    /// Reads its configuration.
    read: fn(&Keys<'_>) -> Result<ModelConfig, ConfigError>,
}

/// Every architecture, by name.
pub const ARCHITECTURES: [Architecture; 4] =
    [llama::ARCHITECTURE, muse_glimmer::ARCHITECTURE, qwen2::ARCHITECTURE, qwen3::ARCHITECTURE];

/// Largest value accepted for a width, a count of heads or layers, or a vocabulary: far above any model.
const COUNT_MAX: usize = 1 << 24;
/// Largest context accepted: positions are exact in an f32 up to here, and so are their angles' arguments.
const CONTEXT_MAX: usize = 1 << 24;
/// Most layers accepted.
const LAYERS_MAX: usize = 1 << 12;

/// Error of reading a model's configuration.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An architecture that muser does not know.
    #[error("architecture {found:?} is not supported; supported are {}", ARCHITECTURES.map(|a| a.name).join(", "))]
    UnknownArchitecture {
        /// As the file says.
        found: String,
    },
    /// A key is missing or has a value of the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A number outside the range that makes sense.
    #[error("{key} is {found}, outside {min}..={max}")]
    OutOfRange {
        /// The key.
        key: String,
        /// Its value.
        found: usize,
        /// Smallest value accepted.
        min: usize,
        /// Largest value accepted.
        max: usize,
    },
    /// A float that is not finite, or not positive where it must be.
    #[error("{key} is {found}, which is not a usable number")]
    BadFloat {
        /// The key.
        key: String,
        /// Its value.
        found: f32,
    },
    /// Two numbers that do not fit together.
    #[error("{left_key} = {left} does not go with {right_key} = {right}")]
    Mismatch {
        /// First key.
        left_key: String,
        /// Its value.
        left: usize,
        /// Second key.
        right_key: String,
        /// Its value.
        right: usize,
    },
    /// A key of the architecture that muser does not know: running on without it might give another model's text.
    #[error("metadata key {key:?} is not part of the {architecture} architecture as muser knows it")]
    UnknownKey {
        /// The key.
        key: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A setting muser does not implement; running on regardless would give wrong text.
    #[error("{key} = {found:?} is not supported")]
    UnsupportedSetting {
        /// The key.
        key: String,
        /// Its value.
        found: String,
    },
}

/// Reads the configuration of the model with this metadata.
///
/// # Errors
/// [`ConfigError`] names the key that is missing, malformed or not supported.
pub fn read_config(metadata: &Metadata<'_>) -> Result<ModelConfig, ConfigError> {
    let found = metadata.str("general.architecture")?;
    let architecture = ARCHITECTURES
        .iter()
        .find(|architecture| architecture.name == found)
        .ok_or_else(|| ConfigError::UnknownArchitecture { found: found.into() })?;
    let keys = Keys { metadata, prefix: architecture.name };
    let config = (architecture.read)(&keys)?;
    table::check(&keys, architecture.keys, &config)?;
    Ok(config)
}

/// The keys of one architecture: `name` stands for `<architecture>.name`.
struct Keys<'a> {
    metadata: &'a Metadata<'a>,
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A count in `1..=max`.
    fn count(&self, name: &str, max: usize) -> Result<usize, ConfigError> {
        let key = self.key(name);
        in_range(self.metadata.usize(&key)?, max, key)
    }

    /// A count in `1..=max`, or `None` if the key is absent.
    fn optional_count(&self, name: &str, max: usize) -> Result<Option<usize>, ConfigError> {
        let key = self.key(name);
        self.metadata.usize(&key).optional()?.map(|found| in_range(found, max, key)).transpose()
    }

    /// A count that may be given per layer, but must be the same in all of them.
    fn uniform_count(&self, name: &str, layers: usize) -> Result<Option<usize>, ConfigError> {
        let key = self.key(name);
        let Some(per_layer) = self.metadata.u32_per_layer(&key, layers).optional()? else { return Ok(None) };
        let first = per_layer.get(0).unwrap_or(0);
        if let Some(other) = (1..layers).filter_map(|layer| per_layer.get(layer)).find(|other| *other != first) {
            return Err(ConfigError::UnsupportedSetting {
                key,
                found: format!("{first} and {other} in different layers"),
            });
        }
        in_range(first as usize, COUNT_MAX, key).map(Some)
    }

    /// As [`Self::uniform_count`], for a key that must be there.
    fn required_uniform_count(&self, name: &str, layers: usize) -> Result<usize, ConfigError> {
        Ok(self.uniform_count(name, layers)?.ok_or_else(|| MetadataError::Missing { key: self.key(name) })?)
    }

    /// A finite float, above zero.
    fn positive(&self, name: &str) -> Result<f32, ConfigError> {
        let key = self.key(name);
        let found = self.metadata.f32(&key)?;
        usable(found > 0.0, key, found)
    }

    /// A finite float above zero, or `None` if the key is absent.
    fn optional_positive(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        let key = self.key(name);
        self.metadata.f32(&key).optional()?.map(|found| usable(found > 0.0, key, found)).transpose()
    }

    /// A finite float above zero, or `None` if the key is absent or 0.
    fn optional_cap(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        match self.metadata.f32(&self.key(name)).optional()? {
            None | Some(0.0) => Ok(None),
            Some(_) => self.positive(name).map(Some),
        }
    }

    /// Sliding-window flag of each layer, true for local ones: from an array of flags, or a period whose last layer is
    /// global.
    fn local_layers(&self, layers: usize) -> Result<Vec<bool>, ConfigError> {
        let key = self.key("attention.sliding_window_pattern");
        if let Ok(period) = self.metadata.usize(&key) {
            let period = in_range(period, LAYERS_MAX, key)?;
            return Ok((0..layers).map(|layer| (layer + 1) % period != 0).collect());
        }
        let pattern = self.metadata.bool_per_layer(&key, layers)?;
        Ok((0..layers).map(|layer| pattern.get(layer).unwrap_or(false)).collect())
    }

    /// Heads and their width, checked against each other.
    fn heads(&self, hidden: usize, layers: usize) -> Result<Heads, ConfigError> {
        let query = self.required_uniform_count("attention.head_count", layers)?;
        let kv = self.uniform_count("attention.head_count_kv", layers)?.unwrap_or(query);
        if !query.is_multiple_of(kv) {
            return Err(self.mismatch(("attention.head_count", query), ("attention.head_count_kv", kv)));
        }
        let dim = match self.optional_count("attention.key_length", COUNT_MAX)? {
            Some(dim) => dim,
            None if hidden.is_multiple_of(query) => hidden / query,
            None => return Err(self.mismatch(("embedding_length", hidden), ("attention.head_count", query))),
        };
        let value_dim = self.optional_count("attention.value_length", COUNT_MAX)?.unwrap_or(dim);
        if value_dim != dim {
            return Err(self.mismatch(("attention.key_length", dim), ("attention.value_length", value_dim)));
        }
        Ok(Heads { query, kv, dim })
    }

    /// The number of the tokenizer's tokens. Only a file without them is asked for the key, which fine-tunes that add
    /// tokens leave as it was.
    fn vocab(&self) -> Result<usize, ConfigError> {
        let key = "tokenizer.ggml.tokens";
        match self.metadata.array(key) {
            Err(missing @ MetadataError::Missing { .. }) => {
                self.optional_count("vocab_size", COUNT_MAX)?.ok_or(ConfigError::Metadata(missing))
            }
            tokens => in_range(tokens?.len(), COUNT_MAX, key.into()),
        }
    }

    /// `tokenizer.ggml.suppress_tokens`: tokens that are never chosen. Those that do not exist never are anyway.
    fn suppressed_tokens(&self) -> Result<Arc<[u32]>, ConfigError> {
        let key = "tokenizer.ggml.suppress_tokens";
        let Some(list) = self.metadata.integers(key).optional()? else { return Ok(Arc::default()) };
        let vocab = self.vocab()?;
        let exists = |token: &u32| usize::try_from(*token).is_ok_and(|token| token < vocab);
        let tokens: BTreeSet<u32> = list.into_iter().filter_map(|token| token.try_into().ok()).filter(exists).collect();
        if tokens.len() == vocab {
            return Err(ConfigError::UnsupportedSetting { key: key.into(), found: format!("all {vocab} tokens") });
        }
        Ok(tokens.into_iter().collect())
    }

    fn mismatch(&self, left: (&str, usize), right: (&str, usize)) -> ConfigError {
        ConfigError::Mismatch { left_key: self.key(left.0), left: left.1, right_key: self.key(right.0), right: right.1 }
    }
}

/// Counts and width of attention heads.
struct Heads {
    query: usize,
    kv: usize,
    dim: usize,
}

fn in_range(found: usize, max: usize, key: String) -> Result<usize, ConfigError> {
    if (1..=max).contains(&found) { Ok(found) } else { Err(ConfigError::OutOfRange { key, found, min: 1, max }) }
}

fn usable(in_range: bool, key: String, found: f32) -> Result<f32, ConfigError> {
    if in_range && found.is_finite() { Ok(found) } else { Err(ConfigError::BadFloat { key, found }) }
}
