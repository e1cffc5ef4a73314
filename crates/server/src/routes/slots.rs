//! `GET /slots`: the running requests. It contains no text.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::settings::PageVisibility;
use muser_host::Slot;

/// The query of the route.
#[derive(Debug, Default, serde::Deserialize)]
pub struct SlotsQuery {
    /// If 1, a server without an idle slot answers 503.
    fail_on_no_slot: Option<u8>,
}

/// One object per slot.
pub async fn slots(
    State(app): State<Arc<App>>,
    query: Result<Query<SlotsQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    if app.server.slots == PageVisibility::Hidden {
        return Err(ApiError::new(ErrorKind::NotSupported, "this server was started with --no-slots"));
    }
    let service = app.service()?;
    let status = service.host.status();
    if query.fail_on_no_slot == Some(1) && status.running() == status.slots.len() {
        return Err(ApiError::new(ErrorKind::Unavailable, "no slot is idle").retry_after(1));
    }
    let object = |(id, Slot { task }): (usize, &Slot)| {
        json!({
            "id": id,
            "id_task": task.map_or(json!(-1), |task| task.number.into()),
            "n_ctx": service.context,
            "is_processing": task.is_some(),
            "n_prompt_tokens": task.map_or(0, |task| task.prompt_tokens),
            "n_prompt_tokens_processed": task.map_or(0, |task| task.computed_tokens.min(task.prompt_tokens)),
            "n_decoded": task.map_or(0, |task| task.generated_tokens),
        })
    };
    Ok(Json(status.slots.iter().enumerate().map(object).collect()))
}
