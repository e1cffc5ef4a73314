//! Answers as server-sent events, or collected into one body: the same events, sent as they come or all at once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::select_all;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{ApiError, ErrorKind};
use crate::generation::{Ending, Generation, Progress, StreamEvent};
use crate::memory::{Charge, charged};
use crate::pool::{Load, WorkPool};
use crate::text::Piece;

/// An SSE comment, which keeps the connection alive.
const PING: Bytes = Bytes::from_static(b":\n\n");

/// JSON shape of a route's events.
pub trait Dialect: Send + 'static {
    /// Objects to send for an event of the answer `index`.
    fn chunks(&mut self, index: usize, generation: &Generation, event: StreamEvent) -> Vec<Value>;

    /// Objects to send for the progress of a producer with the prompt of the answer `index`, which has not begun yet.
    fn producer_progress(&mut self, index: usize, progress: Progress) -> Vec<Value>;

    /// Objects to send after the end of all answers.
    fn last_chunks(&mut self, generations: &[Generation]) -> Vec<Value>;

    /// True if `[DONE]` ends the stream.
    const SAYS_DONE: bool;
}

/// The answers, once all have started.
type Started = Pin<Box<dyn Future<Output = Result<Vec<Generation>, ApiError>> + Send>>;

/// Answers that are about to start.
pub struct Starting {
    /// Ends once all have started.
    pub started: Started,
    /// Progress of the producer of each answer's prompt meanwhile, by index.
    pub progress: UnboundedReceiver<(usize, Progress)>,
    /// Memory charge of the answers until they are sent.
    pub charge: Charge,
}

/// A whole answer.
#[derive(Debug)]
pub struct Collected {
    /// The finished answer, for counts and times.
    pub generation: Generation,
    /// Its text and tokens.
    pub piece: Piece,
    /// Its end, whose `rest` is in `piece`.
    pub ending: Ending,
}

/// Waits for the end of all answers.
///
/// # Errors
/// That of the first answer that fails; the others are cancelled.
pub async fn collect(generations: Vec<Generation>) -> Result<Vec<Collected>, ApiError> {
    let mut whole = Vec::with_capacity(generations.len());
    // One after the other: the engine runs all of them, whichever is awaited.
    for mut generation in generations {
        let mut piece = Piece::default();
        let mut ending = None;
        while let Some(event) = generation.next().await? {
            match event {
                StreamEvent::Progress(_) => {}
                StreamEvent::Text(more) => piece.append(more),
                StreamEvent::Ended(end) => ending = Some(end),
            }
        }
        let mut ending = ending.expect("an answer without an error has an end");
        piece.append(std::mem::take(&mut ending.rest));
        whole.push(Collected { generation, piece, ending });
    }
    Ok(whole)
}

/// Bytes that a probability takes in JSON, roughly; only the lane of the pool depends on it.
const WRITTEN_PROBABILITY_BYTES: usize = 100;

/// Serialises whole answers by `write`, off the threads that serve if there is much to write. Their bytes stay charged
/// until they are sent.
///
/// # Errors
/// If the pool has no room.
pub async fn write_whole(
    pool: &WorkPool,
    whole: Vec<Collected>,
    charge: Charge,
    write: impl FnOnce(&[Collected]) -> Result<Vec<u8>, serde_json::Error> + Send + 'static,
) -> Result<Response, ApiError> {
    let bytes = |Collected { generation, piece, .. }: &Collected| {
        let plan = generation.plan();
        let probabilities = plan.generate.logprobs.map_or(0, |wanted| piece.tokens.len() * (wanted.count + 1));
        piece.text.len() + plan.prompt.len() * 4 + probabilities * WRITTEN_PROBABILITY_BYTES
    };
    let load = Load::linear(whole.iter().map(bytes).sum());
    let written = pool.run(load, move || write(&whole)).await?;
    let written = written.map_err(|error| ApiError::new(ErrorKind::Server, error.to_string()))?;
    let headers = [(header::CONTENT_TYPE, "application/json")];
    Ok((headers, Body::from(charged(written, charge))).into_response())
}

