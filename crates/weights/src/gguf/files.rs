//! A model on disk or in memory: one file, or all shards of a split one, seen as one set of tensors.

use super::error::GgufError;
use super::metadata::{Metadata, MetadataError};
use super::parse::{Directory, Gguf};
use super::split::{SplitError, SplitKeys};
use super::tensor::{Record, Tensor, TensorError, Weight};
use crate::file_state::FileState;
use crate::mapped_file::MappedFile;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// An opened model. Metadata is that of the first file; tensors are those of all files.
#[derive(Debug)]
pub struct ModelFiles {
    shards: Vec<Shard>,
    /// Every tensor as (shard, record), sorted by name.
    by_name: Vec<(u32, u32)>,
}

/// Reasons for which a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelOpenError {
    /// The file could not be opened or mapped.
    #[error("cannot open {path:?}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// The file is not a GGUF file muser accepts.
    #[error("{path:?} is not a usable model: {reason}")]
    Gguf {
        /// The file; empty for bytes in memory.
        path: PathBuf,
        /// Refusal of the file.
        reason: GgufError,
    },
    /// The metadata that describes the shards is wrong.
    #[error("{path:?} is not a usable model: {reason}")]
    Metadata {
        /// The file; empty for bytes in memory.
        path: PathBuf,
        /// Fault of the metadata.
        reason: MetadataError,
    },
    /// The shards do not make a whole.
    #[error("{path:?} is not a usable split model: {reason}")]
    Split {
        /// The file that was opened; empty for bytes in memory.
        path: PathBuf,
        /// Fault of the set of shards.
        reason: SplitError,
    },
}

/// The state of a file when it was opened.
pub(crate) struct Stamp<'a> {
    /// File system state; `None` for a file in memory.
    pub(crate) state: Option<FileState>,
    /// Everything before the data section.
    pub(crate) header: &'a [u8],
}

/// One file of a model.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    source: Source,
    directory: Directory,
}

/// Storage of a file's bytes.
#[derive(Debug)]
enum Source {
    Mapped(MappedFile),
    Memory(Vec<u8>),
}

impl ModelFiles {
    /// Opens the model at `path`. Of a split model, `path` is the first shard; the others are expected beside it.
    ///
    /// Files are mapped, not read: [`MappedFile`] says how a model on disk may be replaced meanwhile.
    ///
    /// # Errors
    /// If a file cannot be mapped, is not an acceptable GGUF file, or the shards do not make a whole.
    pub fn open(path: &Path) -> Result<Self, ModelOpenError> {
        let first = Shard::open(path)?;
        let keys = first.split_keys()?;
        let in_split = |reason| ModelOpenError::Split { path: path.to_owned(), reason };
        let paths = keys.shard_paths(path).map_err(in_split)?;
        let mut shards = vec![first];
        for (number, later) in (2..).zip(&paths[1..]) {
            let shard = Shard::open(later).map_err(|error| missing_if_absent(error, number, keys, path))?;
            shard.split_keys()?.check_place(later, number, keys).map_err(in_split)?;
            shards.push(shard);
        }
        Self::of_shards(shards, keys).map_err(in_split)
    }

