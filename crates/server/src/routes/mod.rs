//! The routes, one file for each family.

mod admin;
mod completion;
mod health;
mod metrics;
mod missing;
mod models;
mod openai;
pub mod page;
mod slots;
mod tokenize;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use crate::access::guard;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::openapi::{self, Action, OPERATIONS};

/// All routes: those of the table that the description of them is made of, and the page's files.
pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for operation in OPERATIONS {
        for path in operation.paths {
            router = router.route(path, handler(operation.action));
        }
    }
    router
        .merge(page::routes())
        .fallback(missing::no_such_route)
        .method_not_allowed_fallback(wrong_method)
        // The guard has read the body, within limits of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

fn handler(action: Action) -> MethodRouter<Arc<App>> {
    match action {
        Action::Health => get(health::health),
        Action::Models => get(models::models),
        Action::Props => get(models::props),
        Action::Slots => get(slots::slots),
        Action::Metrics => get(metrics::metrics),
        Action::Document => get(document),
        Action::Drain => post(admin::drain),
        Action::Completion => post(completion::completion),
        Action::Texts => post(openai::completions::completions),
        Action::Chat => post(openai::chat::chat_completions),
        Action::ApplyTemplate => post(openai::chat::apply_template),
        Action::Tokenize => post(tokenize::tokenize),
        Action::Detokenize => post(tokenize::detokenize),
    }
}

async fn document() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::text()).into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let (path, method) = (begin_of(uri.path()), begin_of(method.as_str()));
    ApiError::new(ErrorKind::MethodNotAllowed, format!("{path} does not take {method}"))
}

/// The beginning of a client's text, at most as long as messages repeat it.
fn begin_of(words: &str) -> &str {
    const BYTES_MAX: usize = 120;
    &words[..words.floor_char_boundary(BYTES_MAX)]
}
