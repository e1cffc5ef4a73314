//! Model files: GGUF reading and writing, memory mapping, tensors and their digest.
//!
//! [`gguf::ModelFiles`] opens a model (one file, or all shards of a split one), maps it and hands out metadata and
//! tensors as views into the map. A file comes from a stranger: nothing in it is believed before it is checked, and every
//! refusal names the key or tensor and the byte where it went wrong.

pub mod digest;
pub mod gguf;
mod mapped_file;
pub mod testing;

pub use mapped_file::MappedFile;
