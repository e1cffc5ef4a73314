//! GGUF, the model file format of llama.cpp: versions 2 and 3, little-endian.
//!
//! | part | bytes |
//! |---|---|
//! | header | `GGUF`, version u32, tensor count u64, metadata count u64 |
//! | metadata entry | key string, value type u32, value |
//! | string | length u64, bytes |
//! | array | element type u32, length u64, elements |
//! | directory entry | name string, dimension count u32, dimensions u64 each (row length first), type u32, data offset u64 |
//! | padding | up to the next multiple of `general.alignment` (32 if that key is absent) |
//! | data section | the tensors' bytes, each at its data offset, counted from here |
//!
//! # What is accepted
//! All value types; no arrays of arrays. Names are unique, UTF-8 and not empty: keys up to [`KEY_BYTES_MAX`] bytes, tensor
//! names up to [`TENSOR_NAME_BYTES_MAX`]. Up to [`ENTRIES_MAX`] metadata entries and as many tensors. Tensors have 1 to 4
//! dimensions, none of them zero, whole blocks in every row, and data that lies inside the file, begins at a multiple of
//! the alignment and overlaps no other tensor's. Gaps between tensors and bytes behind the last one are allowed. A tensor
//! of a type muser has no kernels for is listed; only [`Tensor::weight`] refuses it.
//!
//! # Memory
//! Parsing copies nothing. Its directory takes at most the size of the file plus 1 MiB, whatever counts the file
//! declares.

mod cursor;
mod error;
mod files;
mod ggml_types;
mod metadata;
mod parse;
mod split;
mod tensor;
mod value;
mod writer;

pub use error::{GgufError, GgufFault, Item};
pub use files::{ModelFiles, ModelOpenError};
pub use ggml_types::{TensorType, UnsupportedType};
pub use metadata::{Metadata, MetadataError, Optional, PerLayer};
pub use parse::{ENTRIES_MAX, Gguf, HeaderOnly, KEY_BYTES_MAX, TENSOR_NAME_BYTES_MAX};
pub use split::SplitError;
pub use tensor::{Tensor, TensorError, Weight};
pub use value::{Array, Elements, Value, ValueType};
pub use writer::{Element, GgufWriter, PlannedTensor, WriteError};
