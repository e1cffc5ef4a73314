//! Messages as clients write them, rendered through the model's chat template.

use std::time::{Duration, Instant};

use muser_text::{ChatError, ChatOptions, ChatTemplate, Deadline, LocalTime, RENDERER_NAMES, Rendered};
use serde_json::{Map, Value};

use crate::app::seconds_since_1970;
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::limits::{Bounds, MESSAGES_MAX};
use crate::messages::checked;
use crate::service::{Service, Words};

/// Time limit of rendering the template. The renderer's own budget ends it far sooner; this one holds on a machine that
/// is short of processors, too.
const FILLING_MAX: Duration = Duration::from_secs(20);

/// Fields that are variables of templates which mention them, each with its neutral value.
const EFFORTS: [(&str, &str); 2] = [("reasoning_effort", "none"), ("verbosity", "medium")];

/// A conversation with the options of its rendering.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Value>,
    /// True if the rendered text ends with the start of the assistant's answer.
    add_generation_prompt: bool,
    /// Further variables of the template, from `chat_template_kwargs`.
    variables: Map<String, Value>,
    /// Values of the fields in [`EFFORTS`] that are not neutral, by field name.
    efforts: Vec<(&'static str, String)>,
}

impl Conversation {
    /// Takes the fields.
    ///
    /// # Errors
    /// If there is no message, or there are too many, or a variable would replace what the renderer gives.
    pub fn take(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let messages: Vec<Value> = fields.require_bounded("messages", Bounds::MESSAGES)?;
        if messages.is_empty() {
            return Err(ApiError::invalid("messages: is empty, and needs at least one message"));
        }
        if messages.len() > MESSAGES_MAX {
            let count = messages.len();
            return Err(ApiError::invalid(format!("messages: has {count} messages, at most {MESSAGES_MAX} are taken")));
        }
        fields.unsupported("continue_final_message", |value| *value == Value::Bool(false))?;
        let variables: Map<String, Value> =
            fields.take_bounded("chat_template_kwargs", Bounds::TEMPLATE_VARIABLES)?.unwrap_or_default();
        if let Some(name) = variables.keys().find(|name| RENDERER_NAMES.contains(&name.as_str())) {
            let message = format!("chat_template_kwargs.{name}: the renderer keeps this name for itself");
            return Err(ApiError::invalid(message));
        }
        let mut efforts = Vec::new();
        for (name, nothing) in EFFORTS {
            efforts
                .extend(fields.take::<String>(name)?.filter(|effort| effort != nothing).map(|effort| (name, effort)));
        }
        Ok(Self {
            messages,
            add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
            variables,
            efforts,
        })
    }

    /// The template's text.
    ///
    /// # Errors
    /// If a message is malformed, there is no template, or it refuses the conversation or would drop some of it.
    pub fn render(self, words: &Words) -> Result<Rendered, ApiError> {
        let template = template(words);
        let checked = checked(self.messages, template.as_ref().ok().copied())?;
        let template = template?;
        let mut variables = self.variables;
        for (name, effort) in self.efforts {
            if !template.mentions(name) {
                return Err(ApiError::invalid(format!("{name}: the model's chat template does not read it")));
            }
            variables.entry(name).or_insert(effort.into());
        }
        let now = i64::try_from(seconds_since_1970()).unwrap_or(0);
        let end = Instant::now() + FILLING_MAX;
        let options = ChatOptions {
            add_generation_prompt: self.add_generation_prompt,
            variables,
            now: Some(LocalTime::from_seconds(now)),
            deadline: Some(Deadline::new(move || Instant::now() >= end)),
            ..ChatOptions::default()
        };
        let rendered = template.render(&words.tokenizer, &checked.messages, &options)?;
        checked.check_calls_are_told(template, rendered.text())?;
        Ok(rendered)
    }

    /// The conversation's tokens. Control tokens come from the template alone, whatever the messages say.
    ///
    /// # Errors
    /// As [`Self::render`], and if the text cannot fit the context.
    pub fn tokens(self, service: &Service) -> Result<Vec<u32>, ApiError> {
        let rendered = self.render(&service.words)?;
        service.prompt_limits().check_text(rendered.text().len())?;
        Ok(rendered.encode(service.tokenizer()))
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

#[cfg(test)]
mod tests;
