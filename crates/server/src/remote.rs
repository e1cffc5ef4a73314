//! Remote prefill: keys and values of long prompts from producers, with their checks, audits and fallbacks.
//!
//! Correctness never depends on a producer: a handoff counts whole or not at all, and the last token of a prompt is
//! computed here in any case. The placement policy picks the node for the rest, by the measured rates of this node and
//! each producer.
//!
//! - `chooser` runs the policy and feeds it measurements, `audit` recomputes some of a handoff's pages.
//! - `source` reports it in answers, `counts` in the metrics.

mod audit;
mod chooser;
mod counts;
mod source;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muser_cluster::handoff::{BringError, Handoff, Milestone, Remote};
use muser_engine::engine::{Installation, Installed, NotInstallable, PrefixReuse, Request};
use muser_host::{Answer, EngineHost, Refused};
use muser_kv::{Maker, PAGE_ROWS};
use muser_placement::{Place, Policy, Verdict};

use crate::error::{ApiError, ErrorKind};

pub use audit::{AuditSettings, Auditor};
pub use chooser::{LocalWatch, PolicyFile};
pub use counts::{AuditCounts, ProducerCounts, RemoteCounts};
pub use source::{Chosen, Source};

use audit::AuditOutcome;
use chooser::Chooser;

/// A place is tried for its measurement only by prompts that lack this many times the tokens from which producers are
/// asked at all.
const TRIAL_FACTOR: u64 = 4;
/// Fallback reason when no producer can be asked.
const ALL_ALONE: &str = "every producer is left alone after failures, quarantined, or takes no prompt of this length";

/// Places that may compute long prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillBy {
    /// This node or a producer, by the lowest expected cost.
    Cheapest,
    /// A producer, by the lowest expected cost; this node is left to other work.
    Producer,
}

/// Reaction to a producer that fails or is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Compute here at once.
    Local,
    /// Ask the other producers, the quickest first, and compute here when none is left.
    OtherProducer,
    /// Refuse the request.
    Fail,
}

/// Settings of remote prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillSettings {
    /// Least number of tokens without cached pages for which a producer is asked; shorter prompts are computed here.
    pub tokens_min: usize,
    /// Places for the prompts above that.
    pub by: PrefillBy,
    /// Reaction to a producer that fails or is busy.
    pub fallback: Fallback,
}

/// Producers with their placement policy, audits and counts.
pub struct RemotePrefill {
    producers: Vec<Remote>,
    settings: PrefillSettings,
    chooser: Arc<Chooser>,
    auditor: Auditor,
    counts: Mutex<RemoteCounts>,
}

/// Prefill progress of a producer, before the request has begun here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bringing {
    /// Tokens of the prompt.
    pub total: usize,
    /// Of these, tokens whose pages were cached here.
    pub held: usize,
    /// Tokens that the producer has computed or that were cached here.
    pub computed: usize,
    /// Time since the producer was asked.
    pub elapsed: Duration,
}

/// Receives the progress of a producer.
pub type BringingListener<'a> = dyn FnMut(Bringing) + Send + 'a;

/// Result of asking a producer.
enum Brought {
    /// All pages, checked, and audited if the handoff was chosen for that; not yet submitted.
    All(Box<Installed>),
    /// The producer failed, refused or was busy.
    Nothing,
    /// The producer is quarantined, and counts as absent.
    Quarantined,
}

/// Reason for which a handoff is not used.
struct Failed {
    reason: String,
    /// True if the failure is the producer's: it is counted, and the producer backed off from.
    is_producers: bool,
}

/// A request that has begun.
pub struct Begun {
    /// Its event stream.
    pub answer: Answer,
    /// Origin of its keys and values.
    pub source: Source,
    /// Measures its prefill for the policy, if it is computed here.
    pub watch: Option<LocalWatch>,
}

impl RemotePrefill {
    /// Asks `producers`, of which those without measurements are tried in this order; `policy` holds the rates known so
    /// far, and `file` persists them; `auditor` checks handoffs.
    pub fn new(
        producers: Vec<Remote>,
        settings: PrefillSettings,
        (policy, file): (Policy, Option<PolicyFile>),
        auditor: Auditor,
    ) -> Self {
        let trial_rows_min = TRIAL_FACTOR.saturating_mul(settings.tokens_min as u64);
        let chooser = Arc::new(Chooser::new(policy, file, trial_rows_min));
        let counts = RemoteCounts {
            producers: producers.iter().map(|remote| (remote.address(), ProducerCounts::default())).collect(),
            ..RemoteCounts::default()
        };
        Self { producers, settings, chooser, auditor, counts: Mutex::new(counts) }
    }

    /// Sums for the metrics.
    pub fn counts(&self) -> RemoteCounts {
        self.lock().clone()
    }

