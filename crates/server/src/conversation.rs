//! Messages as clients write them, and what the model's template makes of them.

use muser_text::{ChatError, ChatOptions, ChatTemplate, LocalTime, Message, Rendered};
use serde_json::{Map, Value};

use crate::app::seconds_since_1970;
use crate::error::{ApiError, ErrorKind};
use crate::fields::{Fields, FromField};
use crate::limits::{Bounds, MESSAGES_MAX};
use crate::service::Words;

/// A conversation, and how it is to be filled into the template.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    /// Whether the text ends with the start of the model's answer.
    add_generation_prompt: bool,
    /// What the template is told besides.
    variables: Map<String, Value>,
}

impl Conversation {
    /// Takes the fields.
    ///
    /// # Errors
    /// If there is no message, or one is malformed or holds what is no text.
    pub fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let messages: Vec<Value> = fields.require_bounded("messages", Bounds::MESSAGES)?;
        if messages.is_empty() {
            return Err(ApiError::invalid("messages: is empty, and needs at least one message"));
        }
        if messages.len() > MESSAGES_MAX {
            let count = messages.len();
            return Err(ApiError::invalid(format!("messages: has {count} messages, at most {MESSAGES_MAX} are taken")));
        }
        let messages =
            messages.into_iter().enumerate().map(|(index, value)| message(index, value)).collect::<Result<_, _>>()?;
        fields.unsupported("continue_final_message", |value| *value == Value::Bool(false))?;
        Ok(Self {
            messages,
            add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
            variables: fields.take_bounded("chat_template_kwargs", Bounds::TEMPLATE_VARIABLES)?.unwrap_or_default(),
        })
    }

    /// The template's text.
    ///
    /// # Errors
    /// If there is no template, or it refuses the conversation.
    pub fn render(&self, words: &Words) -> Result<Rendered, ApiError> {
        let now = i64::try_from(seconds_since_1970()).unwrap_or(0);
        let options = ChatOptions {
            add_generation_prompt: self.add_generation_prompt,
            variables: self.variables.clone(),
            now: Some(LocalTime::from_seconds(now)),
            ..ChatOptions::default()
        };
        Ok(template(words)?.render(&words.tokenizer, &self.messages, &options)?)
    }

    /// The conversation's tokens. Control tokens come from the template alone, whatever the messages say.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn tokens(&self, words: &Words) -> Result<Vec<u32>, ApiError> {
        Ok(self.render(words)?.encode(&words.tokenizer))
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        let kind = match error {
            ChatError::NoTemplate | ChatError::Syntax { .. } => ErrorKind::NotSupported,
            _ => ErrorKind::InvalidRequest,
        };
        Self::new(kind, error.to_string())
    }
}

fn template(words: &Words) -> Result<&ChatTemplate, ApiError> {
    match &words.templates {
        Ok(templates) => Ok(templates.choose(None, &Value::Null)?),
        Err(reason) => Err(ApiError::new(ErrorKind::NotSupported, reason.clone())),
    }
}

/// A message with its content as one text; other fields stay for templates that look for them.
fn message(index: usize, value: Value) -> Result<Message, ApiError> {
    let Some(mut fields) = Map::from_field(value) else {
        return Err(ApiError::invalid(format!("messages[{index}]: needs an object")));
    };
    match fields.get_mut("role") {
        // OpenAI's newer name, which templates do not know.
        Some(Value::String(role)) if role == "developer" => "system".clone_into(role),
        Some(Value::String(_)) => {}
        _ => return Err(ApiError::invalid(format!("messages[{index}].role: needs a string"))),
    }
    let content = match fields.remove("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => text_of(index, parts)?,
        Some(_) => {
            return Err(ApiError::invalid(format!(
                "messages[{index}].content: needs a string, an array of parts, or null"
            )));
        }
    };
    fields.insert("content".into(), content.into());
    Ok(Message::from_fields(fields))
}

/// The texts of a content's parts, a line break between them.
fn text_of(message: usize, parts: Vec<Value>) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("messages[{message}].content[{index}]");
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(text)) => texts.push(text.to_owned()),
            (Some("text"), None) => return Err(ApiError::invalid(format!("{place}.text: needs a string"))),
            (Some(other), _) => {
                let other: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(format!(
                    "{place}: parts of type {other:?} are not supported, only text"
                )));
            }
            (None, _) => return Err(ApiError::invalid(format!("{place}.type: needs a string"))),
        }
    }
    Ok(texts.join("\n"))
}
