//! Digests of what a model computes with: part of the identity that everything holding KV carries.
//!
//! Both digests are BLAKE3 in its key-derivation mode, whose context string keeps them apart from every other use of the
//! hash. All integers are little-endian; every field of variable length follows its length.
//!
//! **Tensors**, context `muser 2026 digest of tensors, version 1`. Shards, file order, alignment and gaps do not enter:
//!
//! | bytes | field |
//! |---|---|
//! | 8 | number of tensors |
//! | | *then per tensor, sorted by the bytes of its name:* |
//! | 8, n | length of the name, name |
//! | 4 | GGUF's number of the type |
//! | 4, 8 each | number of dimensions, dimensions, row length first |
//! | 8, n | length of the data, data |
//!
//! **Tokenizer**, context `muser 2026 digest of tokenizer, version 1`. Every key of the first file that begins with
//! `tokenizer.`, except those that begin with `tokenizer.chat_template`: KV depends on token ids, not on how a
//! conversation becomes text.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | number of keys |
//! | | *then per key, sorted by its bytes:* |
//! | 8, n | length of the key, key |
//! | 4 | GGUF's number of the value's type |
//! | 8, n | length of the value as GGUF encodes it, value |

mod cache;

use crate::gguf::{ModelFiles, TensorType};
use std::fmt;
use std::time::SystemTime;

const TENSORS_CONTEXT: &str = "muser 2026 digest of tensors, version 1";
const TOKENIZER_CONTEXT: &str = "muser 2026 digest of tokenizer, version 1";

/// 32 bytes of BLAKE3; shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// The digests of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDigest {
    /// Digest of every tensor's name, type, shape and data.
    pub tensors: Digest,
    /// Digest of the tokenizer's metadata, chat templates excluded.
    pub tokenizer: Digest,
}

/// Source of a model's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestSource {
    /// The cache file beside the model.
    Cache,
    /// Every byte of the tensors was read.
    Computed,
}

/// Reasons for which a model has no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// The size of a tensor, and with it the end of its data, is not known.
    #[error("tensor {name:?} is stored as {ty}, whose size is not known")]
    UnknownSize {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
    },
}

impl FileDigest {
    /// Reads every byte of every tensor. Takes seconds for a large model, longer if it is not in memory yet.
    ///
    /// # Errors
    /// If the size of a tensor's type is not known.
    pub fn compute(files: &ModelFiles) -> Result<Self, DigestError> {
        Ok(Self { tensors: of_tensors(files)?, tokenizer: of_tokenizer(files) })
    }

    /// The digests of an opened model, reading the tensors only if the cache file beside the model does not have their
    /// digest.
    ///
    /// The cache file is that of the first shard with `.muser-digest` appended to its name. It is valid if it is whole
    /// and was made for files of the same lengths, times of modification and of change to the nanosecond, devices, inodes,
    /// headers (metadata and directory), and first and last 2048 bytes of every tensor. Setting the time of modification
    /// back is itself a change, so that equal times of packages and images tell nothing. What goes unnoticed are bytes
    /// within a tensor that change without the file system's knowledge: with the machine's clock set back, beneath the file
    /// system, or where a network file system tells stale times. A cache that is absent, damaged or stale is written anew;
    /// where that is not possible, where the system has no time of change, or where a file was changed less than two
    /// seconds before `now`, so that its time may not tell the next change, the digest is only computed.
    ///
    /// # Errors
    /// If the size of a tensor's type is not known. Never because of the cache.
    pub fn load_or_compute(files: &ModelFiles, now: SystemTime) -> Result<(Self, DigestSource), DigestError> {
        let cache = cache::Cache::of(files, now);
        if let Some(tensors) = cache.as_ref().and_then(cache::Cache::load) {
            return Ok((Self { tensors, tokenizer: of_tokenizer(files) }, DigestSource::Cache));
        }
        let computed = Self::compute(files)?;
        if let Some(cache) = cache {
            cache.store(computed.tensors);
        }
        Ok((computed, DigestSource::Computed))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn of_tensors(files: &ModelFiles) -> Result<Digest, DigestError> {
    let mut fields = Fields(blake3::Hasher::new_derive_key(TENSORS_CONTEXT));
    fields.u64(files.tensor_count() as u64);
    for tensor in files.tensors_by_name() {
        let unknown = || DigestError::UnknownSize { name: tensor.name().into(), ty: tensor.tensor_type() };
        fields.bytes(tensor.name().as_bytes());
        fields.u32(tensor.tensor_type().id());
        // One to four dimensions: the parser has checked.
        fields.u32(u32::try_from(tensor.shape().len()).unwrap_or(u32::MAX));
        tensor.shape().iter().for_each(|length| fields.u64(*length));
        fields.bytes(tensor.bytes().ok_or_else(unknown)?);
    }
    Ok(fields.digest())
}

fn of_tokenizer(files: &ModelFiles) -> Digest {
    let counts = |key: &str| key.starts_with("tokenizer.") && !key.starts_with("tokenizer.chat_template");
    let metadata = files.metadata();
    let entries = || metadata.encoded_by_key().filter(|(key, ..)| counts(key));
    let mut fields = Fields(blake3::Hasher::new_derive_key(TOKENIZER_CONTEXT));
    fields.u64(entries().count() as u64);
    for (key, ty, value) in entries() {
        fields.bytes(key.as_bytes());
        fields.u32(ty as u32);
        fields.bytes(value);
    }
    fields.digest()
}

/// Feeds a hash field by field.
struct Fields(blake3::Hasher);

impl Fields {
    fn u32(&mut self, value: u32) {
        self.0.update(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.update(&value.to_le_bytes());
    }

    /// The length and then the bytes.
    fn bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}