    /// Begins the request with the keys and values of a producer if one is chosen, and otherwise here. `listener`
    /// receives the progress of a producer once it has accepted.
    ///
    /// # Errors
    /// As of the engine; or that no producer helps, if that is to be an error.
    pub async fn start(
        &self,
        host: &EngineHost,
        request: Request,
        listener: &mut BringingListener<'_>,
    ) -> Result<Begun, ApiError> {
        let mut source = Source::default();
        let mut left: Vec<&Remote> = Vec::with_capacity(self.producers.len());
        for remote in &self.producers {
            // Pages kept of a node that was quarantined are not used for this request, wherever it is computed.
            remote.take_back_lost(host).await;
            if !self.auditor.excludes(remote.address()).await {
                left.push(remote);
            }
        }
        if request.prompt.len() < self.settings.tokens_min {
            return self.here(host, request, (source, 0)).await;
        }
        loop {
            let installation = match host.begin_installation(request.prompt.clone(), request.reuse).await {
                Ok(installation) => installation,
                Err(Refused::NotInstallable(refused @ NotInstallable::NoRoom { .. })) => {
                    source.add_reason(&refused.to_string());
                    return self.without(host, request, source).await;
                }
                // The engine says the same of the request itself.
                Err(Refused::NotInstallable(_)) => return self.here(host, request, (source, 0)).await,
                Err(stopped) => return Err(stopped.into()),
            };
            let held = (installation.held_pages() * PAGE_ROWS) as u64;
            let rows = held..installation.tokens().len() as u64;
            if rows.end - rows.start < self.settings.tokens_min as u64 {
                return self.here(host, request, (source, held)).await;
            }
            let place = match self.choose(host, &rows, &left, &mut source) {
                Some(Place::Producer(address)) => address,
                Some(Place::Local) => return self.here(host, request, (source, held)).await,
                None => return self.without(host, request, source).await,
            };
            left.retain(|remote| remote.address() != place);
            let Some(remote) = self.producers.iter().find(|remote| remote.address() == place) else { continue };
            match self.bring(remote, (installation, rows), (host, request.reuse), &mut source, listener).await {
                Brought::All(installed) => match host.submit_installed(request.clone(), *installed).await {
                    Ok(answer) => return Ok(Begun { answer, source, watch: None }),
                    // Decided on the engine's thread: the handoff was complete, but its node was quarantined meanwhile.
                    Err(Refused::Untrusted(reason)) => {
                        remote.take_back_lost(host).await;
                        source.lose(&reason.to_string());
                    }
                    Err(refused) => return Err(refused.into()),
                },
                Brought::Quarantined => continue,
                Brought::Nothing => {}
            }
            if self.settings.fallback != Fallback::OtherProducer {
                return self.without(host, request, source).await;
            }
        }
    }

    /// Place for the missing rows; `None` if it has to be a producer and none can be asked. After a failure, only the
    /// producers in `left` are candidates.
    fn choose(&self, host: &EngineHost, rows: &Range<u64>, left: &[&Remote], source: &mut Source) -> Option<Place> {
        let held_pages = usize::try_from(rows.start).unwrap_or(usize::MAX) / PAGE_ROWS;
        let all = usize::try_from(rows.end).unwrap_or(usize::MAX);
        let producer = |remote: &&Remote| {
            // What cannot be planned cannot be asked for, either.
            let plan = remote.shape().plan(all, held_pages)?;
            // Nor what it has just refused for its length.
            if self.chooser.is_too_long(Place::Producer(remote.address()), rows.end) {
                return None;
            }
            Some((Place::Producer(remote.address()), rows.clone(), plan.payload_bytes()))
        };
        let mut places: Vec<_> = left.iter().filter_map(producer).collect();
        if self.settings.by == PrefillBy::Cheapest && source.fallback.is_none() {
            // The last token is computed here in any case; here it counts, as it may take a step of its own elsewhere.
            places.push((Place::Local, rows.start..rows.end + 1, 0));
        }
        let chosen = self.chooser.choose(&places, &host.status());
        let is_alone = |chosen: &Chosen| {
            let mut producers = chosen.choice.explanations.iter().filter(|each| each.place != Place::Local);
            producers.all(|each| matches!(each.verdict, Verdict::BackOff { .. }))
        };
        let alone = chosen.as_ref().is_none_or(is_alone);
        if alone && source.fallback.is_none() {
            source.add_reason(ALL_ALONE);
        }
        let chosen = chosen?;
        self.lock().chosen(&chosen);
        let place = chosen.choice.place;
        source.chosen = Some(chosen);
        (!alone).then_some(place)
    }

