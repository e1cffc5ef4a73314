//! Prompts as clients write them: text, token ids, both in a row, or several prompts.

use muser_text::{ControlTokens, Specials, Tokenizer};
use serde_json::Value;

use crate::error::ApiError;

/// The prompts of `field`: a string, an array of ids, an array of ids and strings, or an array of such prompts. An array of
/// strings alone is several prompts.
///
/// Control tokens that are spelled in a text count as such: this is the raw route, and the caller writes the whole text.
/// The vocabulary's BOS comes before a prompt that begins with text, if the vocabulary wants it.
///
/// # Errors
/// If it is something else, an id is no token, or there is no prompt.
pub fn prompts(tokenizer: &Tokenizer, field: &'static str, value: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
    each(value).iter().map(|value| one_prompt(tokenizer, field, value)).collect()
}

/// The prompts of [`prompts`], which gave them `ids`, as the client wrote them: text as it is, whatever the tokenizer made of
/// it, ids as what they stand for, and the BOS that was put before.
pub fn as_written(tokenizer: &Tokenizer, value: &Value, ids: &[Vec<u32>]) -> Vec<String> {
    each(value).iter().zip(ids).map(|(value, ids)| one_as_written(tokenizer, value, ids)).collect()
}

/// The values of the single prompts.
fn each(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) if values.iter().all(Value::is_string) || values.iter().all(Value::is_array) => {
            if values.is_empty() { std::slice::from_ref(value) } else { values }
        }
        one => std::slice::from_ref(one),
    }
}

fn one_as_written(tokenizer: &Tokenizer, value: &Value, ids: &[u32]) -> String {
    let spelled = |ids: &[u32]| tokenizer.decode(ids, ControlTokens::Show).unwrap_or_default();
    let parts = if let Value::Array(parts) = value { parts } else { std::slice::from_ref(value) };
    let mut written = Vec::new();
    if let (Some(Value::String(text)), Some(bos)) =
        (parts.first(), ids.first().filter(|id| tokenizer.bos() == Some(**id)))
    {
        let bos = spelled(&[*bos]);
        // Unless the client put it there.
        written.extend(if text.as_bytes().starts_with(&bos) { Vec::new() } else { bos });
    }
    for part in parts {
        match part {
            Value::String(text) => written.extend_from_slice(text.as_bytes()),
            id => {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                written.extend(spelled(id.as_slice()));
            }
        }
    }
    String::from_utf8_lossy(&written).into_owned()
}

fn one_prompt(tokenizer: &Tokenizer, field: &'static str, value: &Value) -> Result<Vec<u32>, ApiError> {
    match value {
        Value::String(text) => Ok(tokenizer.encode_prompt(text, Specials::Parse)),
        Value::Array(parts) => {
            let mut tokens = Vec::with_capacity(parts.len());
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Value::String(text) if index == 0 => tokens.extend(tokenizer.encode_prompt(text, Specials::Parse)),
                    Value::String(text) => tokens.extend(tokenizer.encode(text, Specials::Parse)),
                    id => tokens.push(token(tokenizer, field, id)?),
                }
            }
            Ok(tokens)
        }
        _ => Err(ApiError::invalid(format!(
            "{field}: needs a string, an array of token ids and strings, or an array of such prompts"
        ))),
    }
}

/// A token id of the vocabulary.
///
/// # Errors
/// If `value` is something else.
pub fn token(tokenizer: &Tokenizer, field: &'static str, value: &Value) -> Result<u32, ApiError> {
    let count = tokenizer.token_count();
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < count);
    id.ok_or_else(|| {
        let shown: String = value.to_string().chars().take(40).collect();
        ApiError::invalid(format!("{field}: {shown} is no token id; ids are whole numbers from 0 to {}", count - 1))
    })
}
