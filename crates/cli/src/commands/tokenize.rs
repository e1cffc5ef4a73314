//! `muser tokenize`: the ids of a text, by the model's own tokenizer.

use std::io::{self, Write};

use muser_engine::load_tokenizer;
use muser_model::{LoadError, read_config};
use muser_text::{ControlTokens, Specials};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::input::prompt_text;
use crate::model;
use crate::settings::TokenizeArgs;

/// Runs the command.
pub fn run(args: &TokenizeArgs) -> Result<(), Failure> {
    let text = prompt_text(&args.prompt)?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let vocab = read_config(&files.metadata()).map_err(LoadError::from)?.vocab;
    let tokenizer = load_tokenizer(&files.metadata(), vocab)?;
    let specials = if args.no_parse_special { Specials::AsText } else { Specials::Parse };
    let ids = if args.no_bos { tokenizer.encode(&text, specials) } else { tokenizer.encode_prompt(&text, specials) };
    let piece = |id: u32| {
        let bytes = tokenizer.token_bytes(id, ControlTokens::Show).expect("the tokenizer made this id");
        std::str::from_utf8(bytes).map_err(|_| bytes.to_vec())
    };
    let mut out = io::stdout().lock();
    if args.ids {
        return writeln!(out, "{}", json!(ids)).map_err(Failure::Stdout);
    }
    if args.json {
        let piece = |id| piece(id).map_or_else(|bytes| json!(bytes), |text| json!(text));
        let tokens: Vec<Value> = ids.into_iter().map(|id| json!({ "id": id, "piece": piece(id) })).collect();
        return writeln!(out, "{}", json!(tokens)).map_err(Failure::Stdout);
    }
    ids.into_iter()
        .try_for_each(|id| match piece(id) {
            Ok(text) => writeln!(out, "{id:>7} {text:?}"),
            Err(bytes) => writeln!(out, "{id:>7} {bytes:02x?}"),
        })
        .map_err(Failure::Stdout)
}
