//! The bytes that each token stands for.

use crate::byte_alphabet::ByteAlphabet;
use crate::score_merge::SPELLED_SPACE;
use crate::vocabulary::{Family, TokenKind, VocabularyData, VocabularyError};
use std::collections::HashMap;

/// The bytes of every token, in one piece.
pub(crate) struct TokenBytes {
    bytes: Vec<u8>,
    /// End offset of each token's bytes; its start is the end of the token before it.
    ends: Vec<usize>,
}

impl TokenBytes {
    /// Reads every spelling. Special tokens are spelled as they read. In the others of a byte-level vocabulary each
    /// character spells a byte; a spelling with any other character in it stands for itself. In SentencePiece U+2581
    /// spells a space.
    pub(crate) fn new(data: &VocabularyData, kinds: &[TokenKind], family: Family) -> Result<Self, VocabularyError> {
        let alphabet = ByteAlphabet::new();
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(kinds.len());
        for ((id, text), kind) in (0u32..).zip(&data.tokens).zip(kinds) {
            match kind {
                _ if data.raw_tokens.contains_key(&id) => bytes.extend_from_slice(&data.raw_tokens[&id]),
                TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined => {
                    bytes.extend_from_slice(text.as_bytes());
                }
                TokenKind::Byte => {
                    let byte = byte_token(text);
                    bytes.push(byte.ok_or_else(|| VocabularyError::MalformedByteToken { id, text: text.clone() })?);
                }
                TokenKind::Undefined | TokenKind::Normal | TokenKind::Unused => {
                    match spelled(&alphabet, text, family) {
                        Some(spelled) => bytes.extend_from_slice(&spelled),
                        None => bytes.extend_from_slice(text.as_bytes()),
                    }
                }
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends })
    }

    /// The bytes of the token `index`, which must be in the vocabulary.
    pub(crate) fn of(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// The id of every spelling that merging may arrive at; of equal spellings the lowest id.
    ///
    /// Text must not become a control or an unknown token this way, nor a token that stands for other bytes than its
    /// characters spell: what is encoded must decode to itself.
    pub(crate) fn text_ids(&self, data: &VocabularyData, kinds: &[TokenKind], family: Family) -> HashMap<String, u32> {
        let alphabet = ByteAlphabet::new();
        let mut ids = HashMap::with_capacity(data.tokens.len());
        for ((index, text), (id, kind)) in data.tokens.iter().enumerate().zip((0u32..).zip(kinds)) {
            let spells_its_bytes = || spelled(&alphabet, text, family).is_some_and(|spelled| spelled == self.of(index));
            if !kind.steers() && !data.raw_tokens.contains_key(&id) && !text.is_empty() && spells_its_bytes() {
                ids.entry(text.clone()).or_insert(id);
            }
        }
        ids
    }
}

/// The bytes that `text` spells by the rules of `family`, if it can be read by them.
fn spelled(alphabet: &ByteAlphabet, text: &str, family: Family) -> Option<Vec<u8>> {
    match family {
        Family::BytePair(_) => alphabet.bytes_of(text),
        // Spaces are spelled before anything is looked up, so a spelling with a space in it is never found.
        Family::SentencePiece if text.contains(' ') => None,
        Family::SentencePiece => Some(text.replace(SPELLED_SPACE, " ").into_bytes()),
    }
}

/// The byte of a spelling `<0x00>` to `<0xFF>`.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_token_has_two_hexadecimal_digits() {
        assert_eq!((byte_token("<0x00>"), byte_token("<0xfF>")), (Some(0), Some(255)));
        for malformed in ["", "<0x>", "<0x0>", "<0x+1>", "<0x000>", "<0xgg>", "0x00", "<0x00", "<0xé>"] {
            assert_eq!(byte_token(malformed), None, "{malformed:?}");
        }
    }
}
