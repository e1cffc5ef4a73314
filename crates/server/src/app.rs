//! The server's state: loading, answering, stopping.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::error::{ApiError, ErrorKind};
use crate::memory::MemoryBudget;
use crate::pool::WorkPool;
use crate::record::Counters;
use crate::service::Service;
use crate::settings::{ServerSettings, ServiceSettings};

/// State shared by all connections.
#[derive(Debug)]
pub struct App {
    /// Limits and defaults applied to every request.
    pub settings: ServiceSettings,
    /// Access control, connection limits, pages and logs of the server.
    pub server: ServerSettings,
    /// Start of the server, seconds since 1970.
    pub started_at: u64,
    /// Counts of requests and connections, for `/metrics`.
    pub counters: Counters,
    /// Threads for long work that is not the engine's.
    pub(crate) pool: WorkPool,
    /// Bytes that all requests may hold.
    pub(crate) memory: MemoryBudget,
    service: OnceLock<Arc<Service>>,
    phase: watch::Sender<Phase>,
}

/// Phase of a server's life, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The model is being loaded.
    Loading,
    /// Requests are answered.
    Ready,
    /// Requests under way are answered, no new ones are taken.
    Stopping,
}

impl App {
    /// A server whose model is still being loaded, open to this machine, with the default limits.
    pub fn new(settings: ServiceSettings) -> Self {
        Self::with_server(settings, ServerSettings::default())
    }

    /// A server whose model is still being loaded.
    pub fn with_server(settings: ServiceSettings, server: ServerSettings) -> Self {
        Self {
            settings,
            pool: WorkPool::new(&server.limits),
            memory: MemoryBudget::new(server.limits.memory_bytes_max),
            server,
            started_at: seconds_since_1970(),
            counters: Counters::default(),
            service: OnceLock::new(),
            phase: watch::Sender::new(Phase::Loading),
        }
    }

    /// Sets the loaded model. Only the first call counts.
    pub fn ready(&self, service: Service) {
        // A second one would be an error of the program; the first goes on.
        let _ = self.service.set(Arc::new(service));
        self.advance(Phase::Ready);
    }

    /// Takes no new requests from now on. The server ends when those under way have ended.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    /// The server's current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the server has reached `phase` or a later one.
    pub async fn reached(&self, phase: Phase) {
        // It fails if the sender is gone, and that is part of this.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// The loaded model; `None` while it is being loaded.
    pub fn service_or_none(&self) -> Option<Arc<Service>> {
        self.service.get().cloned()
    }

    /// The loaded model.
    ///
    /// # Errors
    /// If the model is still being loaded.
    pub fn service(&self) -> Result<Arc<Service>, ApiError> {
        self.service_or_none().ok_or_else(|| ApiError::new(ErrorKind::Unavailable, "Loading model").retry_after(1))
    }

    /// Moves to `phase`, unless that one is reached already.
    fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }
}

/// The time of day, seconds since 1970.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
