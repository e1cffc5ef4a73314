//! `POST /tokenize` and `POST /detokenize`: text to ids and back, without the engine.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use muser_text::{ControlTokens, Specials};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::pool::Load;
use crate::probabilities::bytes_of;
use crate::prompt;
use crate::service::Service;

/// The ids of a text; with `with_pieces` also what each stands for: a string, or bytes where it is none.
pub async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let service = app.service()?;
    app.pool.run(Load::linear(body.len()), move || tokens(&service, &body)).await?
}

fn tokens(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let content: String = fields.require("content")?;
    let add_special = fields.take("add_special")?.unwrap_or(false);
    let specials = if fields.take("parse_special")?.unwrap_or(true) { Specials::Parse } else { Specials::AsText };
    let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let tokenizer = service.tokenizer();
    let tokens = match add_special {
        true => tokenizer.encode_prompt(&content, specials),
        false => tokenizer.encode(&content, specials),
    };
    if !with_pieces {
        return Ok(Json(json!({"tokens": tokens})).into_response());
    }
    let piece = |token: &u32| {
        let bytes = bytes_of(tokenizer, *token);
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({"id": token, "piece": piece})
    };
    Ok(Json(json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()})).into_response())
}

/// The text of ids; bytes that are no character become U+FFFD.
pub async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let service = app.service()?;
    app.pool.run(Load::linear(body.len()), move || text(&service, &body)).await?
}

fn text(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let ids: Vec<Value> = fields.require("tokens")?;
    fields.finish()?;
    let ids = ids.iter().map(|id| prompt::token(service.tokenizer(), "tokens", id)).collect::<Result<Vec<u32>, _>>()?;
    let bytes = service.tokenizer().detokenize(&ids, ControlTokens::Show).unwrap_or_default();
    Ok(Json(json!({"content": String::from_utf8_lossy(&bytes)})).into_response())
}
