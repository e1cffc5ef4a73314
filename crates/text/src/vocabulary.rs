//! A vocabulary as files describe it, and the checks it must pass before anything is encoded with it.

use crate::byte_alphabet::char_of;
use crate::end_of_generation::is_ending;
use crate::merge::{Merge, MergeTable, NO_TOKEN};
use crate::score_merge::{SPELLED_SPACE, ScoreTable, TOKEN_BYTES_MAX, rank_of_score};
use crate::specials::SPECIAL_BYTES_MAX;
use crate::split::{PreTokenizer, pre_tokenizer_names};
use crate::token_bytes::byte_token;
use crate::tokenizer::Additions;
use std::collections::{BTreeMap, HashMap};

/// A vocabulary, field by field as GGUF names them (`tokenizer.ggml.*`). Plain data, which [`crate::Tokenizer::new`]
/// checks.
#[derive(Clone, Debug)]
pub struct VocabularyData {
    /// `model`: the kind of vocabulary, `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `pre`: how text is cut into words; one of [`crate::pre_tokenizer_names`]. Only for `gpt2`.
    pub pre: Option<String>,
    /// `tokens`: each token's spelling, by id. In `gpt2` bytes are spelled in the GPT-2 alphabet, where `Ġ` is a space;
    /// in `llama` U+2581 is a space.
    pub tokens: Vec<String>,
    /// Spellings in `tokens` that are not UTF-8, by id; `tokens` has anything in their place. Such a token decodes to these
    /// bytes, and text never becomes it.
    pub raw_tokens: BTreeMap<u32, Vec<u8>>,
    /// `token_type`: a number from [`TokenKind`] for each token; without the key every token is normal.
    pub token_types: Option<Vec<i32>>,
    /// `scores`: a number for each token; text becomes tokens of high scores first. Only for `llama`.
    pub scores: Option<Vec<f32>>,
    /// `merges`: pairs of tokens, lowest rank first, each as `left right`. Only for `gpt2`.
    pub merges: Vec<String>,
    /// `bos_token_id`: the beginning of a text. Without the key, `llama` has 1.
    pub bos: Option<u32>,
    /// `eos_token_id`: the end of a text. Without the key, `llama` has 2.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: the end of a message within a turn.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `add_bos_token`: whether a prompt starts with BOS. Without the key, `pre` decides; in `llama` it does.
    pub add_bos: Option<bool>,
    /// `add_eos_token`: whether a prompt ends with EOS. Without the key it does not.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: whether a space is put before text that follows nothing or a special token. Only for
    /// `llama`, where it is without the key.
    pub add_space_prefix: Option<bool>,
}

/// Kind of a token, with GGUF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// No kind stated; treated as [`Self::Normal`].
    Undefined = 0,
    /// A piece of text.
    Normal = 1,
    /// Stands for what cannot be encoded.
    Unknown = 2,
    /// Steers the model, such as the end of a turn. Text becomes one only where the caller allows it.
    Control = 3,
    /// Text that always becomes this one token, before words are cut.
    UserDefined = 4,
    /// Unused; treated as [`Self::Normal`].
    Unused = 5,
    /// A byte spelled `<0x00>` to `<0xFF>`. In SentencePiece vocabularies tokens spelled so are of this kind whatever type
    /// the file states, unless another of that type stands for the byte.
    Byte = 6,
}

impl TokenKind {
    /// The kind with GGUF's number `value`.
    pub fn from_gguf(value: i32) -> Option<Self> {
        let all =
            [Self::Undefined, Self::Normal, Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte];
        all.into_iter().find(|kind| *kind as i32 == value)
    }

