//! The tokenizer: a checked vocabulary, and the ways from text to ids and from ids to bytes.

use crate::encoder::{BytePair, Encoder, SentencePiece};
use crate::end_of_generation::end_of_generation_ids;
use crate::merge::MergeScratch;
use crate::specials::{Found, SpecialMatcher};
use crate::token_bytes::TokenBytes;
use crate::vocabulary::{self, Family, TokenKind, VocabularyData, VocabularyError};
use std::collections::HashMap;
use std::ops::Range;

/// Treatment of control and unknown tokens that are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// Text like any other. For what users write: it cannot forge a turn.
    AsText,
    /// The tokens they spell. For text that the program itself wrote, such as a filled template.
    Parse,
}

/// Treatment of control and unknown tokens in decoding.
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
    /// Tokens in the vocabulary.
    pub tokens: usize,
}

/// Tokens put around a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Additions {
    /// BOS before it.
    pub(crate) bos: bool,
    /// EOS after it.
    pub(crate) eos: bool,
}

/// A checked vocabulary. It is never changed, so threads may share it.
pub struct Tokenizer {
    /// As the caller gave it, with the roles that go without saying, but without the merges and the scores, which are
    /// in tables of their own.
    data: VocabularyData,
    kinds: Vec<TokenKind>,
    adds: Additions,
    end_of_generation: Vec<u32>,
    encoder: Encoder,
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
        let family = vocabulary::check_names(&data)?;
        let kinds = vocabulary::check_kinds(&data, family)?;
        if family == Family::SentencePiece {
            vocabulary::fill_roles(&mut data);
        }
        let adds = vocabulary::check_roles(&data, family)?;
        let bytes = TokenBytes::new(&data, &kinds, family)?;
        let text_ids = bytes.text_ids(&data, &kinds, family);
        let encoder = match family {
            Family::BytePair(pre) => Encoder::BytePair(BytePair {
                pre,
                merges: vocabulary::merge_table(&data, &text_ids)?,
                whole_words: if pre.whole_words_first { text_ids } else { HashMap::new() },
            }),
            Family::SentencePiece => Encoder::SentencePiece(SentencePiece {
                scores: vocabulary::score_table(&data, &kinds, text_ids)?,
                space_prefix: data.add_space_prefix.unwrap_or(true),
            }),
        };
        data.merges = Vec::new();
        data.scores = None;
        let specials = |wanted: &[TokenKind]| {
            let tokens = (0u32..).zip(&data.tokens).zip(&kinds);
            let tokens = tokens.filter(|((id, _), kind)| wanted.contains(kind) && !data.raw_tokens.contains_key(id));
            SpecialMatcher::new(tokens.map(|((id, text), _)| (text.as_str(), id)))
        };
        Ok(Self {
            user_defined: specials(&[TokenKind::UserDefined]),
            all_specials: specials(&[TokenKind::UserDefined, TokenKind::Control, TokenKind::Unknown]),
            end_of_generation: end_of_generation_ids(&data, &kinds),
            data,
            kinds,
            adds,
            encoder,
            bytes,
        })
    }

    /// The tokens of `text`, without BOS and EOS. They decode to `text`, except that some vocabularies put a space before it,
    /// and that those of Qwen compose it first (Unicode's NFC): `e` and U+0301 have the tokens of `é`.
    ///
    /// Control and unknown tokens are recognised only under [`Specials::Parse`]. User-defined tokens always are, as in
    /// llama.cpp. Where several special tokens are spelled, the leftmost counts, and of those the longest. Tokens of
    /// other kinds are never special, however they are spelled.
    ///
    /// A SentencePiece vocabulary may put a space before text that follows nothing or a special token, reads U+2581 as
    /// a space, and lets the unknown token stand for a character that it cannot spell. In a byte-level vocabulary,
    /// bytes without a token ([`Self::missing_bytes`]) are left out, as in llama.cpp. Decoding gives back everything
    /// else; [`Self::detokenize`] also takes away the space at the start.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        match specials {
            Specials::AsText => self.encode_spans(text, &[]),
            Specials::Parse => self.encode_spans(text, std::slice::from_ref(&(0..text.len()))),
        }
    }

    /// As [`Self::encode`], but control and unknown tokens are recognised exactly where they lie within one of
    /// `parsed`: ranges of bytes, ascending, without overlaps. Nothing else depends on the ranges; words and merges go
    /// across their ends.
    pub fn encode_spans(&self, text: &str, parsed: &[Range<usize>]) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_onto(text, parsed, &mut ids);
        ids
    }

    /// The tokens of `text` as the start of a context: with BOS before them if the vocabulary wants it
    /// ([`Self::adds_bos`]) and the text does not start with it already, and with EOS after them if the vocabulary
    /// wants that ([`Self::adds_eos`]).
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Vec<u32> {
        let mut ids = self.begin_with_bos(self.encode(text, specials));
        ids.extend(self.data.eos.filter(|_| self.adds.eos));
        ids
    }

    /// `ids` with BOS before them if the vocabulary wants it and they do not start with it already.
    pub(crate) fn begin_with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.data.bos.filter(|bos| self.adds.bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
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

    /// As [`Self::decode`], for `ids` that are a context from its start: if the first of them starts with the space
    /// that [`Self::encode`] puts before a text, that space is left out, as in llama.cpp.
    ///
    /// # Errors
    ///
    /// If the vocabulary has not all of them; the first that is missing is named.
    pub fn detokenize(&self, ids: &[u32], controls: ControlTokens) -> Result<Vec<u8>, TokenOutOfRange> {
        let mut bytes = self.decode(ids, controls)?;
        let first = ids.first().map_or(Ok(&[] as &[u8]), |&id| self.token_bytes(id, controls))?;
        if self.prefixes_space() && first.starts_with(b" ") {
            bytes.remove(0);
        }
        Ok(bytes)
    }

    /// Size of the vocabulary; ids are below this.
    pub fn token_count(&self) -> usize {
        self.data.tokens.len()
    }

    /// Kind of token `id`.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn token_kind(&self, id: u32) -> Result<TokenKind, TokenOutOfRange> {
        self.index(id).map(|index| self.kinds[index])
    }

    /// Spelling of token `id` in the vocabulary, such as `Ġthe` or `<|im_end|>`.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn token_spelling(&self, id: u32) -> Result<&str, TokenOutOfRange> {
        self.index(id).map(|index| self.data.tokens[index].as_str())
    }

    /// True if token `id` ends a generation: EOS, EOT, EOM, or a control token known to end turns or texts.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// Every id for which [`Self::is_end_of_generation`] holds, ascending.
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// True if a prompt starts with BOS.
    pub fn adds_bos(&self) -> bool {
        self.adds.bos
    }

    /// True if a prompt ends with EOS.
    pub fn adds_eos(&self) -> bool {
        self.adds.eos
    }

    /// True if a space is put before text that follows nothing or a special token.
    pub fn prefixes_space(&self) -> bool {
        self.encoder.prefixes_space()
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

    /// The bytes which text may hold but for which there is no token: rare controls and parts of rare characters.
    pub fn missing_bytes(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|&byte| self.encoder.lacks(byte) && !vocabulary::never_in_utf8(byte)).collect()
    }

    /// The spellings of all tokens that [`Specials::AsText`] leaves as text.
    pub(crate) fn control_spellings(&self) -> impl Iterator<Item = &str> {
        self.data.tokens.iter().zip(&self.kinds).filter(|(_, kind)| kind.steers()).map(|(text, _)| text.as_str())
    }

    fn encode_onto(&self, text: &str, parsed: &[Range<usize>], ids: &mut Vec<u32>) {
        let mut scratch = MergeScratch::default();
        let mut start = 0;
        while start < text.len() {
            let found = self.find_special(text, start, parsed);
            // A spelling is whole characters, so it starts and ends between characters.
            let end = found.map_or(text.len(), |found| found.start);
            if start < end {
                self.encoder.encode(&text[start..end], &mut scratch, ids);
            }
            let Some(found) = found else { return };
            ids.push(found.id);
            start = found.end;
        }
    }

    /// The first special token in `text` at or after byte `from`. Control and unknown ones count only within `parsed`.
    fn find_special(&self, text: &str, from: usize, parsed: &[Range<usize>]) -> Option<Found> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|&start| self.all_specials.starts_with(bytes[start])).find_map(|start| {
            let span = parsed.get(parsed.partition_point(|span| span.end <= start));
            let end = span.filter(|span| span.start <= start).map_or(start, |span| span.end.min(bytes.len()));
            let any = self.all_specials.longest_start_of(&bytes[start..end]);
            let defined = self.user_defined.longest_start_of(&bytes[start..]);
            let (length, id) = match (any, defined) {
                (Some(any), Some(defined)) if defined.0 > any.0 => defined,
                (Some(any), _) => any,
                (None, defined) => defined?,
            };
            Some(Found { start, end: start + length, id })
        })
    }

    fn index(&self, id: u32) -> Result<usize, TokenOutOfRange> {
        let tokens = self.data.tokens.len();
        usize::try_from(id).ok().filter(|index| *index < tokens).ok_or(TokenOutOfRange { id, tokens })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("model", &self.data.model)
            .field("pre", &self.data.pre)
            .field("tokens", &self.token_count())
            .finish_non_exhaustive()
    }
}
