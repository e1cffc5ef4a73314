//! Middleware in front of every route: checks a request, then reads its body.
//!
//! In this order: the `Host` and the `Origin`, the server's phase, the key, and only then the body, which is read
//! within its limits, and only where the route takes one. A refused request costs no more than its head.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::time::timeout;

use super::keys::Scope;
use super::origin::{Asker, names_this_machine};
use super::{Access, Client, Exposure};
use crate::app::{App, Phase};
use crate::error::{ApiError, ErrorKind};
use crate::limits::BODY_CHARGE;
use crate::memory::{Charge, charged};
use crate::openapi::takes_fields;
use crate::record::{RequestMetrics, recorded};
use crate::routes::page;

/// Routes that need no key, besides the page: liveness, the list of models, the API description.
const OPEN: &[&str] = &["/health", "/v1/health", "/models", "/v1/models", "/openapi.json"];

/// Checks every request before its route: origin, key and scope, phase of the server, media type. Refused requests are
/// answered here; the bodies of the others are read.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = request.method().clone();
    let metrics = Arc::new(RequestMetrics::default());
    let answer = answer(Arc::clone(&app), route.clone(), Arc::clone(&metrics), request, next);
    recorded(app, method, route, metrics, answer).await
}

async fn answer(
    app: Arc<App>,
    route: Option<String>,
    metrics: Arc<RequestMetrics>,
    mut request: Request,
    next: Next,
) -> Response {
    let asker = app.server.access.origins.asker(request.method(), request.headers());
    let preflight = request.method() == Method::OPTIONS;
    let asked_headers = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = match judge(&app, &asker, route.as_deref(), &request, metrics) {
        Err(refusal) => refusal.into_response(),
        Ok(_) if preflight => StatusCode::NO_CONTENT.into_response(),
        Ok(client) => {
            request.extensions_mut().insert(client);
            match with_body(&app, route.as_deref(), request).await {
                Err(refusal) => refusal.into_response(),
                Ok(request) => next.run(request).await,
            }
        }
    };
    if let Asker::Allowed(origin) = asker {
        add_cors(response.headers_mut(), origin, preflight.then_some(asked_headers).flatten());
    }
    if preflight {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(METHODS));
    }
    response
}

/// Admits the request to its route, and gives its client: on open routes, the client without a key.
fn judge(
    app: &App,
    asker: &Asker,
    route: Option<&str>,
    request: &Request,
    metrics: Arc<RequestMetrics>,
) -> Result<Client, ApiError> {
    let access = &app.server.access;
    if access.is_open() && access.exposure == Exposure::Local && !names_this_machine(request.uri(), request.headers()) {
        return Err(ApiError::new(
            ErrorKind::Permission,
            "this server has no keys and answers only to localhost and to addresses: the Host header names something else. \
             Ask by an address, or start it with keys (--api-key-file): then it answers to any name",
        ));
    }
    if *asker == Asker::Foreign {
        let message = "the page that asks is of another origin, which this server does not allow (--cors-origins)";
        return Err(ApiError::new(ErrorKind::Permission, message));
    }
    if route.is_some_and(is_open) || request.method() == Method::OPTIONS {
        return Ok(access.client(None, metrics));
    }
    if app.phase() == Phase::Loading {
        app.service()?;
    }
    let scope = scope_of(route);
    let key = check_key(access, scope, request.headers())?;
    if app.phase() >= Phase::Stopping && scope == Scope::Use {
        return Err(stopping());
    }
    Ok(access.client(key, metrics))
}

/// The `503` of routes with [`Scope::Use`] while the server stops.
pub fn stopping() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the server is stopping").retry_after(5)
}

/// True if a route needs no key.
pub fn is_open(route: &str) -> bool {
    OPEN.contains(&route) || page::PATHS.contains(&route)
}

