//! Encoding of text without special tokens, for each kind of vocabulary.

use crate::byte_alphabet::char_of;
use crate::merge::{MergeScratch, MergeTable, NO_TOKEN};
use crate::score_merge::ScoreTable;
use crate::split::PreTokenizer;
use std::borrow::Cow;
use std::collections::HashMap;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// The tables of a vocabulary's kind.
pub(crate) enum Encoder {
    /// GGUF's `gpt2`.
    BytePair(BytePair),
    /// GGUF's `llama`.
    SentencePiece(SentencePiece),
}

/// Words are cut, and the bytes of each are merged.
pub(crate) struct BytePair {
    pub(crate) pre: PreTokenizer,
    /// The words that are tokens as a whole; empty unless `pre` looks for them.
    pub(crate) whole_words: HashMap<String, u32>,
    pub(crate) merges: MergeTable,
}

/// Characters are merged, whatever lies between them.
pub(crate) struct SentencePiece {
    pub(crate) scores: ScoreTable,
    /// True if a space is put before every text.
    pub(crate) space_prefix: bool,
}

impl Encoder {
    /// Appends the tokens of `text`: all that lies between two special tokens, and not empty.
    pub(crate) fn encode(&self, text: &str, scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        match self {
            Self::BytePair(encoder) => encoder.encode(text, scratch, ids),
            Self::SentencePiece(encoder) if encoder.space_prefix => {
                encoder.scores.encode(&format!(" {text}"), scratch, ids);
            }
            Self::SentencePiece(encoder) => encoder.scores.encode(text, scratch, ids),
        }
    }

    /// True if a space is put before every text.
    pub(crate) fn prefixes_space(&self) -> bool {
        matches!(self, Self::SentencePiece(encoder) if encoder.space_prefix)
    }

    /// True if no token stands for `byte`.
    pub(crate) fn lacks(&self, byte: u8) -> bool {
        let byte_ids = match self {
            Self::BytePair(encoder) => &encoder.merges.byte_ids,
            Self::SentencePiece(encoder) => &encoder.scores.byte_ids,
        };
        byte_ids[usize::from(byte)] == NO_TOKEN
    }
}

impl BytePair {
    fn encode(&self, text: &str, scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        let text = if self.pre.composes { composed(text) } else { Cow::Borrowed(text) };
        let mut spelling = String::new();
        self.pre.each_word(&text, |word| {
            if self.pre.whole_words_first {
                spelling.clear();
                spelling.extend(word.bytes().map(char_of));
                if let Some(&id) = self.whole_words.get(&spelling) {
                    ids.push(id);
                    return;
                }
            }
            self.merges.encode_word(word.as_bytes(), scratch, ids);
        });
    }
}

/// `text` in Unicode's composed form (NFC): where a letter and its accents are one character, they become it.
fn composed(text: &str) -> Cow<'_, str> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => Cow::Borrowed(text),
        IsNormalized::No | IsNormalized::Maybe => Cow::Owned(text.nfc().collect()),
    }
}
