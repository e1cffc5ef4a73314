//! Error answers: one JSON envelope on every route, before and inside streams.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use muser_engine::engine::SubmitError;

use muser_host::Refused;

/// A refusal, `{"error": {"code", "message", "type"}}` with what else the kind of error has: a 400 has `param`, the field
/// that it is about, or null.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    kind: ErrorKind,
    message: String,
    more: Map<String, Value>,
    retry_after_seconds: Option<u64>,
}

/// The kinds of refusal, by llama.cpp's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request makes no sense.
    InvalidRequest,
    /// The prompt does not fit the context.
    ExceedContextSize,
    /// No valid key.
    Authentication,
    /// A valid key, which does not open this; or a page of a foreign origin asks.
    Permission,
    /// No such route or resource.
    NotFound,
    /// A route of other methods.
    MethodNotAllowed,
    /// The body is longer than the server takes.
    TooLarge,
    /// The path is longer than the server reads.
    UriTooLong,
    /// The body is of a kind that no route reads.
    UnsupportedMedia,
    /// The head is longer than the server reads.
    HeadTooLarge,
    /// The body did not arrive in time.
    Timeout,
    /// The queue is full.
    RateLimit,
    /// Known, and not supported.
    NotSupported,
    /// Not now: the model is being loaded, or the server stops.
    Unavailable,
    /// The fault is the server's.
    Server,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; Self::Server as usize + 1] = [
        Self::InvalidRequest,
        Self::ExceedContextSize,
        Self::Authentication,
        Self::Permission,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::TooLarge,
        Self::UriTooLong,
        Self::UnsupportedMedia,
        Self::HeadTooLarge,
        Self::Timeout,
        Self::RateLimit,
        Self::NotSupported,
        Self::Unavailable,
        Self::Server,
    ];

    /// The status, which is the envelope's code as well, and the envelope's type.
    pub fn code_and_name(self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidRequest => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            Self::ExceedContextSize => (StatusCode::BAD_REQUEST, "exceed_context_size_error"),
            Self::Authentication => (StatusCode::UNAUTHORIZED, "authentication_error"),
            Self::Permission => (StatusCode::FORBIDDEN, "permission_error"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found_error"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error"),
            Self::UriTooLong => (StatusCode::URI_TOO_LONG, "invalid_request_error"),
            Self::UnsupportedMedia => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error"),
            Self::HeadTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error"),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "invalid_request_error"),
            Self::RateLimit => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
            Self::NotSupported => (StatusCode::NOT_IMPLEMENTED, "not_supported_error"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error"),
            Self::Server => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        }
    }
}

impl ApiError {
    /// A refusal with a message for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), more: Map::new(), retry_after_seconds: None }
    }

    /// The request makes no sense. A message about a field begins with its place and a colon, `messages[0].role: …`.
    pub fn invalid(message: impl Into<String>) -> Self {
        let message = message.into();
        let is_place = |text: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.[]".contains(&byte);
            text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.bytes().all(plain)
        };
        let place = message.split_once(": ").map(|(place, _)| place.to_owned()).filter(|place| is_place(place));
        let error = Self::new(ErrorKind::InvalidRequest, message);
        match place {
            Some(place) => error.about(place),
            None => error,
        }
    }

    /// With the field that it is about, where the message does not begin with it.
    #[must_use]
    pub fn about(self, field: impl Into<String>) -> Self {
        self.with("param", field.into())
    }

    /// The prompt cannot fit the context, as the message says.
    pub fn exceeds_context(message: String, context: usize) -> Self {
        Self::new(ErrorKind::ExceedContextSize, message).with("n_ctx", context)
    }

    /// The prompt has too many tokens for the context.
    pub fn prompt_too_long(prompt: usize, context: usize) -> Self {
        let most = context.saturating_sub(1);
        let message = format!(
            "the prompt has {prompt} tokens, the context holds {context}: at most {most} fit before the first new token"
        );
        Self::exceeds_context(message, context).with("n_prompt_tokens", prompt)
    }

    /// With another field of the envelope.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// With a `Retry-After` header, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The envelope.
    pub fn body(&self) -> Value {
        let (code, name) = self.kind.code_and_name();
        let mut error = json!({"code": code.as_u16(), "message": self.message, "type": name});
        if code == StatusCode::BAD_REQUEST {
            error["param"] = Value::Null;
        }
        if let Value::Object(fields) = &mut error {
            fields.extend(self.more.clone());
        }
        json!({"error": error})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (code, _) = self.kind.code_and_name();
        let mut response = (code, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.kind == ErrorKind::Authentication {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::Submit(SubmitError::PromptTooLong { prompt, context }) => Self::prompt_too_long(prompt, context),
            Refused::Submit(SubmitError::QueueFull { .. }) => {
                Self::new(ErrorKind::RateLimit, message).retry_after(RETRY_SECONDS)
            }
            Refused::Submit(_) | Refused::NotInstallable(_) => Self::invalid(message),
            Refused::Failed(_) => Self::new(ErrorKind::Server, message),
            Refused::Untrusted(_) | Refused::Stopped => Self::new(ErrorKind::Unavailable, message),
        }
    }
}

/// `Retry-After` of a request that a full queue turned away, seconds. A guess: answers take as long as their clients
/// ask for.
const RETRY_SECONDS: u64 = 1;
