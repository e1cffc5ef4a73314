//! `POST /admin/drain`: the end of the server, asked for from outside.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;

/// From now on no request is taken; when those under way have ended, the server does.
pub async fn drain(State(app): State<Arc<App>>) -> Json<Value> {
    app.stop();
    Json(json!({"status": "stopping"}))
}
