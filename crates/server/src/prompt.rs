//! Prompts as clients write them: text, token ids, both in a row, or several prompts.

use muser_text::{Specials, Tokenizer};
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
    let several = |values: &[Value]| {
        !values.is_empty() && (values.iter().all(Value::is_string) || values.iter().all(Value::is_array))
    };
    match value {
        Value::Array(values) if several(values) => {
            values.iter().map(|value| one_prompt(tokenizer, field, value)).collect()
        }
        one => Ok(vec![one_prompt(tokenizer, field, one)?]),
    }
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
