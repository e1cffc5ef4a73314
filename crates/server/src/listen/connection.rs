//! One connection, from the first byte to the last.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tower::ServiceExt;

use super::socket::{Busy, Timed};
use super::tls::Tls;
use crate::settings::Limits;

/// How long the end of a connection may take. A client that is still sending while its answer says no would lose the answer
/// if the connection were closed at once.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What is sent to whoever comes when no more connections can be had.
const TOO_MANY: &str =
    "{\"error\":{\"code\":503,\"message\":\"too many connections are open\",\"type\":\"unavailable_error\"}}";

/// What all connections are served by.
#[derive(Clone, Debug)]
pub struct Serving {
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) tls: Option<Tls>,
}

impl Serving {
    /// Serves a connection until it ends. Once `closing` is true it ends after the answer under way, if there is one.
    ///
    /// # Errors
    /// If the client leaves in the middle, or does not keep to HTTP or to the limits.
    pub async fn serve(self, stream: TcpStream, closing: watch::Receiver<bool>) -> Result<(), ConnectionError> {
        // Tokens go out one by one; none waits for the next.
        stream.set_nodelay(true)?;
        match self.tls.clone() {
            None => self.serve_http(stream, closing).await,
            Some(Tls(acceptor)) => {
                let agreed = timeout(self.limits.head_timeout, acceptor.accept(stream)).await;
                self.serve_http(agreed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??, closing).await
            }
        }
    }

    async fn serve_http<S>(self, stream: S, mut closing: watch::Receiver<bool>) -> Result<(), ConnectionError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (limits, busy) = (self.limits, Busy::default());
        let stream = Timed::new(stream, busy.clone(), limits.head_timeout, limits.write_stall);
        let router = self.router;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            busy.begin();
            let (router, busy) = (router.clone(), busy.clone());
            Box::pin(async move {
                let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(response.map(|body| BusyBody { body, busy }))
            })
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Counted from the end of the request before.
            .header_read_timeout(limits.idle_timeout)
            .max_header_size(limits.head_bytes_max)
            .serve_connection(TokioIo::new(stream), service);
        let served = tokio::select! {
            served = poll_fn(|context| connection.poll_without_shutdown(context)) => Some(served),
            () = told(&mut closing) => None,
        };
        match served {
            Some(served) => served?,
            None => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|context| connection.poll_without_shutdown(context)).await?;
            }
        }
        let parts = connection.into_parts();
        linger(parts.io.into_inner().into_inner()).await;
        Ok(())
    }
}

/// Waits until the server is closing, or gone.
async fn told(closing: &mut watch::Receiver<bool>) {
    // It fails if nobody is left who could say so.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Tells a client that it is one too many.
pub async fn turn_away(mut stream: TcpStream) {
    let head =
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: application/json";
    let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{TOO_MANY}", TOO_MANY.len());
    // Whoever leaves before needs no answer.
    if timeout(LAST_WORDS, stream.write_all(answer.as_bytes())).await.is_ok_and(|written| written.is_ok()) {
        linger(stream).await;
    }
}

/// Ends a connection: says that nothing more will come, and takes what is still on its way until the client ends it, too.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let mut ignored = vec![0; 16 << 10];
    let end = pin!(async {
        stream.shutdown().await?;
        while stream.read(&mut ignored).await? > 0 {}
        io::Result::Ok(())
    });
    // How it ends is of no more interest.
    let _ = timeout(LAST_WORDS, end).await;
}

/// Why a connection ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The system, or TLS, says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// HTTP says so.
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A body at whose end the client may be slow to ask again, but not slow in asking.
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
