//! Connections: accepted in one loop, each served by a task of its own, closed together.
//!
//! - `admission` decides which connections are kept when more clients connect than the limits allow.
//! - `connection` serves one of them.
//! - `refusal` puts the envelope around the errors of the HTTP layer.
//! - `socket` is its byte stream, with timeouts.
//! - `tls` is the certificate and key of encrypted ones.

mod admission;
mod connection;
mod refusal;
mod socket;
mod tls;

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::access::{Access, Exposure};
use crate::app::{App, Phase};
use crate::heap;
use crate::record::CountedConnection;
use crate::routes::router;
use admission::Admission;
use connection::Serving;
pub use tls::{Tls, TlsError};

/// A bound port. It is bound before the model is loaded: a client that connects meanwhile waits for an answer, and is
/// not refused.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Tls>,
}

/// Error that prevents or ends a server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The host does not resolve to an address.
    #[error("cannot listen on {host}: {reason}")]
    Resolve {
        /// The host, as it was given.
        host: String,
        /// Error of the resolver.
        reason: io::Error,
    },
    /// The address is reachable from other machines, and there are no keys.
    #[error(
        "{address} can be reached from other machines, and without keys anybody there could use this server: \
         give it keys (--api-key-file, --api-key), or say --insecure-public"
    )]
    Public {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {}", bind_reason(reason))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        reason: io::Error,
    },
    /// The system gives no threads, or no I/O events.
    #[error("cannot serve: {0}")]
    Runtime(#[from] io::Error),
    /// The engine has failed. Requests under way were answered with the error.
    #[error("the engine has failed: {0}")]
    Engine(String),
}

fn bind_reason(reason: &io::Error) -> String {
    match reason.kind() {
        io::ErrorKind::AddrInUse => "address in use (is another server running there?)".into(),
        io::ErrorKind::PermissionDenied => "permission denied (ports below 1024 are for the administrator)".into(),
        _ => reason.to_string(),
    }
}

/// Time for the last events of answers that are ended at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Time from the end of a large request to the moment when its memory goes back to the system.
const GIVE_BACK_PAUSE: Duration = Duration::from_millis(200);
/// Pause of accepting while the system has no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Least time between two reports of such a shortage.
const SHORTAGE_REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Server {
    /// Binds the address; port 0 is any free one.
    ///
    /// # Errors
    /// If it cannot be bound.
    pub fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let taken = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address, tls: None })
        });
        taken.map_err(|reason| ServeError::Bind { address, reason })
    }

    /// Binds the first address of `host` that is free, if `access` allows to be reached there.
    ///
    /// # Errors
    /// If none is free, or other machines could reach it without a key.
    pub fn open(host: &str, port: u16, access: &Access) -> Result<Self, ServeError> {
        let unresolved = |reason| ServeError::Resolve { host: host.to_owned(), reason };
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unresolved)?.collect();
        let is_public = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        if access.is_open()
            && access.exposure == Exposure::Local
            && let Some(&address) = addresses.iter().find(is_public)
        {
            return Err(ServeError::Public { address });
        }
        let mut failure = unresolved(io::Error::other("it has no address"));
        for address in addresses {
            match Self::bind(address) {
                Ok(server) => return Ok(server),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Serves TLS instead of plain HTTP.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base URL for clients.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves until `stop` completes or `POST /admin/drain`; then takes no more connections, and lets requests under
    /// way go on for `drain`. Those that are not done then are ended, with an error to their clients.
    ///
    /// # Errors
    /// If the system gives no events for the port, or the engine ends by itself.
    pub async fn run(self, app: Arc<App>, stop: impl Future<Output = ()>, drain: Duration) -> Result<(), ServeError> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let limits = app.server.limits;
        let serving = Serving { router: router(Arc::clone(&app)), limits, tls: self.tls };
        let closing = watch::Sender::new(false);
        let mut ended = tokio::select! {
            () = accept(&listener, &serving, &app, &closing) => Ok(()),
            () = stop => Ok(()),
            () = give_memory_back(&app) => Ok(()),
            () = app.reached(Phase::Stopping) => Ok(()),
            reason = engine_failure(&app) => Err(ServeError::Engine(reason)),
        };
        app.stop();
        drop(listener);
        if ended.is_ok() {
            let drained = async {
                tokio::select! {
                    () = app.counters.idle() => Ok(()),
                    reason = engine_failure(&app) => Err(ServeError::Engine(reason)),
                }
            };
            match timeout(drain, drained).await {
                Ok(drained) => ended = drained,
                Err(_) => app.service_or_none().iter().for_each(|service| service.host.stop()),
            }
        }
        let last_words = async {
            app.counters.idle().await;
            closing.send_replace(true);
            closing.closed().await;
        };
        // What is not done then ends with the runtime.
        let _ = timeout(LAST_WORDS, last_words).await;
        ended
    }
}

/// Accepts connections in an endless loop.
async fn accept(listener: &tokio::net::TcpListener, serving: &Serving, app: &Arc<App>, closing: &watch::Sender<bool>) {
    let table = Arc::new(Admission::new(serving.limits.connections_max, serving.limits.narrow_max));
    let mut reported: Option<Instant> = None;
    let mut is_short = false;
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => {
                is_short = false;
                accepted
            }
            // A connection that was reset before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                if reported.is_none_or(|reported| reported.elapsed() >= SHORTAGE_REPORT_INTERVAL) {
                    reported = Some(Instant::now());
                    app.server.shortage_log.0.iter().for_each(|told| told(&error));
                }
                // At first, connections that were notified to leave may have been too slow; and the latest has not been
                // read yet.
                if is_short {
                    table.make_room();
                }
                is_short = true;
                // Out of descriptors: trying again at once would only burn time until some are given back.
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let closing = closing.subscribe();
        // Without a place it is closed without a word.
        let Some(admitted) = table.admit(address.ip()) else { continue };
        let (serving, counted) = (serving.clone(), CountedConnection::new(Arc::clone(app)));
        tokio::spawn(async move {
            // Errors of a connection are its client's; the requests on it are recorded elsewhere.
            let _ = serving.serve(stream, Arc::clone(&admitted.peer), closing).await;
            drop((counted, admitted));
        });
    }
}

/// Returns freed memory to the system after large requests, in an endless loop.
async fn give_memory_back(app: &App) {
    loop {
        app.memory.returned().await;
        // One time for all that end together; what is charged is freed just after.
        sleep(GIVE_BACK_PAUSE).await;
        // It fails only if the runtime ends.
        let _ = spawn_blocking(heap::give_back).await;
    }
}

/// Waits until the engine has ended; gives the reason.
async fn engine_failure(app: &App) -> String {
    app.reached(Phase::Ready).await;
    let Some(service) = app.service_or_none() else {
        // The server stops before there was an engine: it will not fail.
        return std::future::pending().await;
    };
    let mut host = service.host.clone();
    drop(service);
    loop {
        if let Some(reason) = host.status().failure {
            return reason;
        }
        if !host.changed().await {
            return host.status().failure.unwrap_or_else(|| "it has ended".into());
        }
    }
}
