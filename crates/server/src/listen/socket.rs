//! A connection's byte stream with timeouts: closes clients that send nothing, send a head too slowly, or do not read
//! their answer.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::admission::{ConnectionPhase, Peer};
use super::refusal::replaced;
use crate::settings::ConnectionLimits;

/// True while a request of the connection is being answered: then the client may be silent. Clones share the flag.
#[derive(Clone, Debug)]
pub struct Busy(Arc<State>);

#[derive(Debug)]
struct State {
    answering: AtomicBool,
    heads: AtomicUsize,
    peer: Arc<Peer>,
}

impl Busy {
    /// Of a connection that has asked for nothing yet.
    pub fn new(peer: Arc<Peer>) -> Self {
        Self(Arc::new(State { answering: AtomicBool::new(false), heads: AtomicUsize::new(0), peer }))
    }

    /// Its head has arrived.
    pub fn begin(&self) {
        self.0.answering.store(true, Ordering::Relaxed);
        self.0.heads.fetch_add(1, Ordering::Relaxed);
        self.0.peer.enter(ConnectionPhase::Answering);
    }

    /// Its answer has been handed over.
    pub fn end(&self) {
        self.0.answering.store(false, Ordering::Relaxed);
        self.0.peer.enter(ConnectionPhase::Waiting);
    }

    fn is_answering(&self) -> bool {
        self.0.answering.load(Ordering::Relaxed)
    }

    /// Heads that have arrived.
    fn heads(&self) -> usize {
        self.0.heads.load(Ordering::Relaxed)
    }
}

/// Byte stream of a connection, with timeouts.
#[derive(Debug)]
pub struct Timed<S> {
    stream: S,
    busy: Busy,
    /// Heads that had arrived when `head` was last looked at: with another one, its time starts anew.
    heads: usize,
    /// Timer of a new connection, until its first byte.
    silence: Timer,
    is_silent: bool,
    head: Timer,
    write: Timer,
    /// Bytes sent instead of a refusal of the HTTP layer.
    instead: Vec<u8>,
}

/// A timeout, stopped or running.
#[derive(Debug)]
struct Timer {
    limit: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    /// Until the first byte at most `silence_timeout` of the limits passes, from the first byte of a request to
    /// [`Busy::begin`] at most `head_timeout`, and from one byte that the client takes to the next at most `write_stall`.
    pub fn new(stream: S, busy: Busy, limits: &ConnectionLimits) -> Self {
        let [silence, head, write] = [limits.silence_timeout, limits.head_timeout, limits.write_stall].map(Timer::new);
        Self { stream, busy, heads: 0, silence, is_silent: true, head, write, instead: Vec::new() }
    }

    /// The bytes without the clock.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl Timer {
    fn new(limit: Duration) -> Self {
        Self { limit, running: None }
    }

    fn start(&mut self) {
        self.running.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + self.limit)));
    }

    fn stop(&mut self) {
        self.running = None;
    }

    /// `TimedOut` once the time is over.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.running.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready());
        if is_over { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Applies the timeout to a poll of a write: pending starts it, ready stops it.
    fn watch<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stop();
            return polled;
        }
        self.start();
        self.check(context)?;
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.heads != this.busy.heads() {
            this.heads = this.busy.heads();
            this.head.stop();
        }
        if this.busy.is_answering() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                if buffer.filled().len() > before {
                    this.head.start();
                    this.is_silent = false;
                    this.busy.0.peer.enter(ConnectionPhase::Head);
                }
                this.head.check(context)?;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if this.is_silent {
                    this.silence.start();
                    this.silence.check(context)?;
                }
                this.head.check(context)?;
                Poll::Pending
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Some((refusal, instead)) = replaced(bytes) {
            // It goes out with what follows; nothing follows but the end.
            if refusal.start == 0 {
                this.instead = instead;
                return Poll::Ready(Ok(bytes.len()));
            }
            return this.write.watch(Pin::new(&mut this.stream).poll_write(context, &bytes[..refusal.start]), context);
        }
        this.write.watch(Pin::new(&mut this.stream).poll_write(context, bytes), context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = parts.iter().find(|part| !part.is_empty());
        if let Some(first) = first.filter(|first| replaced(first).is_some()) {
            return self.poll_write(context, first);
        }
        let this = &mut *self;
        this.write.watch(Pin::new(&mut this.stream).poll_write_vectored(context, parts), context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while !this.instead.is_empty() {
            let polled = Pin::new(&mut this.stream).poll_write(context, &this.instead);
            let written = ready!(this.write.watch(polled, context))?;
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            this.instead.drain(..written);
        }
        this.write.watch(Pin::new(&mut this.stream).poll_flush(context), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
