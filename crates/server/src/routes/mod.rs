//! The routes, one file for each family.

mod admin;
mod completion;
mod health;
mod metrics;
mod models;
mod openai;
pub mod page;
mod slots;
mod tokenize;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::access::guard;
use crate::app::App;
use crate::error::{ApiError, ErrorKind};

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/models", get(models::models))
        .route("/v1/models", get(models::models))
        .route("/props", get(models::props))
        .route("/slots", get(slots::slots))
        .route("/metrics", get(metrics::metrics))
        .route("/admin/drain", post(admin::drain))
        .route("/completion", post(completion::completion))
        .route("/completions", post(completion::completion))
        .route("/v1/completions", post(openai::completions::completions))
        .route("/v1/chat/completions", post(openai::chat::chat_completions))
        .route("/chat/completions", post(openai::chat::chat_completions))
        .route("/apply-template", post(openai::chat::apply_template))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .merge(page::routes())
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        // The guard has read the body, within limits of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

async fn no_such_route(uri: Uri) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(ErrorKind::MethodNotAllowed, format!("{} does not take {method}", uri.path()))
}
