//! Connections: accepted one by one, served by hyper, let go of together.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;

use crate::app::App;
use crate::routes::router;

/// A port that is taken, before anything else is done: who asks meanwhile waits for an answer, not for a connection.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        reason: io::Error,
    },
    /// The system gives no threads, or no events.
    #[error("cannot serve: {0}")]
    Runtime(#[from] io::Error),
}

impl Server {
    /// Takes the address; port 0 is any free one.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let taken = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        });
        taken.map_err(|reason| ServeError::Bind { address, reason })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` ends; then takes no more connections, and lets requests under way go on for `drain`.
    ///
    /// # Errors
    /// If the system gives no events for the port.
    pub async fn run(self, app: Arc<App>, stop: impl Future<Output = ()>, drain: Duration) -> Result<(), ServeError> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let router = router(app);
        let connections = GracefulShutdown::new();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            // A connection that failed before it began is nobody's loss.
            let Ok((stream, _)) = accepted else { continue };
            let service = TowerToHyperService::new(router.clone());
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            let connection = connections.watch(builder.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(connection);
        }
        drop(listener);
        // What is not done then ends with the runtime.
        let _ = tokio::time::timeout(drain, connections.shutdown()).await;
        Ok(())
    }
}
