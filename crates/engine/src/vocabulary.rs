//! From a model file's tokenizer keys to a tokenizer.

use muser_text::{Tokenizer, VocabularyData, VocabularyError};
use muser_weights::gguf::{Metadata, MetadataError, Optional};
use std::collections::BTreeMap;

/// Error of [`load_tokenizer`]: the file's vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabularyLoadError {
    /// A key is missing or malformed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The vocabulary contradicts itself or needs a tokenizer that muser does not have.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// Text would turn into tokens the model does not have, or the reverse.
    #[error("the tokenizer has {tokens} tokens, the model {vocab}")]
    Size {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Tokens of the model.
        vocab: usize,
    },
}

/// The tokenizer of a file whose model has `vocab` tokens.
///
/// # Errors
/// [`VocabularyLoadError`] names the key or the contradiction.
pub fn load_tokenizer(metadata: &Metadata<'_>, vocab: usize) -> Result<Tokenizer, VocabularyLoadError> {
    let strings = |key: &str| -> Result<Vec<String>, MetadataError> {
        Ok(metadata.strs(key)?.into_iter().map(str::to_owned).collect())
    };
    let id = |name: &str| metadata.u32(&format!("tokenizer.ggml.{name}_token_id")).optional();
    let mut raw_tokens = BTreeMap::new();
    let tokens = spellings(metadata, &mut raw_tokens)?;
    if tokens.len() != vocab {
        return Err(VocabularyLoadError::Size { tokens: tokens.len(), vocab });
    }
    Ok(Tokenizer::new(VocabularyData {
        model: metadata.str("tokenizer.ggml.model")?.to_owned(),
        pre: metadata.str("tokenizer.ggml.pre").optional()?.map(str::to_owned),
        tokens,
        raw_tokens,
        token_types: metadata.i32s("tokenizer.ggml.token_type").optional()?,
        scores: metadata.f32s("tokenizer.ggml.scores").optional()?,
        merges: strings("tokenizer.ggml.merges").optional()?.unwrap_or_default(),
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        add_bos: metadata.bool("tokenizer.ggml.add_bos_token").optional()?,
        add_eos: metadata.bool("tokenizer.ggml.add_eos_token").optional()?,
        add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix").optional()?,
    })?)
}

/// The spellings of all tokens; those that are not UTF-8 go to `raw`, by id.
fn spellings(metadata: &Metadata<'_>, raw: &mut BTreeMap<u32, Vec<u8>>) -> Result<Vec<String>, MetadataError> {
    let spelled = metadata.byte_strings("tokenizer.ggml.tokens")?;
    let readable = (0..).zip(spelled).map(|(id, bytes)| match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            raw.insert(id, bytes.to_vec());
            String::from_utf8_lossy(bytes).into_owned()
        }
    });
    Ok(readable.collect())
}
