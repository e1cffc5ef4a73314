//! The server's state: loading, answering, stopping.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{ApiError, ErrorKind};
use crate::service::Service;
use crate::settings::ServiceSettings;

/// What all connections share.
#[derive(Debug)]
pub struct App {
    /// What holds for every request.
    pub settings: ServiceSettings,
    /// When the server was started, in seconds since 1970.
    pub started_at: u64,
    service: OnceLock<Arc<Service>>,
}

impl App {
    /// A server whose model is still being loaded.
    pub fn new(settings: ServiceSettings) -> Self {
        Self { settings, started_at: seconds_since_1970(), service: OnceLock::new() }
    }

    /// The model is there. Only the first one counts.
    pub fn ready(&self, service: Service) {
        // A second one would be an error of the program; the first goes on.
        let _ = self.service.set(Arc::new(service));
    }

    /// What answers, if it is there.
    pub fn service_or_none(&self) -> Option<Arc<Service>> {
        self.service.get().cloned()
    }

    /// What answers.
    ///
    /// # Errors
    /// If the model is still being loaded.
    pub fn service(&self) -> Result<Arc<Service>, ApiError> {
        self.service_or_none().ok_or_else(|| ApiError::new(ErrorKind::Unavailable, "Loading model").retry_after(1))
    }
}

/// The time, as it goes into answers.
pub fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
