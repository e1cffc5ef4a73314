//! Models split over several files, named `<prefix>-00001-of-0000N.gguf`.

use super::metadata::{Metadata, MetadataError, Optional};
use std::path::{Path, PathBuf};

/// Reasons for which the files of a split model do not make a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The file given is a later shard.
    #[error("this is shard {number} of {count} (counted from 1); open the first one, {first:?}")]
    NotFirst {
        /// Number of the given shard, counted from 1.
        number: u32,
        /// Number of shards.
        count: u32,
        /// The file to open instead.
        first: PathBuf,
    },
    /// The metadata declare a shard, but the file name has no shard number by which to find the others.
    #[error("shard {number} of {count} must be named {expected:?} for the others to be found beside it")]
    Name {
        /// Number the file states for itself, counted from 1.
        number: u32,
        /// Number of shards it states.
        count: u32,
        /// Required end of its name.
        expected: String,
    },
    /// The file numbers itself behind the last shard, or states no shards at all.
    #[error("the file says it is shard {number} of {count} (counted from 1)")]
    Number {
        /// Number the file states for itself, counted from 1.
        number: u32,
        /// Number of shards it states.
        count: u32,
    },
    /// A shard is not there.
    #[error("shard {number} of {count} is missing: {path:?}")]
    Missing {
        /// Number of the shard, counted from 1.
        number: u32,
        /// Number of shards.
        count: u32,
        /// Path it should have.
        path: PathBuf,
    },
    /// A shard's own numbers do not agree with its place.
    #[error("{path:?} says it is shard {found_number} of {found_count}, it should be {number} of {count}")]
    Disagrees {
        /// The shard.
        path: PathBuf,
        /// Number the shard states for itself, counted from 1.
        found_number: u32,
        /// Number of shards it states.
        found_count: u32,
        /// Expected number, counted from 1.
        number: u32,
        /// Number of shards the first shard states.
        count: u32,
    },
    /// Two shards hold a tensor of the same name.
    #[error("tensor {name:?} is in both {first:?} and {second:?}")]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// The earlier shard.
        first: PathBuf,
        /// The later shard.
        second: PathBuf,
    },
    /// The shards do not hold as many tensors as they should.
    #[error("the shards hold {found} tensors, the first one states {stated}")]
    TensorCount {
        /// `split.tensors.count`.
        stated: u64,
        /// Tensors found.
        found: u64,
    },
}

/// Place of a file in a split model, from its `split.*` metadata keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitKeys {
    /// Index of the shard, counted from 0.
    pub(super) index: u16,
    pub(super) count: u16,
    /// Tensors of all shards together.
    pub(super) tensors: Option<u64>,
}

impl SplitKeys {
    /// Reads the `split.*` keys of a file; a file without them is whole.
    pub(super) fn read(metadata: &Metadata) -> Result<Self, MetadataError> {
        let short = |key| metadata.u32(key).optional().and_then(|value| fits_u16(key, value));
        Ok(Self {
            index: short("split.no")?.unwrap_or(0),
            count: short("split.count")?.unwrap_or(1),
            tensors: metadata.u64("split.tensors.count").optional()?,
        })
    }

    /// Checks that this file, at `path`, is the first shard; returns the paths of all shards in order.
    pub(super) fn shard_paths(self, path: &Path) -> Result<Vec<PathBuf>, SplitError> {
        let (number, count) = (u32::from(self.index) + 1, u32::from(self.count));
        if count == 0 || number > count {
            return Err(SplitError::Number { number, count });
        }
        if count == 1 {
            return Ok(vec![path.to_owned()]);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(prefix) = name.strip_suffix(&suffix(number, count)) else {
            return Err(SplitError::Name { number, count, expected: format!("<name>{}", suffix(number, count)) });
        };
        let shard = |number| path.with_file_name(format!("{prefix}{}", suffix(number, count)));
        if number != 1 {
            return Err(SplitError::NotFirst { number, count, first: shard(1) });
        }
        Ok((1..=count).map(shard).collect())
    }

    /// Checks that this file, at `path`, is the shard with `number` (counted from 1) of the model that `first` begins.
    pub(super) fn check_place(self, path: &Path, number: u32, first: Self) -> Result<(), SplitError> {
        let (found_number, found_count) = (u32::from(self.index) + 1, self.count.into());
        let count = first.count.into();
        if (found_number, found_count) == (number, count) {
            return Ok(());
        }
        Err(SplitError::Disagrees { path: path.to_owned(), found_number, found_count, number, count })
    }
}

fn suffix(number: u32, count: u32) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn fits_u16(key: &str, value: Option<u32>) -> Result<Option<u16>, MetadataError> {
    let Some(value) = value else { return Ok(None) };
    match u16::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(MetadataError::OutOfRange { key: key.into(), wanted: "a u16", value: value.into() }),
    }
}
