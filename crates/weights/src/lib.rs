//! Model files: GGUF reading and writing, memory mapping, tensors and their digest.
//!
//! [`gguf::ModelFiles`] opens a model (one file, or all shards of a split one), maps it and hands out metadata and
//! tensors as views into the map. A file is untrusted: nothing in it is used before it is checked, and every refusal
//! names the key or tensor and the byte where it went wrong.
//!
//! ```no_run
//! use muser_weights::gguf::{ModelFiles, Optional};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let files = ModelFiles::open("model.gguf".as_ref())?;
//! let metadata = files.metadata();
//! let architecture = metadata.str("general.architecture")?;
//! let layers = metadata.usize(&format!("{architecture}.block_count"))?;
//! let heads = metadata.u32_per_layer(&format!("{architecture}.attention.head_count"), layers)?;
//! let window = metadata.u32(&format!("{architecture}.attention.sliding_window")).optional()?;
//! let queries = files.weight("blk.0.attn_q.weight")?; // queries.bytes: queries.rows rows of queries.cols weights
//! # let _ = (heads, window, queries);
//! # Ok(())
//! # }
//! ```

pub mod digest;
mod file_state;
pub mod gguf;
mod mapped_file;

pub use mapped_file::MappedFile;