    /// A model that is already in memory, as one file.
    ///
    /// # Errors
    /// If the bytes are not an acceptable GGUF file, or one shard of several.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, ModelOpenError> {
        let shard = Shard::parse(PathBuf::new(), Source::Memory(bytes))?;
        let keys = shard.split_keys()?;
        let in_split = |reason| ModelOpenError::Split { path: PathBuf::new(), reason };
        // Of several shards the path would name the others; an empty path names none, so they are refused here.
        keys.shard_paths(Path::new("")).map_err(in_split)?;
        Self::of_shards(vec![shard], keys).map_err(in_split)
    }

    /// The metadata of the first file.
    pub fn metadata(&self) -> Metadata<'_> {
        // There is always a first shard: no constructor makes an empty list.
        let first = &self.shards[0];
        first.directory.metadata(&first.source)
    }

    /// Every tensor, shard by shard, in the order of their directories.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.shards.iter().flat_map(|shard| shard.directory.records.iter().map(|record| shard.tensor(record)))
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.by_name.len()
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let found = self.by_name.binary_search_by(|place| self.at(*place).name().cmp(name)).ok()?;
        Some(self.at(self.by_name[found]))
    }

    /// The tensor called `name` as rows of a type muser computes with.
    ///
    /// # Errors
    /// If there is no such tensor or its type is not supported.
    pub fn weight(&self, name: &str) -> Result<Weight<'_>, TensorError> {
        self.tensor(name).ok_or_else(|| TensorError::Missing { name: name.into() })?.weight()
    }

    /// Advises the system that the tensor called `name` will not be read for a while, so that a mapped file does not
    /// count as this process's memory beside the form that was made of it. The bytes can still be read.
    pub fn release(&self, name: &str) {
        let place = self.by_name.binary_search_by(|place| self.at(*place).name().cmp(name));
        let Ok((shard, _)) = place.map(|index| self.by_name[index]) else { return };
        let shard = &self.shards[shard as usize];
        if let (Source::Mapped(map), Some(bytes)) = (&shard.source, self.tensor(name).and_then(|tensor| tensor.bytes()))
        {
            let start = bytes.as_ptr().addr() - map.as_ptr().addr();
            map.release(start..start + bytes.len());
        }
    }

    /// Every tensor, sorted by name.
    pub fn tensors_by_name(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.by_name.iter().map(|place| self.at(*place))
    }

    /// Paths of the files, the first shard first. One empty path for a model in memory.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.source.len() as u64).sum()
    }

    /// Stamps of each file, the first shard first: they tell one state of a file from another without reading it whole.
    pub(crate) fn stamps(&self) -> impl Iterator<Item = Stamp<'_>> {
        self.shards.iter().map(|shard| Stamp {
            state: match &shard.source {
                Source::Mapped(map) => Some(map.state()),
                Source::Memory(_) => None,
            },
            header: &shard.source[..shard.directory.data_at.min(shard.source.len())],
        })
    }

    fn at(&self, (shard, record): (u32, u32)) -> Tensor<'_> {
        let shard = &self.shards[shard as usize];
        shard.tensor(&shard.directory.records[record as usize])
    }

    /// Joins the shards after checking that no tensor is in two of them and that none is missing.
    fn of_shards(shards: Vec<Shard>, keys: SplitKeys) -> Result<Self, SplitError> {
        let places = |(shard, records): (u32, usize)| (0..).take(records).map(move |record| (shard, record));
        let records = shards.iter().map(|shard| shard.directory.records.len());
        let by_name = (0..).zip(records).flat_map(places).collect();
        let mut files = Self { shards, by_name };
        let mut by_name = std::mem::take(&mut files.by_name);
        by_name.sort_unstable_by(|a, b| files.at(*a).name().cmp(files.at(*b).name()).then(a.cmp(b)));
        for pair in by_name.windows(2) {
            let name = files.at(pair[0]).name();
            if name == files.at(pair[1]).name() {
                let path = |place: (u32, u32)| files.shards[place.0 as usize].path.clone();
                let (first, second) = (path(pair[0]), path(pair[1]));
                return Err(SplitError::DuplicateTensor { name: name.into(), first, second });
            }
        }
        let found = by_name.len() as u64;
        match keys.tensors {
            Some(stated) if stated != found => Err(SplitError::TensorCount { stated, found }),
            _ => Ok(Self { by_name, ..files }),
        }
    }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, ModelOpenError> {
        let map = MappedFile::open(path).map_err(|reason| ModelOpenError::Io { path: path.to_owned(), reason })?;
        Self::parse(path.to_owned(), Source::Mapped(map))
    }

    fn parse(path: PathBuf, source: Source) -> Result<Self, ModelOpenError> {
        match Gguf::parse(&source).map(Gguf::into_directory) {
            Ok(directory) => Ok(Self { path, source, directory }),
            Err(reason) => Err(ModelOpenError::Gguf { path, reason }),
        }
    }

    fn split_keys(&self) -> Result<SplitKeys, ModelOpenError> {
        let metadata = self.directory.metadata(&self.source);
        SplitKeys::read(&metadata).map_err(|reason| ModelOpenError::Metadata { path: self.path.clone(), reason })
    }

    fn tensor<'a>(&'a self, record: &'a Record) -> Tensor<'a> {
        self.directory.tensor_with_data(record, &self.source)
    }
}

/// The absence of a later shard of the model at `path` as such; every other error unchanged.
fn missing_if_absent(error: ModelOpenError, number: u32, keys: SplitKeys, path: &Path) -> ModelOpenError {
    match error {
        ModelOpenError::Io { path: absent, reason } if reason.kind() == io::ErrorKind::NotFound => {
            let reason = SplitError::Missing { number, count: keys.count.into(), path: absent };
            ModelOpenError::Split { path: path.to_owned(), reason }
        }
        other => other,
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}
