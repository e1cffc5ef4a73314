//! Unknown paths, refused in the shape that the clients of such paths parse.

use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::{ApiError, ErrorKind};
use crate::openapi::OPERATIONS;

/// Longest part of a path that is repeated in a message, in characters.
const SHOWN_MAX: usize = 200;

/// The refusal of a path that no route has.
pub async fn no_such_route(method: Method, uri: Uri) -> Response {
    let path = uri.path();
    if method == Method::POST && is_slot_action(path) {
        // Clients of llama.cpp take 501 for a server without a folder for slots, and 404 for one that is none.
        let message = "slots are not saved here: every prompt finds every prefix that is held, whatever its slot";
        return ApiError::new(ErrorKind::NotSupported, message).into_response();
    }
    let mut shown: String = path.chars().take(SHOWN_MAX).collect();
    if shown.len() < path.len() {
        shown.push('…');
    }
    let hint = similar(path).map_or_else(String::new, |path| format!(" (did you mean {path}?)"));
    let message = format!("there is no {shown}{hint}");
    let body = if path.starts_with("/api/") {
        json!({"error": message})
    } else if path == "/v1/messages" || path.starts_with("/v1/messages/") {
        json!({"type": "error", "error": {"type": "not_found_error", "message": message}})
    } else {
        return ApiError::new(ErrorKind::NotFound, message).into_response();
    };
    (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
}

/// True for `/slots/{number}`.
fn is_slot_action(path: &str) -> bool {
    let number = path.strip_prefix("/slots/");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The longest path of a route that `path` ends in, slashes too many left out.
fn similar(path: &str) -> Option<&'static str> {
    let parts = |path: &'static str| path.split('/').filter(|part| !part.is_empty());
    let asked: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let known = OPERATIONS.iter().flat_map(|operation| operation.paths).copied();
    let ends = known.filter(|known| asked.ends_with(&parts(known).collect::<Vec<_>>()));
    ends.max_by_key(|known| known.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_slashes_or_parts_too_many_is_known_by_its_end() {
        for (path, known) in [
            ("/chat/completions/", "/chat/completions"),
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/chat/completions", "/v1/chat/completions"),
            ("/openai/v1/models", "/v1/models"),
            ("/health//", "/health"),
        ] {
            assert_eq!(similar(path), Some(known), "{path}");
        }
        for path in ["/", "", "/v1", "/v1/messages", "/v1/embeddings", "/completions/x", "/models/a"] {
            assert_eq!(similar(path), None, "{path}");
        }
    }
}
