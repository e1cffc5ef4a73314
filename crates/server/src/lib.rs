//! The engine over HTTP: llama.cpp's and OpenAI's routes on one engine.
//!
//! - `service` is the loaded model: engine, tokenizer, templates; `app` is the server around it: loading, answering,
//!   stopping.
//! - `listen` is connections and their limits, `access` authentication and CORS, `record` the log record of each
//!   request.
//! - `fields`, `prompt`, `conversation`, `sampling` and `options` read a request's fields; none is ignored in silence.
//! - `limits` bounds each of them, `tree` reads them within their bounds, `memory` bounds all requests together.
//! - `generation`, `text` and `probabilities` are one answer: the engine's events become text, counts and times.
//! - `pool` runs long work that is not the engine's, off the threads that serve connections.
//! - `pages` is where a prompt's keys and values come from: those that the engine has kept, or a source of others.
//! - `remote` has long prompts computed by the node that is expected to be quickest, and goes on without producers that
//!   fail.
//! - `stream` sends answers as events or as a whole; `routes` has one file for each family of routes.
//! - `openapi` describes the requests and answers of all routes; the table of routes is there, too.

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
mod pages;
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

pub use access::{Access, ApiKeyError, ApiKeyFileError, Exposure, Keys, NoOrigin, Origins, Realms, Scope, Scopes};
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
pub use settings::{
    ConnectionLimits, Log, LogFn, PageVisibility, ServerSettings, ServiceSettings, ShortageFn, ShortageLog,
};
