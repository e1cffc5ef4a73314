//! Reads vocabularies (as `scripts/extract_vocabulary.py` writes them) and golden token ids.

use muser_text::VocabularyData;
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;

/// A text and the ids that llama.cpp gives for it, without BOS.
pub struct Golden {
    /// The text.
    pub text: String,
    /// Its token ids.
    pub ids: Vec<u32>,
}

/// Token ids of llama.cpp with `parse_special` off (`plain`) and on (`special`).
pub struct Goldens {
    /// Control tokens are text.
    pub plain: Vec<Golden>,
    /// Control tokens are recognised.
    pub special: Vec<Golden>,
}

/// The vocabulary in `json`.
pub fn vocabulary(json: &str) -> Result<VocabularyData, Box<dyn Error>> {
    let value: Value = serde_json::from_str(json)?;
    let strings = |key: &str| list(&value, key, |v| v.as_str().map(str::to_owned));
    let id = |key: &str| value[key].as_u64().and_then(|id| u32::try_from(id).ok());
    #[expect(clippy::cast_possible_truncation, reason = "scores are single precision in the file")]
    let score = |v: &Value| v.as_f64().map(|score| score as f32);
    let kind = |v: &Value| v.as_i64().and_then(|kind| i32::try_from(kind).ok());
    Ok(VocabularyData {
        model: value["model"].as_str().unwrap_or_default().to_owned(),
        pre: value["pre"].as_str().map(str::to_owned),
        tokens: strings("tokens")?,
        raw_tokens: BTreeMap::new(),
        token_types: if value["token_types"].is_null() { None } else { Some(list(&value, "token_types", kind)?) },
        scores: if value["scores"].is_null() { None } else { Some(list(&value, "scores", score)?) },
        merges: strings("merges")?,
        bos: id("bos"),
        eos: id("eos"),
        eot: id("eot"),
        eom: id("eom"),
        unknown: id("unknown"),
        add_bos: value["add_bos"].as_bool(),
        add_eos: value["add_eos"].as_bool(),
        add_space_prefix: value["add_space_prefix"].as_bool(),
    })
}

/// The goldens in `json`: `{"plain": [{"text": "...", "ids": [...]}], "special": [...]}`.
pub fn goldens(json: &str) -> Result<Goldens, Box<dyn Error>> {
    let value: Value = serde_json::from_str(json)?;
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    let golden = |v: &Value| Some(Golden { text: v["text"].as_str()?.to_owned(), ids: list(v, "ids", id).ok()? });
    Ok(Goldens { plain: list(&value, "plain", golden)?, special: list(&value, "special", golden)? })
}

fn list<T>(value: &Value, key: &str, item: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>, Box<dyn Error>> {
    let items = value[key].as_array().ok_or_else(|| format!("`{key}` is not a list"))?;
    items
        .iter()
        .map(|v| item(v).ok_or_else(|| format!("`{key}` holds {v}, which does not belong there").into()))
        .collect()
}