    /// True for control and unknown tokens, which are no part of the text that users write and read.
    pub(crate) fn steers(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// Reasons to refuse a vocabulary. Every variant is the fault of the file that it came from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// Neither a byte-level BPE nor a SentencePiece vocabulary.
    #[error("tokenizer model `{model}` is not supported (supported: gpt2, llama)")]
    UnknownModel {
        /// `tokenizer.ggml.model` of the file.
        model: String,
    },
    /// Words would be cut in a way this crate does not know, and the model would read other tokens than it was taught.
    #[error("pre-tokenizer `{pre}` is not supported (supported: {})", pre_tokenizer_names())]
    UnknownPreTokenizer {
        /// `tokenizer.ggml.pre` of the file.
        pre: String,
    },
    /// The file does not say how to cut words.
    #[error("the vocabulary names no pre-tokenizer (supported: {})", pre_tokenizer_names())]
    MissingPreTokenizer,
    /// Ids and ranks are 32-bit numbers.
    #[error("{count} {what} are too many: at most {max} fit")]
    TooMany {
        /// `tokens` or `merges`.
        what: &'static str,
        /// Entries in the list.
        count: usize,
        /// Most entries allowed.
        max: u32,
    },
    /// The lists are not of one length.
    #[error("{tokens} tokens but {types} token types")]
    TokenTypeCount {
        /// Length of the list of tokens.
        tokens: usize,
        /// Length of the list of types.
        types: usize,
    },
    /// A SentencePiece vocabulary without scores does not say what to merge first.
    #[error("the vocabulary has no token scores")]
    MissingScores,
    /// The lists are not of one length.
    #[error("{tokens} tokens but {scores} token scores")]
    ScoreCount {
        /// Length of the list of tokens.
        tokens: usize,
        /// Length of the list of scores.
        scores: usize,
    },
    /// A score that is not a number has no place in any order.
    #[error("the score of token {id} is not a number")]
    ScoreIsNan {
        /// The token.
        id: u32,
    },
    /// A token's type is not one of GGUF's.
    #[error("token {id} has the unknown type {value} (known: 0 to 6)")]
    UnknownTokenType {
        /// The token.
        id: u32,
        /// Its type.
        value: i32,
    },
    /// A token of type byte is not spelled like one.
    #[error("token {id} is of type byte but spelled `{text}`, not `<0x00>` to `<0xFF>`")]
    MalformedByteToken {
        /// The token.
        id: u32,
        /// Its spelling.
        text: String,
    },
    /// A special token is longer than texts are searched for.
    #[error("special token {id} has {bytes} bytes, more than {max}")]
    SpecialTooLong {
        /// The token.
        id: u32,
        /// Length of its spelling.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A SentencePiece token is longer than texts are searched for.
    #[error("token {id} has {bytes} bytes, more than {max}")]
    TokenTooLong {
        /// The token.
        id: u32,
        /// Length of its spelling.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A token with a role is not in the vocabulary.
    #[error("the {role} token is {id}, but there are only {tokens} tokens")]
    RoleOutOfRange {
        /// `bos`, `eos` and so on.
        role: &'static str,
        /// The id that the file gives.
        id: u32,
        /// Length of the list of tokens.
        tokens: usize,
    },
    /// Prompts are to start with a token that the file does not name.
    #[error("the vocabulary wants BOS added to prompts but names no BOS token")]
    MissingBos,
    /// Prompts are to end with a token that the file does not name.
    #[error("the vocabulary wants EOS added to prompts but names no EOS token")]
    MissingEos,
    /// A merge is not two spellings with a space between them.
    #[error("merge {index} is `{merge}`, not two tokens with a space between")]
    MalformedMerge {
        /// Index in the list of merges.
        index: usize,
        /// Text of the merge.
        merge: String,
    },
    /// A merge names a token that does not exist, or that plain text must not become.
    #[error("merge {index} needs the token `{text}`, which the vocabulary does not have as text")]
    MergeTokenMissing {
        /// Index in the list of merges.
        index: usize,
        /// The part or the result that is missing.
        text: String,
    },
    /// A byte-level vocabulary has no token for a printable ASCII character or the newline. A SentencePiece vocabulary
    /// has none for the space, or none for some byte of text and no unknown token either.
    #[error("byte {byte:#04x} has no token")]
    MissingByte {
        /// The lowest byte that has none.
        byte: u8,
    },
}

/// Bytes that valid UTF-8 never holds; no text needs their tokens.
pub(crate) fn never_in_utf8(byte: u8) -> bool {
    matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff)
}

/// The kind of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// GGUF's `gpt2`, with its way of cutting words.
    BytePair(PreTokenizer),
    /// GGUF's `llama`.
    SentencePiece,
}

/// The kind of vocabulary that `data` names.
pub(crate) fn check_names(data: &VocabularyData) -> Result<Family, VocabularyError> {
    match data.model.as_str() {
        "gpt2" => {
            let pre = data.pre.as_ref().ok_or(VocabularyError::MissingPreTokenizer)?;
            let known = PreTokenizer::named(pre).map(Family::BytePair);
            known.ok_or_else(|| VocabularyError::UnknownPreTokenizer { pre: pre.clone() })
        }
        "llama" => Ok(Family::SentencePiece),
        _ => Err(VocabularyError::UnknownModel { model: data.model.clone() }),
    }
}

/// Gives a SentencePiece vocabulary the roles that its files need not name. Source: llama.cpp's defaults.
pub(crate) fn fill_roles(data: &mut VocabularyData) {
    let existing = |id: u32| Some(id).filter(|&id| usize::try_from(id).is_ok_and(|id| id < data.tokens.len()));
    (data.bos, data.eos) = (data.bos.or(existing(1)), data.eos.or(existing(2)));
}

/// The kind of every token, after checking that ids fit and that special tokens are short enough to search for.
///
/// A user-defined token that ends turns or texts is a control token, as in llama.cpp: users could end a turn by it.
pub(crate) fn check_kinds(data: &VocabularyData, family: Family) -> Result<Vec<TokenKind>, VocabularyError> {
    let mut kinds = stated_kinds(data)?;
    if family == Family::SentencePiece {
        find_bytes(data, &mut kinds);
    }
    Ok(kinds)
}

/// Makes byte tokens of those that are spelled so, whatever their type, where no token of type byte stands for the byte:
/// published files have them as plain text, and the types may be absent.
fn find_bytes(data: &VocabularyData, kinds: &mut [TokenKind]) {
    let spelled = || data.tokens.iter().enumerate().filter_map(|(index, text)| Some((index, byte_token(text)?)));
    let mut known = [false; 256];
    for (index, byte) in spelled() {
        known[usize::from(byte)] |= kinds[index] == TokenKind::Byte;
    }
    for (index, byte) in spelled() {
        if !std::mem::replace(&mut known[usize::from(byte)], true) {
            kinds[index] = TokenKind::Byte;
        }
    }
}

/// The kinds that the file states.
fn stated_kinds(data: &VocabularyData) -> Result<Vec<TokenKind>, VocabularyError> {
    let tokens = data.tokens.len();
    fits("tokens", tokens)?;
    fits("merges", data.merges.len())?;
    let Some(types) = &data.token_types else { return Ok(vec![TokenKind::Normal; tokens]) };
    if types.len() != tokens {
        return Err(VocabularyError::TokenTypeCount { tokens, types: types.len() });
    }
    let kinds = (0u32..)
        .zip(types)
        .map(|(id, &value)| TokenKind::from_gguf(value).ok_or(VocabularyError::UnknownTokenType { id, value }));
    let mut kinds = kinds.collect::<Result<Vec<TokenKind>, _>>()?;
    for ((id, text), kind) in (0u32..).zip(&data.tokens).zip(&mut kinds) {
        if *kind == TokenKind::UserDefined && is_ending(text) {
            *kind = TokenKind::Control;
        }
        if matches!(kind, TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined)
            && text.len() > SPECIAL_BYTES_MAX
        {
            return Err(VocabularyError::SpecialTooLong { id, bytes: text.len(), max: SPECIAL_BYTES_MAX });
        }
    }
    Ok(kinds)
}

/// Checks that every token with a role exists. What prompts get besides their text.
pub(crate) fn check_roles(data: &VocabularyData, family: Family) -> Result<Additions, VocabularyError> {
    let roles = [("bos", data.bos), ("eos", data.eos), ("eot", data.eot), ("eom", data.eom), ("unknown", data.unknown)];
    let tokens = data.tokens.len();
    for (role, id) in roles {
        if let Some(id) = id
            && usize::try_from(id).is_ok_and(|id| id >= tokens)
        {
            return Err(VocabularyError::RoleOutOfRange { role, id, tokens });
        }
    }
    let adds_bos_unasked = match family {
        Family::BytePair(pre) => pre.adds_bos && data.bos.is_some(),
        Family::SentencePiece => data.bos.is_some(),
    };
    let adds = Additions { bos: data.add_bos.unwrap_or(adds_bos_unasked), eos: data.add_eos.unwrap_or(false) };
    match (data.bos, data.eos) {
        (None, _) if adds.bos => Err(VocabularyError::MissingBos),
        (_, None) if adds.eos => Err(VocabularyError::MissingEos),
        _ => Ok(adds),
    }
}

/// The scores and the bytes, for the tokens `text_ids` that text may become.
pub(crate) fn score_table(
    data: &VocabularyData,
    kinds: &[TokenKind],
    text_ids: HashMap<String, u32>,
) -> Result<ScoreTable, VocabularyError> {
    let scores = data.scores.as_ref().ok_or(VocabularyError::MissingScores)?;
    if scores.len() != data.tokens.len() {
        return Err(VocabularyError::ScoreCount { tokens: data.tokens.len(), scores: scores.len() });
    }
    let (mut tokens, mut longest) = (HashMap::with_capacity(text_ids.len()), 0);
    let mut byte_ids = [NO_TOKEN; 256];
    for (((id, text), score), kind) in (0u32..).zip(&data.tokens).zip(scores).zip(kinds) {
        if score.is_nan() {
            return Err(VocabularyError::ScoreIsNan { id });
        }
        if *kind == TokenKind::Byte
            && let Some(byte) = byte_token(text)
            && byte_ids[usize::from(byte)] == NO_TOKEN
        {
            byte_ids[usize::from(byte)] = id;
        }
        if text_ids.get(text) == Some(&id) {
            if text.len() > TOKEN_BYTES_MAX {
                return Err(VocabularyError::TokenTooLong { id, bytes: text.len(), max: TOKEN_BYTES_MAX });
            }
            longest = longest.max(text.len());
            tokens.insert(text.clone(), Merge { rank: rank_of_score(*score), result: id });
        }
    }
    if !tokens.contains_key(SPELLED_SPACE.encode_utf8(&mut [0; 4]) as &str) {
        // As bytes the spelling of a space would not decode to a space.
        return Err(VocabularyError::MissingByte { byte: b' ' });
    }
    let missing = (0..=u8::MAX).find(|&byte| byte_ids[usize::from(byte)] == NO_TOKEN && !never_in_utf8(byte));
    match (missing, data.unknown) {
        (Some(byte), None) => Err(VocabularyError::MissingByte { byte }),
        (_, unknown) => Ok(ScoreTable { tokens, longest, byte_ids, unknown }),
    }
}

/// The merges, with every part and result looked up in `text_ids`. Of equal pairs the first counts.
pub(crate) fn merge_table(
    data: &VocabularyData,
    text_ids: &HashMap<String, u32>,
) -> Result<MergeTable, VocabularyError> {
    let mut byte_ids = [NO_TOKEN; 256];
    for byte in 0..=u8::MAX {
        match text_ids.get(char_of(byte).encode_utf8(&mut [0; 4]) as &str) {
            Some(&id) => byte_ids[usize::from(byte)] = id,
            None if matches!(byte, b'\n' | b' '..=b'~') => return Err(VocabularyError::MissingByte { byte }),
            None => {}
        }
    }
    let mut merges = HashMap::with_capacity(data.merges.len());
    let mut joined = String::new();
    for ((index, merge), rank) in data.merges.iter().enumerate().zip(0u32..) {
        let (left, right) =
            merge_parts(merge).ok_or_else(|| VocabularyError::MalformedMerge { index, merge: merge.clone() })?;
        let id_of = |text: &str| {
            let missing = || VocabularyError::MergeTokenMissing { index, text: text.to_owned() };
            text_ids.get(text).copied().ok_or_else(missing)
        };
        joined.clear();
        joined.extend([left, right]);
        let result = id_of(&joined)?;
        merges.entry((id_of(left)?, id_of(right)?)).or_insert(Merge { rank, result });
    }
    Ok(MergeTable { byte_ids, merges })
}

/// Ids and ranks stay below [`NO_TOKEN`].
fn fits(what: &'static str, count: usize) -> Result<(), VocabularyError> {
    match u32::try_from(count) {
        Ok(count) if count < NO_TOKEN => Ok(()),
        _ => Err(VocabularyError::TooMany { what, count, max: NO_TOKEN - 1 }),
    }
}

/// The two parts of a merge. The space between them is the first after index 0: a part may itself be a space.
fn merge_parts(merge: &str) -> Option<(&str, &str)> {
    let space = 1 + merge.as_bytes().get(1..)?.iter().position(|&byte| byte == b' ')?;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_split_at_the_first_space_after_index_0() {
        assert_eq!(merge_parts("a b"), Some(("a", "b")));
        assert_eq!(merge_parts("  b"), Some((" ", "b")));
        assert_eq!(merge_parts("é ü"), Some(("é", "ü")));
        assert_eq!(merge_parts("a b c"), Some(("a", "b c")));
        for malformed in ["", " ", "a", "ab", "a ", " b"] {
            assert_eq!(merge_parts(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn kinds_have_the_numbers_of_gguf() {
        assert_eq!(TokenKind::from_gguf(3), Some(TokenKind::Control));
        assert_eq!(TokenKind::from_gguf(4), Some(TokenKind::UserDefined));
        assert_eq!((TokenKind::from_gguf(-1), TokenKind::from_gguf(7)), (None, None));
    }
}
