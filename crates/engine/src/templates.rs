//! From a model file's chat templates to compiled ones.

use muser_text::{ChatError, ChatTemplates};
use muser_weights::gguf::{Metadata, MetadataError, Optional};

/// The key of the main template; those for a purpose have its name, a dot and theirs.
const MAIN: &str = "tokenizer.chat_template";

/// Error of [`load_templates`]: a chat template of the file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplatesLoadError {
    /// A key is malformed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A template is refused.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

/// The source of the main template, if the file has one.
///
/// # Errors
/// If its key has another type.
pub fn main_template<'a>(metadata: &Metadata<'a>) -> Result<Option<&'a str>, MetadataError> {
    metadata.str(MAIN).optional()
}

/// All templates of a file, compiled; there may be none.
///
/// # Errors
/// [`TemplatesLoadError`] of the first template that is refused.
pub fn load_templates(metadata: &Metadata<'_>) -> Result<ChatTemplates, TemplatesLoadError> {
    let named = metadata
        .iter()
        .filter_map(|(key, _)| Some((key.strip_prefix(MAIN)?.strip_prefix('.')?, key)))
        .map(|(name, key)| Ok((name, metadata.str(key)?)))
        .collect::<Result<Vec<_>, MetadataError>>()?;
    Ok(ChatTemplates::new(main_template(metadata)?, named)?)
}
