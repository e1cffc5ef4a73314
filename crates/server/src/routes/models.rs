//! `GET /v1/models` and `GET /props`: the loaded model and its default settings.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::sampling::sampling_settings;
use crate::service::Service;

/// The one model; `meta` is null while it is being loaded.
pub async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let service = app.service_or_none();
    let meta = service.as_ref().map(|service| {
        json!({
            "n_vocab": service.model.vocab,
            "n_ctx": service.context,
            "n_ctx_train": service.model.context_trained,
            "n_embd": service.model.hidden,
            "n_params": service.model.parameters,
            "size": service.model.bytes,
        })
    });
    Json(json!({
        "object": "list",
        "data": [{
            "id": app.settings.alias,
            "object": "model",
            "created": app.started_at,
            "owned_by": "muser",
            "meta": meta,
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        }],
    }))
}

/// Defaults of requests, and properties of the model and the server.
pub async fn props(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let service = app.service()?;
    let mut params = sampling_settings(&service.settings.sampling);
    params["n_predict"] = app.settings.tokens_max.map_or(json!(-1), Into::into);
    params["seed"] = json!(-1);
    Ok(Json(json!({
        "default_generation_settings": {"n_ctx": service.context, "params": params},
        "total_slots": service.slots,
        "model_alias": app.settings.alias,
        "model_path": app.settings.model_path,
        "chat_template": service.words.template_source,
        "modalities": {"vision": false, "audio": false},
        "bos_token": spelling(&service, service.tokenizer().bos()),
        "eos_token": spelling(&service, service.tokenizer().eos()),
        "build_info": app.settings.build,
        "is_sleeping": false,
    })))
}

fn spelling(service: &Service, token: Option<u32>) -> Option<String> {
    token.and_then(|token| service.tokenizer().token_spelling(token).ok()).map(str::to_owned)
}