/// Scope that a route needs. An unknown path needs [`Scope::Use`] like most routes, so that its answer does not tell a
/// client without a key which paths exist.
pub fn scope_of(route: Option<&str>) -> Scope {
    match route {
        Some("/metrics" | "/slots") => Scope::Metrics,
        Some(route) if route.starts_with("/admin/") => Scope::Admin,
        _ => Scope::Use,
    }
}

/// The key of the request, if it needs one.
fn check_key<'a>(access: &Access, scope: Scope, headers: &'a HeaderMap) -> Result<Option<&'a [u8]>, ApiError> {
    if access.is_open() {
        // Clients of an open server may generate, and may not stop it.
        let message = "the scope admin needs a key, and this server was started without any";
        return if scope == Scope::Admin { Err(ApiError::new(ErrorKind::Permission, message)) } else { Ok(None) };
    }
    let known = key_of(headers).and_then(|key| Some((key, access.keys.scopes(key)?)));
    let (key, scopes) = known.ok_or_else(|| ApiError::new(ErrorKind::Authentication, "Invalid API Key"))?;
    if scopes.open(scope) {
        return Ok(Some(key));
    }
    let message = format!("this key does not have the scope {}, which this route needs", scope.name());
    Err(ApiError::new(ErrorKind::Permission, message))
}

/// `Authorization: Bearer KEY`, or else `X-Api-Key: KEY`.
fn key_of(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"Bearer ";
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(SCHEME.len())?;
        scheme.eq_ignore_ascii_case(SCHEME).then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes)).map(<[u8]>::trim_ascii)
}

/// The request with its body in memory, if its route reads one. That of any other is left unread, and the connection ends
/// with the answer.
async fn with_body(app: &App, route: Option<&str>, request: Request) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    if !route.is_some_and(|route| takes_fields(route, &parts.method)) {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    check_media_type(&parts.headers)?;
    let time = app.server.limits.body_timeout;
    let late = |_| ApiError::new(ErrorKind::Timeout, format!("the body did not arrive within {} ms", time.as_millis()));
    let bytes = timeout(time, read_body(app, body)).await.map_err(late)??;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

/// Accepts a JSON body under any media type, except the types that a browser sends across sites without a preflight, and
/// encoded ones. `application/x-www-form-urlencoded`, curl's default, is accepted unless the headers are a browser's.
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let refused = |message: String| Err(ApiError::new(ErrorKind::UnsupportedMedia, message));
    let is_browser = headers.contains_key("sec-fetch-site") || headers.contains_key("sec-fetch-mode");
    for value in headers.get_all(header::CONTENT_TYPE) {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
        let is_form = is("multipart/form-data") || is("text/plain");
        if is_form || is_browser && is("application/x-www-form-urlencoded") {
            let shown = String::from_utf8_lossy(essence);
            return refused(format!("a body of type {shown} is not read: send Content-Type: application/json"));
        }
    }
    for value in headers.get_all(header::CONTENT_ENCODING) {
        if !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity") {
            return refused("bodies are read as they come: a Content-Encoding is not supported".into());
        }
    }
    Ok(())
}

/// Reads a body, and charges bytes as they arrive: an announced length costs other requests nothing.
async fn read_body(app: &App, mut body: Body) -> Result<Bytes, ApiError> {
    let bytes_max = app.server.limits.body_bytes_max;
    let too_large = || ApiError::new(ErrorKind::TooLarge, format!("the body has more than {bytes_max} bytes"));
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let (mut bytes, mut charge) = (Vec::new(), Charge::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = bytes.len() + data.len();
        if length > bytes_max {
            return Err(too_large());
        }
        charge.grow_to(&app.memory, length.saturating_mul(BODY_CHARGE))?;
        bytes.extend_from_slice(&data);
    }
    Ok(charged(bytes, charge))
}

const METHODS: &str = "GET, POST, OPTIONS";

/// Adds the CORS headers for an allowed origin.
fn add_cors(headers: &mut HeaderMap, origin: HeaderValue, asked_headers: Option<HeaderValue>) {
    if origin != "*" {
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    if let Some(asked) = asked_headers {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}