    /// Fetches the missing rows from a producer.
    async fn bring(
        &self,
        remote: &Remote,
        (mut installation, rows): (Installation, Range<u64>),
        (host, reuse): (&EngineHost, PrefixReuse),
        source: &mut Source,
        listener: &mut BringingListener<'_>,
    ) -> Brought {
        let (address, asked) = (remote.address(), Instant::now());
        let (held, total) = (installation.held_pages() * PAGE_ROWS, installation.tokens().len() + 1);
        let asked_rows = rows.end;
        let under_way = self.chooser.begin(Place::Producer(address), rows);
        let mut heard = |milestone| {
            let computed = match milestone {
                Milestone::Accepted => held,
                Milestone::Computed { rows } => (rows as usize).clamp(held, total - 1),
            };
            under_way.progress(computed as u64);
            listener(Bringing { total, held, computed, elapsed: asked.elapsed() });
        };
        let brought = remote.bring_telling(&mut installation, &mut heard).await;
        drop(under_way);
        if brought.is_err() {
            remote.take_back_lost(host).await;
        }
        let checked = match brought {
            Ok(handoff) => {
                let installed = installation.finish();
                installed.map(|installed| (handoff, installed)).map_err(|error| Failed::of_producer(&error))
            }
            Err(BringError::Quarantined(node)) => {
                self.auditor.met(address, node);
                // Another process may have quarantined the node: its pages kept here are dropped as well.
                host.take_back(Maker(node.0));
                return Brought::Quarantined;
            }
            // The producer refused this request alone: that is no failure, and no reason to back off.
            Err(error) if error.is_unsuitable() => {
                if error.is_too_long() {
                    self.chooser.too_long(Place::Producer(address), asked_rows);
                }
                Err(Failed { reason: error.to_string(), is_producers: false })
            }
            Err(error) => {
                if let Some(retry) = error.busy_for() {
                    self.gave_nothing(remote, asked, &error.to_string(), source);
                    self.chooser.busy(Place::Producer(address), retry);
                    return Brought::Nothing;
                }
                Err(Failed::of_producer(&error))
            }
        };
        let checked = match checked {
            Ok((handoff, installed)) => {
                self.auditor.met(address, handoff.node);
                let audited = self.audit(remote, &handoff, (host, &installed, reuse), source).await;
                audited.map(|()| (handoff, installed))
            }
            failed => failed,
        };
        match checked {
            Ok((handoff, installed)) => {
                self.chooser.brought(Place::Producer(address), &handoff);
                source.handoff = Some(handoff.clone());
                self.lock().brought(address, &handoff, source.brought_tokens());
                Brought::All(Box::new(installed))
            }
            Err(Failed { reason, is_producers: true }) => {
                self.gave_nothing(remote, asked, &reason, source);
                self.chooser.failed(Place::Producer(address));
                Brought::Nothing
            }
            Err(Failed { reason, .. }) => {
                source.lost += asked.elapsed();
                source.add_reason(&format!("{address}: {reason}"));
                Brought::Nothing
            }
        }
    }

    /// Audits a handoff, if it is chosen for that; an error if a page differs.
    async fn audit(
        &self,
        remote: &Remote,
        handoff: &Handoff,
        (host, installed, reuse): (&EngineHost, &Installed, PrefixReuse),
        source: &mut Source,
    ) -> Result<(), Failed> {
        source.audited = self.auditor.audit(host, (remote, handoff.node), (installed, reuse)).await;
        let Some(audited) = &source.audited else { return Ok(()) };
        self.lock().audited(audited);
        let AuditOutcome::Differs(difference) = &audited.outcome else { return Ok(()) };
        self.auditor.condemn(host, handoff, remote.address(), difference).await;
        let found = &difference.found;
        Err(match difference.maker {
            Some(node) if node == handoff.node => {
                Failed { reason: format!("an audit found what it sent to be wrong: {found}"), is_producers: true }
            }
            Some(node) => Failed {
                reason: format!("an audit found what was held of node {node} to be wrong: {found}"),
                is_producers: false,
            },
            None => {
                Failed { reason: format!("an audit found keys and values to be wrong: {found}"), is_producers: false }
            }
        })
    }

    /// Counts a failed attempt.
    fn gave_nothing(&self, remote: &Remote, asked: Instant, reason: &str, source: &mut Source) {
        let (address, lost) = (remote.address(), asked.elapsed());
        self.lock().failed(address, lost);
        source.lost += lost;
        source.add_reason(&format!("{address}: {reason}"));
    }

    /// Computes here, as chosen.
    async fn here(
        &self,
        host: &EngineHost,
        request: Request,
        (source, held): (Source, u64),
    ) -> Result<Begun, ApiError> {
        let watch = self.chooser.watch(held, request.prompt.len() as u64);
        Ok(Begun { answer: host.submit(request).await?, source, watch: Some(watch) })
    }

    /// Falls back to computing here, or refuses the request, by the settings.
    async fn without(&self, host: &EngineHost, request: Request, source: Source) -> Result<Begun, ApiError> {
        match self.settings.fallback {
            Fallback::Local | Fallback::OtherProducer => {
                self.lock().fallbacks += 1;
                self.here(host, request, (source, 0)).await
            }
            Fallback::Fail => {
                let reason = source.fallback.as_deref().unwrap_or_default();
                Err(ApiError::new(ErrorKind::Unavailable, format!("no producer helps: {reason}")))
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RemoteCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failed {
    fn of_producer(error: &dyn std::fmt::Display) -> Self {
        Self { reason: error.to_string(), is_producers: true }
    }
}

impl Drop for RemotePrefill {
    fn drop(&mut self) {
        self.chooser.save_at_the_end();
    }
}

impl std::fmt::Debug for RemotePrefill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses: Vec<_> = self.producers.iter().map(Remote::address).collect();
        f.debug_struct("RemotePrefill").field("producers", &addresses).field("counts", &self.counts()).finish()
    }
}
