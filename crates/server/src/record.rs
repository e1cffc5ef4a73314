//! What is known of each request from outside: its route, its status, how long it took, how many tokens. Never a text.

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
    /// The method, as far as it is one of HTTP's own; clients may make up others, which are not told.
    pub method: &'static str,
    /// The route that answered; `None` where there is none. What the client asked for may hold anything, and is not told.
    pub route: Option<String>,
    /// The status; 499 if the client left before there was one.
    pub status: u16,
    /// Whether the client got all of the answer.
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
    /// The route; `None` for all that there is none for.
    pub route: Option<String>,
    /// The method, as far as it is one of HTTP's own: clients may make up others without end.
    pub method: &'static str,
    /// The status.
    pub status: u16,
}

/// Counts what one request's answers need.
#[derive(Debug, Default)]
pub struct Tally {
    prompt: AtomicUsize,
    generated: AtomicUsize,
}

tokio::task_local! {
    /// The tally of the request that the task is answering: it spares every route to hand it down.
    static TALLY: Arc<Tally>;
}

impl Tally {
    /// That of the request being answered; one that nobody reads where there is none.
    pub fn current() -> Arc<Self> {
        TALLY.try_with(Arc::clone).unwrap_or_default()
    }

    /// The future, which is part of answering the request that the task is answering now, wherever it is polled.
    pub fn keep<F: Future>(future: F) -> impl Future<Output = F::Output> {
        TALLY.scope(Self::current(), future)
    }

    /// A prompt was taken.
    pub fn add_prompt(&self, tokens: usize) {
        self.prompt.fetch_add(tokens, Ordering::Relaxed);
    }

    /// A token was generated.
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

/// Counts a connection while it lives.
#[derive(Debug)]
pub struct CountedConnection(Arc<App>);

impl CountedConnection {
    /// One more.
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

/// Answers a request by `answer`, and tells of it when its answer has been taken, or nobody takes it any more.
pub async fn recorded(
    app: Arc<App>,
    method: Method,
    route: Option<String>,
    answer: impl Future<Output = Response>,
) -> Response {
    let tally = Arc::new(Tally::default());
    app.counters.under_way.send_modify(|requests| *requests += 1);
    let mut open = Open { app, method, route, started: Instant::now(), tally, status: LEFT, complete: false };
    let response = TALLY.scope(Arc::clone(&open.tally), answer).await;
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
    tally: Arc<Tally>,
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
                    prompt: self.tally.prompt.load(Ordering::Relaxed),
                    generated: self.tally.generated.load(Ordering::Relaxed),
                },
            });
        }
        counters.under_way.send_modify(|requests| *requests -= 1);
    }
}

/// A body that knows when it was taken.
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