/// Answers as a stream of events. Dropping the response's body cancels the answers.
///
/// The status is sent once all answers have started or are refused, or a producer has begun with one, but after `ping`
/// at the latest: a later refusal is sent as an event.
///
/// # Errors
/// If an answer is refused before that.
pub async fn respond<D: Dialect>(starting: Starting, dialect: D, ping: Duration) -> Result<Response, ApiError> {
    let Starting { started, progress, charge } = starting;
    let mut events = Events {
        starting: Some((started, progress)),
        _charge: charge,
        generations: Vec::new(),
        dialect,
        ping,
        ready: VecDeque::new(),
        told_at: Instant::now(),
        over: false,
    };
    match timeout(ping, events.start()).await {
        Ok(started) => started?,
        // The status goes out with a ping.
        Err(_) => events.ready.push_back(PING),
    }
    let stream = unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(stream)).into_response())
}

struct Events<D> {
    /// `None` once all have started.
    starting: Option<(Started, UnboundedReceiver<(usize, Progress)>)>,
    _charge: Charge,
    generations: Vec<Generation>,
    dialect: D,
    ping: Duration,
    ready: VecDeque<Bytes>,
    /// Time of the last bytes sent; an event that sends nothing does not delay the ping.
    told_at: Instant,
    over: bool,
}

impl<D: Dialect> Events<D> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.told_at = Instant::now();
                return Some(bytes);
            }
            if self.over {
                return None;
            }
            let ping_at = self.told_at + self.ping;
            if self.starting.is_some() {
                match timeout_at(ping_at, self.start()).await {
                    Err(_) => self.ready.push_back(PING),
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => self.end_with(&error),
                }
                continue;
            }
            match timeout_at(ping_at, next_of(&mut self.generations)).await {
                Err(_) => self.ready.push_back(PING),
                Ok(Some((index, Ok(event)))) => {
                    let chunks = self.dialect.chunks(index, &self.generations[index], event);
                    self.ready.extend(chunks.iter().map(data_line));
                }
                Ok(Some((_, Err(error)))) => {
                    self.end_with(&error);
                }
                Ok(None) => {
                    let chunks = self.dialect.last_chunks(&self.generations);
                    self.ready.extend(chunks.iter().map(data_line));
                    if D::SAYS_DONE {
                        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                    }
                    self.over = true;
                }
            }
        }
    }
}

impl<D: Dialect> Events<D> {
    /// Waits until all answers have started, or until there is something to tell before that. Dropping the future loses
    /// nothing.
    async fn start(&mut self) -> Result<(), ApiError> {
        let Some((started, progress)) = &mut self.starting else { return Ok(()) };
        let mut tell = |(index, progress)| {
            self.ready.extend(self.dialect.producer_progress(index, progress).iter().map(data_line));
        };
        tokio::select! {
            Some(reported) = progress.recv() => tell(reported),
            started = started => {
                // Progress from just before the start is sent before it.
                while let Ok(reported) = progress.try_recv() {
                    tell(reported);
                }
                self.starting = None;
                self.generations = started?;
            }
        }
        Ok(())
    }

    /// Sends an error, with which all answers end.
    fn end_with(&mut self, error: &ApiError) {
        self.starting = None;
        self.generations.clear();
        self.ready.push_back(data_line(&error.body()));
        self.over = true;
    }
}

/// The next event of any of the answers; `None` once all are over.
async fn next_of(generations: &mut [Generation]) -> Option<(usize, Result<StreamEvent, ApiError>)> {
    let open = generations.iter_mut().enumerate().filter(|(_, generation)| !generation.is_over());
    let nexts: Vec<_> =
        open.map(|(index, generation)| Box::pin(async move { (index, generation.next().await.transpose()) })).collect();
    if nexts.is_empty() {
        return None;
    }
    let ((index, event), _, _) = select_all(nexts).await;
    event.map(|event| (index, event))
}

fn data_line(chunk: &Value) -> Bytes {
    // JSON in one line: no line break in a string can end the event.
    Bytes::from(format!("data: {chunk}\n\n"))
}
