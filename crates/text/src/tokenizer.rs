//! The tokenizer: a checked vocabulary, and the ways from text to ids and from ids to bytes.

use crate::byte_alphabet::char_of;
use crate::end_of_generation::end_of_generation_ids;
use crate::merge::{MergeScratch, MergeTable, NO_TOKEN};
use crate::specials::SpecialMatcher;
use crate::split::PreTokenizer;
use crate::token_bytes::TokenBytes;
use crate::vocabulary::{self, TokenKind, VocabularyData, VocabularyError};
use std::collections::HashMap;

/// What becomes of control tokens that are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They are text like any other. For what users write: it cannot forge a turn.
    AsText,
    /// They become the tokens they spell. For text that the program itself wrote, such as a filled template.
    Parse,
}

/// What control tokens decode to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// Nothing. For what users read.
    Hide,
    /// Their spelling.
    Show,
}

/// An id is not one of the vocabulary's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {id} is out of range: the vocabulary has {tokens} tokens")]
pub struct TokenOutOfRange {
    /// The id.
    pub id: u32,
    /// How many tokens there are.
    pub tokens: usize,
}

/// A checked vocabulary. It is never changed, so threads may share it.
pub struct Tokenizer {
    /// As the caller gave it, but for the merges, which are in a table of their own.
    data: VocabularyData,
    kinds: Vec<TokenKind>,
    pre: PreTokenizer,
    adds_bos: bool,
    end_of_generation: Vec<u32>,
    /// The words that are tokens as a whole; empty unless `pre` looks for them.
    whole_words: HashMap<String, u32>,
    merges: MergeTable,
    /// User-defined tokens, which are always looked for.
    user_defined: SpecialMatcher,
    /// Those and the control and unknown tokens.
    all_specials: SpecialMatcher,
    bytes: TokenBytes,
}

