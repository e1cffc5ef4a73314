//! Settings of a server, fixed when it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use muser_engine::SamplingSettings;

use crate::access::Access;
use crate::record::RequestRecord;

/// Limits, names and defaults applied to every request.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// The model's name in answers and in the list of models.
    pub alias: String,
    /// Path of the model's file, for `/props`; `None` for the model inside the program.
    pub model_path: Option<PathBuf>,
    /// Sampler settings of a request that sets none. The seed is not used: without one, a request gets a random seed.
    pub sampling: SamplingSettings,
    /// Tokens to generate for a request that sets no limit; `None` goes on until the model ends or the context is full.
    pub tokens_max: Option<usize>,
    /// Name and version of the program.
    pub build: String,
    /// Longest silence of a stream before a comment is sent, so that no proxy on the way times it out.
    pub ping: Duration,
    /// The most prompts of one request, and answers to one prompt, together.
    pub answers_max: usize,
}

/// Access control, connection limits, pages and logs of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// Keys, origins and reachability.
    pub access: Access,
    /// Limits of connections and of their requests.
    pub limits: ConnectionLimits,
    /// Visibility of `/metrics`.
    pub metrics: PageVisibility,
    /// Visibility of `/slots`.
    pub slots: PageVisibility,
    /// Receiver of a record of each request.
    pub log: Log,
    /// Receiver of errors when the system has no descriptor for a connection.
    pub shortage_log: ShortageLog,
}

/// Visibility of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageVisibility {
    /// Answered.
    #[default]
    Shown,
    /// Refused, with the reason.
    Hidden,
}

/// Receives the record of each request once it is over; none by default.
#[derive(Clone, Default)]
pub struct Log(pub Option<Arc<LogFn>>);

/// Takes the record of a request.
pub type LogFn = dyn Fn(&RequestRecord) + Send + Sync;

/// Receives the system's error when no connection can be accepted, at most once a minute; none by default.
#[derive(Clone, Default)]
pub struct ShortageLog(pub Option<Arc<ShortageFn>>);

/// Takes the error with which the system refused a connection.
pub type ShortageFn = dyn Fn(&io::Error) + Send + Sync;

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Log(set)" } else { "Log(none)" })
    }
}

impl fmt::Debug for ShortageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ShortageLog(set)" } else { "ShortageLog(none)" })
    }
}

/// Limits of connections in number, bytes and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections that are open at once; an address has three quarters of them at most. When they are taken, an idle
    /// one is closed for the new one. If none is idle, the new one gets a 503 and is closed, within `narrow_max`;
    /// beyond that it is closed without an answer. Default 512.
    pub connections_max: usize,
    /// Narrow places: connections beyond `connections_max`, each for one request to a route without a key. Default 64.
    pub narrow_max: usize,
    /// Bytes of a request's head: its line and its headers. More is answered by a 431. Default 32 KiB, at least 8 KiB.
    pub head_bytes_max: usize,
    /// Time from the first byte of a request to the end of its head, and for agreeing on TLS. Default 10 s.
    pub head_timeout: Duration,
    /// Time that a new connection may stay open without a byte. Default 5 s.
    pub silence_timeout: Duration,
    /// Time that a connection may stay open between two requests. Default 75 s.
    pub idle_timeout: Duration,
    /// Bytes of a body. More is answered by a 413. Default 32 MiB.
    pub body_bytes_max: usize,
    /// Time from the end of the head to the end of the body. More is answered by a 408. Default 60 s.
    pub body_timeout: Duration,
    /// Write timeout: a client that accepts no byte for so long is disconnected, and its request cancelled. Default 60 s.
    pub write_stall: Duration,
    /// Threads of each lane of the pool that parses, tokenises, fills templates and writes. Default 2.
    pub pool_threads: usize,
    /// Requests that wait for a thread of a lane. More are answered by a 503. Default 64.
    pub pool_queue_max: usize,
    /// Time that a request waits for a thread of the pool. Then it is answered by a 503. Default 10 s.
    pub pool_patience: Duration,
    /// Bytes that all requests may hold at once: bodies, what they become while they are read, and answers that are kept.
    /// A request for more is answered by a 503. Default 256 MiB.
    pub memory_bytes_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 512,
            narrow_max: 64,
            head_bytes_max: 32 << 10,
            head_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(75),
            body_bytes_max: 32 << 20,
            body_timeout: Duration::from_secs(60),
            write_stall: Duration::from_secs(60),
            pool_threads: 2,
            pool_queue_max: 64,
            pool_patience: Duration::from_secs(10),
            memory_bytes_max: 256 << 20,
        }
    }
}
