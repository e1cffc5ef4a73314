//! Answers as server-sent events, or collected: the same happenings, told as they come or all at once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::select_all;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::generation::{Ending, Generation, Happening};
use crate::text::Piece;

/// How a route tells of happenings.
pub trait Dialect: Send + 'static {
    /// Objects to send for what happened to the answer `index`.
    fn chunks(&mut self, index: usize, generation: &Generation, happening: Happening) -> Vec<Value>;

    /// Objects to send after the end of all answers.
    fn last_chunks(&mut self, generations: &[Generation]) -> Vec<Value>;

    /// Whether `[DONE]` ends the stream.
    const SAYS_DONE: bool;
}

/// A whole answer.
#[derive(Debug)]
pub struct Collected {
    /// The answer's source, for counts and times.
    pub generation: Generation,
    /// Its text and tokens.
    pub piece: Piece,
    /// Why it ended; its `rest` is in `piece`.
    pub ending: Ending,
}

/// Waits for the end of all answers.
///
/// # Errors
/// That of the first answer that fails; the others are given up.
pub async fn collect(generations: Vec<Generation>) -> Result<Vec<Collected>, ApiError> {
    let mut whole = Vec::with_capacity(generations.len());
    // One after the other: the engine works at all of them, whoever is listened to.
    for mut generation in generations {
        let mut piece = Piece::default();
        let mut ending = None;
        while let Some(happening) = generation.next().await? {
            match happening {
                Happening::Progress(_) => {}
                Happening::Piece(more) => piece.append(more),
                Happening::Ended(end) => ending = Some(end),
            }
        }
        let mut ending = ending.expect("an answer without an error has an end");
        piece.append(std::mem::take(&mut ending.rest));
        whole.push(Collected { generation, piece, ending });
    }
    Ok(whole)
}

/// Answers as a stream of events. Dropping the response's body gives the answers up.
pub fn respond<D: Dialect>(generations: Vec<Generation>, dialect: D, ping: Duration) -> Response {
    let events = Events { generations, dialect, ping, ready: VecDeque::new(), over: false };
    let stream = unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(stream)).into_response()
}

struct Events<D> {
    generations: Vec<Generation>,
    dialect: D,
    ping: Duration,
    ready: VecDeque<Bytes>,
    over: bool,
}

impl<D: Dialect> Events<D> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.over {
                return None;
            }
            match timeout(self.ping, next_of(&mut self.generations)).await {
                Err(_) => return Some(Bytes::from_static(b":\n\n")),
                Ok(Some((index, Ok(happening)))) => {
                    let chunks = self.dialect.chunks(index, &self.generations[index], happening);
                    self.ready.extend(chunks.iter().map(event));
                }
                Ok(Some((_, Err(error)))) => {
                    // The other answers are given up with it.
                    self.generations.clear();
                    self.ready.push_back(event(&error.body()));
                    self.over = true;
                }
                Ok(None) => {
                    let chunks = self.dialect.last_chunks(&self.generations);
                    self.ready.extend(chunks.iter().map(event));
                    if D::SAYS_DONE {
                        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                    }
                    self.over = true;
                }
            }
        }
    }
}

/// What happens next to any of the answers; `None` once all are over.
async fn next_of(generations: &mut [Generation]) -> Option<(usize, Result<Happening, ApiError>)> {
    let open = generations.iter_mut().enumerate().filter(|(_, generation)| !generation.is_over());
    let nexts: Vec<_> =
        open.map(|(index, generation)| Box::pin(async move { (index, generation.next().await.transpose()) })).collect();
    if nexts.is_empty() {
        return None;
    }
    let ((index, happening), _, _) = select_all(nexts).await;
    happening.map(|happening| (index, happening))
}

fn event(chunk: &Value) -> Bytes {
    // JSON in one line: no line break in a string can end the event.
    Bytes::from(format!("data: {chunk}\n\n"))
}
