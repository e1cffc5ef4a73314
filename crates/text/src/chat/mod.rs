//! Chat templates: messages to the text a model was taught to read, and to its tokens.
//!
//! Templates are Jinja, which is read and filled within bounds (`jinja`), with the settings and extras of Hugging
//! Face's `transformers` that model makers count on. The rendered text is only partly trusted: the template writes
//! control tokens, and the messages must not. So the messages are traced through the template (`marks`), and
//! [`Rendered`] says which parts of its text the template wrote; only there control tokens are parsed. If a message
//! cannot be traced, less is trusted, never more; see [`Tracing`].

mod jinja;
mod local_time;
mod marks;
mod patterns;
mod template;

pub use local_time::LocalTime;
pub use template::{
    ChatError, ChatMessage, ChatOptions, ChatTemplate, ChatTemplates, Deadline, RENDERER_NAMES, Rendered, Tracing,
};

use crate::tokenizer::Tokenizer;

/// The tokens of a conversation, filled into `template`: with BOS before them if the vocabulary wants it and the
/// template did not write it, and without EOS after them unless the template wrote it.
///
/// Control tokens come from the template alone, however messages, tools and variables are spelled. Otherwise the tokens
/// are those of [`Rendered::text`].
///
/// # Errors
///
/// See [`ChatError`].
pub fn encode_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[ChatMessage],
    options: &ChatOptions,
) -> Result<Vec<u32>, ChatError> {
    Ok(template.render(tokenizer, messages, options)?.encode(tokenizer))
}
