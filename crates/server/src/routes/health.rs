//! `GET /health`: readiness of the server. It needs no key, and never waits for the engine.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::{App, Phase};
use crate::error::{ApiError, ErrorKind};

/// 200 once requests are answered, 503 while the model is being loaded or the server stops, 500 if the engine has
/// failed.
pub async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    if app.phase() == Phase::Stopping {
        return Err(ApiError::new(ErrorKind::Unavailable, "stopping"));
    }
    match app.service()?.host.status().failure {
        Some(reason) => Err(ApiError::new(ErrorKind::Server, reason)),
        None => Ok(Json(json!({"status": "ok"}))),
    }
}
