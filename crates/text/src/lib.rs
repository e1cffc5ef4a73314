//! Text to token ids and back, for the vocabularies that GGUF calls `gpt2` (byte-level BPE) and `llama`
//! (SentencePiece).
//!
//! The way of a text: special tokens are cut out (`specials`); the rest goes to the `encoder`. In byte-level BPE it is
//! cut into words (`split`), and each word's bytes become byte tokens (`byte_alphabet`) which are merged by rank
//! (`merge`). In SentencePiece characters are merged by score (`score_merge`). Back: each token has its bytes
//! (`token_bytes`), and [`StreamDecoder`] turns a stream of bytes into whole characters.
//!
//! Conversations become text by the model's own template, and tokens by [`encode_chat`] (`chat`).
//!
//! This crate reads no files: the caller fills [`VocabularyData`] from wherever the vocabulary is kept.

#![forbid(unsafe_code)]

mod byte_alphabet;
mod chat;
mod encoder;
mod end_of_generation;
mod merge;
mod score_merge;
mod specials;
mod split;
mod stop_strings;
mod stream;
mod token_bytes;
mod tokenizer;
mod vocabulary;

pub use chat::{
    ChatError, ChatMessage, ChatOptions, ChatTemplate, ChatTemplates, Deadline, LocalTime, RENDERER_NAMES, Rendered,
    Tracing, encode_chat,
};
pub use split::pre_tokenizer_names;
pub use stop_strings::{EmptyStopString, StopStrings};
pub use stream::{StreamDecoder, Utf8Stream};
pub use tokenizer::{ControlTokens, Specials, TokenOutOfRange, Tokenizer};
pub use vocabulary::{TokenKind, VocabularyData, VocabularyError};
