//! Text to token ids and back, for the byte-level BPE vocabularies that GGUF calls `gpt2`.
//!
//! The way of a text: special tokens are cut out (`specials`), the rest is cut into words (`split`), each word's bytes
//! become byte tokens (`byte_alphabet`) which are merged by rank (`merge`). Back: each token has its bytes
//! (`token_bytes`), and [`StreamDecoder`] turns a stream of bytes into whole characters.
//!
//! This crate reads no files: the caller fills [`VocabularyData`] from wherever the vocabulary is kept.

mod byte_alphabet;
mod end_of_generation;
mod merge;
mod specials;
mod split;
mod stream;
mod token_bytes;
mod tokenizer;
mod vocabulary;

pub use split::pre_tokenizer_names;
pub use stream::{StreamDecoder, Utf8Stream};
pub use tokenizer::{ControlTokens, Specials, TokenOutOfRange, Tokenizer};
pub use vocabulary::{TokenKind, VocabularyData, VocabularyError};
