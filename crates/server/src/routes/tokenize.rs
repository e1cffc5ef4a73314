//! `POST /tokenize` and `POST /detokenize`: text to ids and back, without the engine.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use muser_text::{ControlTokens, Specials};
use serde::Serialize;
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{TEXT_BYTES_MAX, TOKENIZED_CHARGE};
use crate::memory::Charge;
use crate::pool::{INLINE_BYTES_MAX, Load};
use crate::probabilities::bytes_of;
use crate::prompt::take_ids;
use crate::service::Service;

/// The ids of a text; with `with_pieces` also the piece of each: a string, or bytes where these are no text.
pub async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let service = app.service()?;
    let reading = Arc::clone(&app);
    let load = Load::linear(body.len());
    let tokens = app.pool.run(load, move || tokens(&reading, service, &body)).await??;
    Ok(tokens.into_response())
}

fn tokens(app: &App, service: Arc<Service>, body: &[u8]) -> Result<Tokens, ApiError> {
    let mut fields = Fields::parse(body)?;
    let content: String = fields.require("content")?;
    let add_special = fields.take("add_special")?.unwrap_or(false);
    let specials = if fields.take("parse_special")?.unwrap_or(true) { Specials::Parse } else { Specials::AsText };
    let items = if fields.take("with_pieces")?.unwrap_or(false) { Items::Pieces } else { Items::Ids };
    fields.finish()?;
    let charge = app.memory.charge(content.len().saturating_mul(TOKENIZED_CHARGE))?;
    let tokenizer = service.tokenizer();
    let mut ids = match add_special {
        true => tokenizer.encode_prompt(&content, specials),
        false => tokenizer.encode(&content, specials),
    };
    ids.shrink_to_fit();
    Ok(Tokens { service, ids, items, next: 0, _charge: charge })
}

/// Items of the answer's array: ids, or ids with pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Items {
    Ids,
    Pieces,
}

/// The answer's JSON, written piece by piece as the client takes it.
struct Tokens {
    service: Arc<Service>,
    ids: Vec<u32>,
    items: Items,
    /// The first id that is not written; one more than there are ids after the end.
    next: usize,
    _charge: Charge,
}

/// A token's id with its piece of text.
#[derive(Serialize)]
struct TokenPiece<'a> {
    id: u32,
    piece: Piece<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// Bytes at which a part of the answer is sent.
const PART_BYTES: usize = 32 << 10;

impl Iterator for Tokens {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.next > self.ids.len() {
            return None;
        }
        let mut part = Vec::with_capacity(PART_BYTES + 256);
        if self.next == 0 {
            part.extend_from_slice(b"{\"tokens\":[");
        }
        while let Some(&id) = self.ids.get(self.next)
            && part.len() < PART_BYTES
        {
            if self.next > 0 {
                part.push(b',');
            }
            let bytes = bytes_of(self.service.tokenizer(), id);
            let written = match self.items {
                Items::Ids => serde_json::to_writer(&mut part, &id),
                Items::Pieces => {
                    let piece = std::str::from_utf8(bytes).map_or(Piece::Bytes(bytes), Piece::Text);
                    serde_json::to_writer(&mut part, &TokenPiece { id, piece })
                }
            };
            // Numbers and strings can be written, and memory takes all bytes.
            debug_assert!(written.is_ok());
            self.next += 1;
        }
        if self.next == self.ids.len() {
            part.extend_from_slice(b"]}");
            self.next += 1;
        }
        Some(part.into())
    }
}

impl IntoResponse for Tokens {
    fn into_response(mut self) -> Response {
        let body = match self.ids.len() * 32 <= INLINE_BYTES_MAX {
            // With its length, as short answers are.
            true => Body::from(self.by_ref().flatten().collect::<Vec<u8>>()),
            false => Body::from_stream(stream::iter(self.map(Ok::<_, Infallible>))),
        };
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// The text of ids; bytes that are no character become U+FFFD.
pub async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let service = app.service()?;
    app.pool.run(Load::linear(body.len()), move || text(&service, &body)).await?
}

fn text(service: &Service, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    let tokenizer = service.tokenizer();
    let ids = take_ids(&mut fields, "tokens", tokenizer.token_count())?;
    fields.finish()?;
    let length: usize = ids.iter().map(|&id| bytes_of(tokenizer, id).len()).sum();
    if length > TEXT_BYTES_MAX {
        let message = format!("tokens: stand for {length} bytes of text, at most {TEXT_BYTES_MAX} are written");
        return Err(ApiError::invalid(message));
    }
    let bytes = tokenizer.detokenize(&ids, ControlTokens::Show).unwrap_or_default();
    Ok(Json(json!({"content": String::from_utf8_lossy(&bytes)})).into_response())
}
