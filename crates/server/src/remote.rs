//! Keys and values from producers: who is asked, what becomes of it, and what happens without them.
//!
//! Correctness never depends on a producer: what it sends counts whole or not at all, and the last token of a prompt is
//! computed here in any case. A producer that fails is left alone for a while, and asked again after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use muser_cluster::handoff::{Handoff, Remote};
use muser_engine::engine::Request;
use muser_host::{Answer, EngineHost, Refused};
use muser_kv::PAGE_ROWS;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, ErrorKind};

/// How long a producer is left alone after its first failure; each further one in a row doubles it.
const BACK_OFF_FIRST: Duration = Duration::from_secs(1);
/// The longest time that a producer is left alone.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// What to do when no producer helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Compute here.
    Local,
    /// Refuse the request.
    Fail,
}

/// Producers, and when they are asked.
pub struct RemotePrefill {
    producers: Vec<Known>,
    tokens_min: usize,
    fallback: Fallback,
    /// Counts for the metrics.
    pub counts: RemoteCounts,
}

/// What became of requests that producers were asked for.
#[derive(Debug, Default)]
pub struct RemoteCounts {
    /// Prompts that came from producers.
    pub handoffs: AtomicU64,
    /// Attempts that failed.
    pub failures: AtomicU64,
    /// Prompts that were computed here because no producer helped.
    pub fallbacks: AtomicU64,
    /// Bytes of pages that came.
    pub payload_bytes: AtomicU64,
}

struct Known {
    remote: Remote,
    trouble: Mutex<Trouble>,
}

#[derive(Clone, Copy)]
struct Trouble {
    failures: u32,
    usable_from: Instant,
}

/// Where the keys and values of a prompt came from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// They were computed or held here.
    #[default]
    Local,
    /// A producer computed those that were not held.
    Producer(Handoff),
    /// They were computed here, because no producer helped.
    Fallback {
        /// Why not.
        reason: String,
    },
}

impl RemotePrefill {
    /// `producers` in the order in which they are asked, for prompts of which at least `tokens_min` tokens are not held.
    pub fn new(producers: Vec<Remote>, tokens_min: usize, fallback: Fallback) -> Self {
        let trouble = || Mutex::new(Trouble { failures: 0, usable_from: Instant::now() });
        let producers = producers.into_iter().map(|remote| Known { remote, trouble: trouble() }).collect();
        Self { producers, tokens_min, fallback, counts: RemoteCounts::default() }
    }

    /// Begins the request with the keys and values of a producer if it is long enough, and otherwise here.
    ///
    /// # Errors
    /// As of the engine; or that no producer helps, if that is to be an error.
    pub async fn start(&self, host: &EngineHost, request: Request) -> Result<(Answer, Source), ApiError> {
        if request.prompt.len() < self.tokens_min {
            return Ok((host.submit(request).await?, Source::Local));
        }
        let mut reason = String::from("every producer is left alone after failures");
        for known in &self.producers {
            if !known.is_usable() {
                continue;
            }
            let mut installation = match host.begin_installation(request.prompt.clone(), request.reuse).await {
                Ok(installation) => installation,
                Err(Refused::NotInstallable(refused)) => {
                    reason = refused.to_string();
                    break;
                }
                Err(stopped) => return Err(stopped.into()),
            };
            let missing = installation.tokens().len() - installation.held_pages() * PAGE_ROWS;
            if missing < self.tokens_min {
                return Ok((host.submit(request).await?, Source::Local));
            }
            let brought = known.remote.bring(&mut installation).await;
            match brought.map_err(|error| error.to_string()).and_then(|handoff| {
                let installed = installation.finish().map_err(|error| error.to_string())?;
                Ok((handoff, installed))
            }) {
                Ok((handoff, installed)) => {
                    known.works();
                    self.counts.handoffs.fetch_add(1, Ordering::Relaxed);
                    self.counts.payload_bytes.fetch_add(handoff.stats.payload_bytes, Ordering::Relaxed);
                    let answer = host.submit_installed(request, installed).await?;
                    return Ok((answer, Source::Producer(handoff)));
                }
                Err(failure) => {
                    known.fails();
                    self.counts.failures.fetch_add(1, Ordering::Relaxed);
                    reason = format!("{}: {failure}", known.remote.address());
                }
            }
        }
        match self.fallback {
            Fallback::Local => {
                self.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
                Ok((host.submit(request).await?, Source::Fallback { reason }))
            }
            Fallback::Fail => Err(ApiError::new(ErrorKind::Unavailable, format!("no producer helps: {reason}"))),
        }
    }
}

impl std::fmt::Debug for RemotePrefill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.producers.iter().map(|known| known.remote.address()).collect();
        f.debug_struct("RemotePrefill").field("producers", &addresses).field("counts", &self.counts).finish()
    }
}

impl Known {
    fn is_usable(&self) -> bool {
        Instant::now() >= self.lock().usable_from
    }

    fn works(&self) {
        self.lock().failures = 0;
    }

    fn fails(&self) {
        let mut trouble = self.lock();
        let pause = BACK_OFF_FIRST.saturating_mul(1 << trouble.failures.min(10)).min(BACK_OFF_MAX);
        *trouble = Trouble { failures: trouble.failures.saturating_add(1), usable_from: Instant::now() + pause };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    /// Tokens of the prompt that a producer computed.
    pub fn brought_tokens(&self) -> usize {
        match self {
            Self::Producer(handoff) => handoff.stats.rows as usize - handoff.held_pages * PAGE_ROWS,
            Self::Local | Self::Fallback { .. } => 0,
        }
    }

    /// What an answer's times say of it.
    pub fn fields(&self) -> Map<String, Value> {
        let fields = match self {
            Self::Local => json!({"kv_source": "local"}),
            Self::Producer(handoff) => json!({
                "kv_source": "producer",
                "kv_producer": handoff.producer,
                "kv_brought_n": self.brought_tokens(),
                "kv_pages": handoff.stats.pages,
                "kv_payload_bytes": handoff.stats.payload_bytes,
                "kv_wire_bytes": handoff.stats.stored_bytes,
                "kv_ms": handoff.elapsed.as_secs_f64() * 1e3,
            }),
            Self::Fallback { reason } => json!({"kv_source": "local", "kv_fallback": reason}),
        };
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}
