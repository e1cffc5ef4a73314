//! Messages of a conversation as clients write them: their fields, and tool calls with the messages that answer them.

use std::collections::HashSet;

use muser_text::{ChatMessage, ChatTemplate};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::FromField;

/// Roles of messages. `developer` is OpenAI's newer name of `system`, which templates do not know.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Fields that messages may have besides those that the model's template reads. Of these, `name` and
/// `reasoning_content` reach only templates that read them, and `annotations` none.
const FIELDS: [&str; 8] =
    ["role", "content", "name", "refusal", "tool_calls", "tool_call_id", "reasoning_content", "annotations"];

/// Fields of a content's part. `cache_control` marks a place for caches, which need no marks here.
const PART_FIELDS: [&str; 4] = ["type", "text", "refusal", "cache_control"];

/// Messages that were checked.
#[derive(Debug)]
pub struct Checked {
    /// The messages, with their contents as one text each.
    pub messages: Vec<ChatMessage>,
    /// Names of the functions that are called, each with the index of its message.
    calls: Vec<(usize, String)>,
}

/// Ids and names of calls.
#[derive(Debug, Default)]
struct Calls {
    ids: HashSet<String>,
    names: Vec<(usize, String)>,
}

/// Checks `messages`. Fields that are null count as absent.
///
/// # Errors
/// If one is malformed, holds what is no text, or has a field that neither clients nor `template` know; or answers a call
/// that none before it made.
pub fn checked(messages: Vec<Value>, template: Option<&ChatTemplate>) -> Result<Checked, ApiError> {
    let mut calls = Calls::default();
    let mut checked = Vec::with_capacity(messages.len());
    for (index, value) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        let Some(mut fields) = Map::from_field(value) else {
            return Err(ApiError::invalid(format!("{place}: needs an object")));
        };
        fields.retain(|_, value| !value.is_null());
        let known = |name: &str| FIELDS.contains(&name) || template.is_some_and(|template| template.mentions(name));
        if let Some(name) = fields.keys().find(|name| !known(name)) {
            let name: String = name.chars().take(60).collect();
            let message = format!("{place}: there is no field {name:?}, and the model's chat template reads none");
            return Err(ApiError::invalid(message));
        }
        check_role(&place, &mut fields)?;
        calls.check(index, &fields)?;
        let content = content(&place, &mut fields)?;
        fields.insert("content".into(), content.into());
        checked.push(ChatMessage::from_fields(fields));
    }
    Ok(Checked { messages: checked, calls: calls.names })
}

fn check_role(place: &str, fields: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(Value::String(role)) = fields.get_mut("role") else {
        return Err(ApiError::invalid(format!("{place}.role: needs a string")));
    };
    if !ROLES.contains(&role.as_str()) {
        let shown: String = role.chars().take(40).collect();
        return Err(ApiError::invalid(format!("{place}.role: {shown:?} is none of {}", ROLES.join(", "))));
    }
    if role == "developer" {
        "system".clone_into(role);
    }
    Ok(())
}

impl Calls {
    /// Adds the calls of the message at `index`, and checks the call that it answers.
    fn check(&mut self, index: usize, fields: &Map<String, Value>) -> Result<(), ApiError> {
        let place = format!("messages[{index}]");
        let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
        if let Some(calls) = fields.get("tool_calls") {
            let Some(calls) = calls.as_array() else {
                return Err(ApiError::invalid(format!("{place}.tool_calls: needs an array")));
            };
            if role != "assistant" && !calls.is_empty() {
                return Err(ApiError::invalid(format!("{place}.tool_calls: only the assistant calls tools")));
            }
            for (at, call) in calls.iter().enumerate() {
                let Some(name) = name_of(call) else {
                    let place = format!("{place}.tool_calls[{at}].function.name");
                    return Err(ApiError::invalid(format!("{place}: needs a string")));
                };
                self.names.push((index, name.to_owned()));
                self.ids.extend(call.get("id").and_then(Value::as_str).map(str::to_owned));
            }
        }
        let place = format!("{place}.tool_call_id");
        match fields.get("tool_call_id") {
            None => Ok(()),
            Some(Value::String(_)) if role != "tool" => {
                Err(ApiError::invalid(format!("{place}: only messages of the role tool answer a call")))
            }
            Some(Value::String(id)) if self.ids.contains(id) => Ok(()),
            Some(Value::String(id)) => {
                let shown: String = id.chars().take(60).collect();
                Err(ApiError::invalid(format!("{place}: no message before it has a call with the id {shown:?}")))
            }
            Some(_) => Err(ApiError::invalid(format!("{place}: needs a string"))),
        }
    }
}

/// The name of the function that is called; templates and older clients know the shape without `function` as well.
fn name_of(call: &Value) -> Option<&str> {
    call.get("function").unwrap_or(call).get("name")?.as_str()
}

impl Checked {
    /// Checks that the calls are in the `text` that `template` made of the messages.
    ///
    /// # Errors
    /// If one is not.
    pub fn check_calls_are_told(&self, template: &ChatTemplate, text: &str) -> Result<(), ApiError> {
        let is_told = |name: &str| template.mentions("tool_calls") && text.contains(name);
        match self.calls.iter().find(|(_, name)| !is_told(name)) {
            None => Ok(()),
            Some((index, _)) => {
                let message = format!("messages[{index}].tool_calls: the model's chat template has no tool calls");
                Err(ApiError::invalid(message))
            }
        }
    }
}

/// The content as one text, with a refusal after it.
fn content(place: &str, fields: &mut Map<String, Value>) -> Result<String, ApiError> {
    let mut texts = match fields.remove("content") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(parts)) => texts_of(place, parts, fields.get("role"))?,
        Some(_) => {
            return Err(ApiError::invalid(format!("{place}.content: needs a string, an array of parts, or null")));
        }
    };
    match fields.remove("refusal") {
        None => {}
        Some(Value::String(refusal)) if fields.get("role").is_some_and(|role| role == "assistant") => {
            texts.retain(|text| !text.is_empty());
            texts.push(refusal);
        }
        Some(_) => {
            return Err(ApiError::invalid(format!("{place}.refusal: needs a string, and an assistant's message")));
        }
    }
    Ok(texts.join("\n"))
}

/// The texts of a content's parts.
fn texts_of(place: &str, parts: Vec<Value>, role: Option<&Value>) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}.content[{index}]");
        let kind = match part.get("type").and_then(Value::as_str) {
            None => return Err(ApiError::invalid(format!("{place}.type: needs a string"))),
            Some("text") => "text",
            Some("refusal") if role.is_some_and(|role| role == "assistant") => "refusal",
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                let message = format!("{place}: parts of type {other:?} are not supported, only text");
                return Err(ApiError::invalid(message));
            }
        };
        let names = part.as_object().into_iter().flatten();
        let unknown =
            names.filter(|(_, value)| !value.is_null()).find(|(name, _)| !PART_FIELDS.contains(&name.as_str()));
        if let Some((name, _)) = unknown {
            let name: String = name.chars().take(60).collect();
            return Err(ApiError::invalid(format!("{place}: there is no field {name:?}")));
        }
        match part.get(kind).and_then(Value::as_str) {
            Some(text) => texts.push(text.to_owned()),
            None => return Err(ApiError::invalid(format!("{place}.{kind}: needs a string"))),
        }
    }
    Ok(texts)
}