impl Tokenizer {
    /// Checks a vocabulary and builds its tables.
    ///
    /// # Errors
    ///
    /// See [`VocabularyError`]. Two tokens may be spelled alike: text becomes the lower id, and both decode.
    pub fn new(mut data: VocabularyData) -> Result<Self, VocabularyError> {
        let pre = vocabulary::check_names(&data)?;
        let kinds = vocabulary::check_kinds(&data)?;
        let adds_bos = vocabulary::check_roles(&data, pre)?;
        let bytes = TokenBytes::new(&data, &kinds)?;
        let text_ids = bytes.text_ids(&data, &kinds);
        let merges = vocabulary::merge_table(&data, &text_ids)?;
        data.merges = Vec::new();
        let specials = |wanted: &[TokenKind]| {
            let tokens = (0u32..).zip(&data.tokens).zip(&kinds).filter(|(_, kind)| wanted.contains(kind));
            SpecialMatcher::new(tokens.map(|((id, text), _)| (text.as_str(), id)))
        };
        Ok(Self {
            user_defined: specials(&[TokenKind::UserDefined]),
            all_specials: specials(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown]),
            end_of_generation: end_of_generation_ids(&data, &kinds),
            data,
            kinds,
            pre,
            adds_bos,
            whole_words: if pre.whole_words_first { text_ids } else { HashMap::new() },
            merges,
            bytes,
        })
    }

    /// The tokens of `text`, without BOS.
    ///
    /// Control and unknown tokens are recognised only under [`Specials::Parse`]. User-defined tokens always are, as in
    /// llama.cpp. Where several special tokens are spelled, the leftmost counts, and of those the longest. Tokens of
    /// other kinds are never special, however they are spelled.
    ///
    /// Bytes for which the vocabulary has no token ([`Self::missing_bytes`]) are left out, as in llama.cpp; decoding
    /// gives back everything else.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_onto(text, specials, &mut ids);
        ids
    }

    /// The tokens of `text` as the start of a context: with BOS before them if the vocabulary wants it
    /// ([`Self::adds_bos`]) and the text does not start with it already.
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Vec<u32> {
        let Some(bos) = self.data.bos.filter(|_| self.adds_bos) else { return self.encode(text, specials) };
        let mut ids = vec![bos];
        self.encode_onto(text, specials, &mut ids);
        if ids.get(1) == Some(&bos) {
            ids.remove(0);
        }
        ids
    }

    /// The bytes that token `id` stands for. They need not be whole characters.
    ///
    /// `controls` says what control and unknown tokens give.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn token_bytes(&self, id: u32, controls: ControlTokens) -> Result<&[u8], TokenOutOfRange> {
        let index = self.index(id)?;
        let hidden = controls == ControlTokens::Hide && self.kinds[index].steers();
        Ok(if hidden { &[] } else { self.bytes.of(index) })
    }

    /// The bytes of `ids`, one after the other.
    ///
    /// # Errors
    ///
    /// If the vocabulary has not all of them; the first that is missing is named.
    pub fn decode(&self, ids: &[u32], controls: ControlTokens) -> Result<Vec<u8>, TokenOutOfRange> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id, controls)?);
        }
        Ok(bytes)
    }

    /// How many tokens there are; ids are below this.
    pub fn token_count(&self) -> usize {
        self.data.tokens.len()
    }

    /// What token `id` is for.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn token_kind(&self, id: u32) -> Result<TokenKind, TokenOutOfRange> {
        self.index(id).map(|index| self.kinds[index])
    }

    /// How the vocabulary spells token `id`, such as `Ġthe` or `<|im_end|>`.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn token_spelling(&self, id: u32) -> Result<&str, TokenOutOfRange> {
        self.index(id).map(|index| self.data.tokens[index].as_str())
    }

    /// Whether a generation ends with token `id`: EOS, EOT, EOM, or a control token known to end turns or texts.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// Every id for which [`Self::is_end_of_generation`] holds, ascending.
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Whether a prompt starts with BOS.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The beginning of a text.
    pub fn bos(&self) -> Option<u32> {
        self.data.bos
    }

    /// The end of a text.
    pub fn eos(&self) -> Option<u32> {
        self.data.eos
    }

    /// The end of a turn.
    pub fn eot(&self) -> Option<u32> {
        self.data.eot
    }

    /// The end of a message within a turn.
    pub fn eom(&self) -> Option<u32> {
        self.data.eom
    }

    /// Stands for what cannot be encoded.
    pub fn unknown(&self) -> Option<u32> {
        self.data.unknown
    }

    /// Fills up batches.
    pub fn padding(&self) -> Option<u32> {
        self.data.padding
    }

    /// The bytes which text may hold but for which there is no token: rare controls and parts of rare characters.
    pub fn missing_bytes(&self) -> Vec<u8> {
        let missing = |byte: &u8| self.merges.byte_ids[usize::from(*byte)] == NO_TOKEN;
        (0..=u8::MAX).filter(|byte| missing(byte) && !vocabulary::never_in_utf8(*byte)).collect()
    }

    fn encode_onto(&self, text: &str, specials: Specials, ids: &mut Vec<u32>) {
        let matcher = match specials {
            Specials::AsText => &self.user_defined,
            Specials::Parse => &self.all_specials,
        };
        let mut scratch = MergeScratch::default();
        let mut start = 0;
        while let Some(found) = matcher.find(text, start) {
            // A spelling is whole characters, so it starts and ends between characters.
            self.encode_plain(&text[start..found.start], &mut scratch, ids);
            ids.push(found.id);
            start = found.end;
        }
        self.encode_plain(&text[start..], &mut scratch, ids);
    }

    /// Appends the tokens of `text`, in which nothing is special.
    fn encode_plain(&self, text: &str, scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        let mut spelling = String::new();
        self.pre.each_word(text, |word| {
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

    fn index(&self, id: u32) -> Result<usize, TokenOutOfRange> {
        let tokens = self.data.tokens.len();
        usize::try_from(id).ok().filter(|index| *index < tokens).ok_or(TokenOutOfRange { id, tokens })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("pre", &self.data.pre)
            .field("tokens", &self.token_count())
            .finish_non_exhaustive()
    }
}
