//! Log record of each request: its route, status, time and token counts. Never a text.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Method;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;

use crate::app::App;

/// A request that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The method, if it is one of HTTP's own; any other counts as `other`, as clients may make up methods without end.
    pub method: &'static str,
    /// The route's pattern; `None` for unknown paths. The path of the client is left out, as it may hold anything.
    pub route: Option<String>,
    /// The status; 499 if the client left before there was one.
    pub status: u16,
    /// True if the answer's body was taken to its end.
    pub complete: bool,
    /// From the end of the request's head to the end of the answer.
    pub elapsed: Duration,
    /// Tokens of its prompts and of what was generated.
    pub tokens: Tokens,
}

/// The status of a request whose client left before there was one.
pub const LEFT: u16 = 499;

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of its prompts.
    pub prompt: usize,
    /// Generated.
    pub generated: usize,
}

/// Sums over all requests and connections.
#[derive(Debug, Default)]
pub struct Counters {
    requests: Mutex<BTreeMap<RequestKind, u64>>,
    under_way: watch::Sender<usize>,
    connections: AtomicUsize,
}

/// Requests that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKind {
    /// The matched route; `None` for unknown paths.
    pub route: Option<String>,
    /// The method, if it is one of HTTP's own, and otherwise `other`.
    pub method: &'static str,
    /// The status.
    pub status: u16,
}

/// Token counts of one request, summed over its answers.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    prompt: AtomicUsize,
    generated: AtomicUsize,
}

impl RequestMetrics {
    /// Adds the tokens of a prompt.
    pub fn add_prompt(&self, tokens: usize) {
        self.prompt.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Adds a generated token.
    pub fn add_generated(&self) {
        self.generated.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counters {
    /// Requests so far, by kind.
    pub fn requests(&self) -> BTreeMap<RequestKind, u64> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits until no request is under way.
    pub async fn idle(&self) {
        // It fails if the sender is gone, and that is part of this.
        let _ = self.under_way.subscribe().wait_for(|requests| *requests == 0).await;
    }

    fn add(&self, kind: RequestKind) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
    }
}

/// Guard that counts a connection while it is open.
#[derive(Debug)]
pub struct CountedConnection(Arc<App>);

impl CountedConnection {
    /// Adds one to the count.
    pub fn new(app: Arc<App>) -> Self {
        app.counters.connections.fetch_add(1, Ordering::Relaxed);
        Self(app)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers a request by `answer`, which adds its tokens to `metrics`, and records it when its body was sent or dropped.
pub async fn recorded(
    app: Arc<App>,
    method: Method,
    route: Option<String>,
    metrics: Arc<RequestMetrics>,
    answer: impl Future<Output = Response>,
) -> Response {
    app.counters.under_way.send_modify(|requests| *requests += 1);
    let mut open = Open { app, method, route, started: Instant::now(), metrics, status: LEFT, complete: false };
    let response = answer.await;
    open.status = response.status().as_u16();
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, Body::new(RecordedBody { body, open }))
}

/// A request under way. Dropped, it is over.
struct Open {
    app: Arc<App>,
    method: Method,
    route: Option<String>,
    started: Instant,
    metrics: Arc<RequestMetrics>,
    status: u16,
    complete: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        let counters = &self.app.counters;
        let (route, status) = (self.route.take(), self.status);
        counters.add(RequestKind { route: route.clone(), method: known_method(&self.method), status });
        if let Some(log) = &self.app.server.log.0 {
            log(&RequestRecord {
                method: known_method(&self.method),
                route,
                status,
                complete: self.complete,
                elapsed: self.started.elapsed(),
                tokens: Tokens {
                    prompt: self.metrics.prompt.load(Ordering::Relaxed),
                    generated: self.metrics.generated.load(Ordering::Relaxed),
                },
            });
        }
        counters.under_way.send_modify(|requests| *requests -= 1);
    }
}

/// A body that records its request when dropped.
struct RecordedBody {
    body: Body,
    open: Open,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.open.complete |= matches!(polled, Poll::Ready(None)) || self.body.is_end_stream();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn known_method(method: &Method) -> &'static str {
    let known = [Method::GET, Method::POST, Method::OPTIONS, Method::HEAD, Method::PUT, Method::DELETE, Method::PATCH];
    let names = ["GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"];
    known.iter().position(|known| known == method).map_or("other", |at| names[at])
}
