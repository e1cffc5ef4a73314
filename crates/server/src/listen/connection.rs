//! One connection, from the first byte to the last.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tower::ServiceExt;

use super::admission::{ConnectionClass, ConnectionPhase, Peer};
use super::socket::{Busy, Timed};
use super::tls::Tls;
use crate::access::is_open;
use crate::error::{ApiError, ErrorKind};
use crate::settings::ConnectionLimits;

/// Time limit of lingering at the end of a connection. Closed at once, a client that is still sending would lose an
/// answer that refuses its request.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Timeout of a narrow connection, for its one request.
const NARROW_TIME: Duration = Duration::from_secs(2);

/// Router, limits and TLS of all connections.
#[derive(Clone, Debug)]
pub struct Serving {
    pub(super) router: Router,
    pub(super) limits: ConnectionLimits,
    pub(super) tls: Option<Tls>,
}

impl Serving {
    /// Serves a connection until it ends. Once `closing` is true, or it has to make way for others, it ends after the answer
    /// under way, if there is one.
    ///
    /// # Errors
    /// If the client leaves in the middle, or does not keep to HTTP or to the limits.
    pub async fn serve(
        mut self,
        stream: TcpStream,
        peer: Arc<Peer>,
        closing: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        if peer.class() == ConnectionClass::Narrow {
            let ConnectionLimits { head_timeout, silence_timeout, idle_timeout, .. } = &mut self.limits;
            [head_timeout, silence_timeout, idle_timeout].into_iter().for_each(|time| *time = NARROW_TIME.min(*time));
        }
        // Tokens go out one by one; none waits for the next.
        stream.set_nodelay(true)?;
        match self.tls.clone() {
            None => self.serve_http(stream, peer, closing).await,
            Some(Tls(acceptor)) => {
                let agreed = timeout(self.limits.head_timeout, acceptor.accept(stream));
                let agreed = tokio::select! {
                    agreed = agreed => agreed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
                    () = peer.must_leave() => return Ok(()),
                };
                self.serve_http(agreed, peer, closing).await
            }
        }
    }

    async fn serve_http<S>(
        self,
        stream: S,
        peer: Arc<Peer>,
        mut closing: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (limits, busy, class) = (self.limits, Busy::new(Arc::clone(&peer)), peer.class());
        let stream = Timed::new(stream, busy.clone(), &limits);
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            busy.begin();
            let (router, busy) = (router.clone(), busy.clone());
            Box::pin(async move {
                let response = match class {
                    ConnectionClass::Narrow if !is_open(request.uri().path()) => too_many().into_response(),
                    _ => router.oneshot(request).await.unwrap_or_else(|never| match never {}),
                };
                Ok::<_, Infallible>(response.map(|body| BusyBody { body, busy }))
            })
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Counted from the end of the request before.
            .header_read_timeout(limits.idle_timeout)
            .max_header_size(limits.head_bytes_max)
            .keep_alive(class == ConnectionClass::Full)
            .serve_connection(TokioIo::new(stream), service);
        let served = tokio::select! {
            served = poll_fn(|context| connection.poll_without_shutdown(context)) => Some(served),
            () = told(&mut closing) => None,
            () = peer.must_leave() => {
                Pin::new(&mut connection).graceful_shutdown();
                // A request that is there is answered; the rest of a head is not waited for: a new connection needs the descriptor.
                poll_fn(|context| match connection.poll_without_shutdown(context) {
                    Poll::Pending if peer.phase() < ConnectionPhase::Answering => Poll::Ready(Ok(())),
                    polled => polled,
                })
                .await?;
                // Closed in favour of another connection, it does not linger.
                return Ok(());
            }
        };
        match served {
            // A client whose head was refused may be sending still, and would lose the refusal.
            Some(Err(error)) if error.is_parse() => {}
            Some(served) => served?,
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|context| connection.poll_without_shutdown(context)).await?;
            }
        }
        let parts = connection.into_parts();
        peer.enter(ConnectionPhase::Leaving);
        tokio::select! {
            () = linger(parts.io.into_inner().into_inner()) => {}
            () = peer.must_leave() => {}
        }
        Ok(())
    }
}

/// Waits until the server is closing, or gone.
async fn told(closing: &mut watch::Receiver<bool>) {
    // It fails if the sender is dropped, which means the same.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// The `503` of narrow connections, on all routes with a key.
fn too_many() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "too many connections are open").retry_after(1)
}

/// Half-closes a connection, and discards incoming bytes until the client closes it, too.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let mut ignored = vec![0; 16 << 10];
    let end = pin!(async {
        stream.shutdown().await?;
        while stream.read(&mut ignored).await? > 0 {}
        io::Result::Ok(())
    });
    // Closed, reset or timed out: all are an end.
    let _ = timeout(LAST_WORDS, end).await;
}

/// Error that ended a connection early.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Of the socket, or of TLS.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Of the HTTP layer.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A body that marks its request as answered when dropped: from then on the timeouts of idle connections and of heads
/// apply.
struct BusyBody {
    body: Body,
    busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for BusyBody {
    fn drop(&mut self) {
        self.busy.end();
    }
}
