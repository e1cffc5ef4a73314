//! The engine over HTTP: llama.cpp's and OpenAI's routes on one engine.
//!
//! - `service` is what answers once the model is there; `app` is the server around it: loading, answering, stopping.
//! - `listen` is connections and their limits, `access` who may ask, `record` what is told of each request.
//! - `fields`, `prompt`, `conversation`, `sampling` and `options` read what a request says; nothing in it is ignored in silence.
//! - `limits` bounds each of them, `tree` reads them within their bounds, `memory` bounds all requests together.
//! - `generation`, `text` and `probabilities` are one answer: the engine's news become text, counts and times.
//! - `pool` is where long work runs that is not the engine's: never on the threads that serve connections.
//! - `remote` has long prompts computed by whoever is expected to be quickest, and goes on without producers that fail.
//! - `stream` tells of answers as events or as a whole; `routes` has one file for each family of routes.
//! - `openapi` says what all of them take and give; the routes' table is there, too.

mod access;
mod app;
mod conversation;
mod error;
mod fields;
mod generation;
#[cfg_attr(target_env = "gnu", path = "heap_glibc.rs")]
mod heap;
mod limits;
mod listen;
mod logit_bias;
mod memory;
mod messages;
mod openapi;
mod options;
mod pool;
mod probabilities;
mod prompt;
mod record;
mod remote;
mod routes;
mod sampling;
mod service;
mod settings;
mod stream;
mod text;
mod tree;

pub use access::{Access, Exposure, KeyError, KeyFileError, Keys, NoOrigin, Origins, Realms, Scope, Scopes};
pub use app::{App, Phase};
pub use error::{ApiError, ErrorKind};
pub use listen::{ServeError, Server, Tls, TlsError};
pub use record::{Counters, RequestKind, RequestRecord, Tokens};
pub use remote::{
    AuditCounts, AuditSettings, Auditor, Fallback, PolicyFile, PrefillBy, PrefillSettings, ProducerCounts,
    RemoteCounts, RemotePrefill,
};
pub use routes::router;
pub use service::{ModelFacts, Service, Words};
pub use settings::{Limits, Log, LogFn, Page, ServerSettings, ServiceSettings, ShortageFn, ShortageLog};
