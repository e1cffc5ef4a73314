//! `GET /`: a page to talk to the model in a browser. Its files are part of the program, and it loads nothing from elsewhere.
//!
//! The files need no key: their content is public, and the page itself asks for a key when the server wants one.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// A file of the page.
pub struct File {
    /// Path in the URL.
    pub path: &'static str,
    /// `Content-Type`.
    pub media_type: &'static str,
    content: &'static str,
}

/// The page's files. Text of the model is never markup there, and the policy below stops what would slip through.
pub const FILES: [File; 4] = [
    File { path: "/", media_type: "text/html; charset=utf-8", content: include_str!("page/index.html") },
    File { path: "/page.css", media_type: "text/css; charset=utf-8", content: include_str!("page/page.css") },
    File { path: "/page.js", media_type: "text/javascript; charset=utf-8", content: include_str!("page/page.js") },
    File { path: "/page.svg", media_type: "image/svg+xml", content: include_str!("page/page.svg") },
];

/// Paths of the files, which are served without a key.
pub const PATHS: [&str; 4] = [FILES[0].path, FILES[1].path, FILES[2].path, FILES[3].path];

/// Headers of each file. The page may load its own files and call its own server, and nothing else, and may not be
/// framed.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // A newer program has newer files, and they belong together: each is asked for again, and mostly not sent again.
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// The page's routes.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let entity_tag = entity_tag(file.content);
        router.route(file.path, get(async move |request: HeaderMap| answer(file, &entity_tag, &request)))
    })
}

/// The file, or 304 if the client has it already.
fn answer(file: &File, entity_tag: &str, request: &HeaderMap) -> Response {
    let tags = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    // Something on the way that compresses makes the tag a weak one.
    let held = tags.flat_map(|tags| tags.split(',')).any(|tag| tag.trim().trim_start_matches("W/") == entity_tag);
    let tag = [(header::ETAG, entity_tag)];
    if held {
        return (StatusCode::NOT_MODIFIED, HEADERS, tag).into_response();
    }
    (HEADERS, [(header::CONTENT_TYPE, file.media_type)], tag, file.content).into_response()
}

/// A name for these bytes and no others.
fn entity_tag(content: &str) -> String {
    format!("\"{}\"", &blake3::hash(content.as_bytes()).to_hex()[..16])
}
