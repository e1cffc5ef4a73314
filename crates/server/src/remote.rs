//! Remote prefill: keys and values of long prompts from producers, with their checks, audits and fallbacks.
//!
//! Correctness never depends on a producer: a handoff counts whole or not at all, and the last token of a prompt is
//! computed here in any case. The placement policy picks the node for the rest, by the measured rates of this node and
//! each producer.
//!
//! - `attempt` asks one producer; its outcome is a value, which `settle` enters into counts, policy and report.
//! - `chooser` runs the policy and feeds it measurements, `audit` recomputes some of a handoff's pages.
//! - `source` reports it in answers, `counts` in the metrics.

mod attempt;
mod audit;
mod chooser;
mod counts;
mod source;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use muser_cluster::handoff::Remote;
use muser_engine::engine::{Installed, NotInstallable};
use muser_host::{Answer, EngineHost, Refused};
use muser_kv::PAGE_ROWS;
use muser_placement::{Place, Policy, Verdict};

use crate::error::{ApiError, ErrorKind};
use crate::generation::{Plan, Progress};
use crate::pages::{BeginFuture, PageSource};

pub use audit::{AuditSettings, Auditor};
pub use chooser::{LocalWatch, PolicyFile};
pub use counts::{AuditCounts, ProducerCounts, RemoteCounts};
pub use source::{Chosen, Source};

use attempt::{Attempt, Outcome};
use audit::Audited;
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

/// Callback for the prefill progress of a producer, before the answer begins here.
pub type ProgressListener<'a> = dyn FnMut(Progress) + Send + 'a;

/// A request's search for a producer.
struct Search<'a> {
    /// Producers that were not asked yet.
    left: Vec<&'a Remote>,
    /// True once a producer failed or refused: this node is then the fallback, and no candidate of the policy.
    has_failed: bool,
    source: Source,
}

/// Next step of a search.
enum Next {
    /// The request begins with these pages.
    Submit(Box<Installed>),
    /// The producer counts as absent: a place is chosen again.
    ChooseAgain,
    /// The producer did not help: the request goes on as [`Fallback`] says.
    FallBack,
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

    /// Begins the request with the keys and values of a producer if one is chosen, and otherwise here. `listener`
    /// receives the progress of a producer once it has accepted.
    ///
    /// # Errors
    /// As of the engine; or that no producer helps, if that is to be an error.
    async fn start(
        &self,
        host: &EngineHost,
        plan: &Plan,
        listener: &mut ProgressListener<'_>,
    ) -> Result<Begun, ApiError> {
        let mut search = Search { left: self.not_excluded(host).await, has_failed: false, source: Source::default() };
        if plan.prompt.len() < self.settings.tokens_min {
            return self.here(host, plan, search.source, 0).await;
        }
        loop {
            let installation = match host.begin_installation(plan.prompt.to_vec(), plan.reuse).await {
                Ok(installation) => installation,
                Err(Refused::NotInstallable(refused @ NotInstallable::NoRoom { .. })) => {
                    search.source.add_reason(&refused.to_string());
                    return self.without(host, plan, search.source).await;
                }
                // The engine says the same of the request itself.
                Err(Refused::NotInstallable(_)) => return self.here(host, plan, search.source, 0).await,
                Err(stopped) => return Err(stopped.into()),
            };
            let held = (installation.held_pages() * PAGE_ROWS) as u64;
            let rows = held..installation.tokens().len() as u64;
            if rows.end - rows.start < self.settings.tokens_min as u64 {
                return self.here(host, plan, search.source, held).await;
            }
            let place = match self.choose(host, &rows, &mut search) {
                Some(Place::Producer(address)) => address,
                Some(Place::Local) => return self.here(host, plan, search.source, held).await,
                None => return self.without(host, plan, search.source).await,
            };
            search.left.retain(|remote| remote.address() != place);
            let Some(remote) = self.producers.iter().find(|remote| remote.address() == place) else { continue };
            let under_way = self.chooser.begin(Place::Producer(place), rows.clone());
            let (reuse, auditor, asked) = (plan.reuse, &self.auditor, Instant::now());
            let attempt = Attempt { remote, host, auditor, reuse, rows, asked };
            let (outcome, audited) = attempt.run(installation, under_way, listener).await;
            match self.settle(&attempt, outcome, audited, &mut search) {
                Next::Submit(installed) => match host.submit(plan.job_from(*installed)).await {
                    Ok(answer) => return Ok(Begun { answer, source: search.source, watch: None }),
                    // Decided on the engine's thread: the handoff was complete, but its node was quarantined meanwhile.
                    Err(Refused::Untrusted(reason)) => {
                        remote.take_back_lost(host).await;
                        search.source.lose(&reason.to_string());
                        search.has_failed = true;
                    }
                    Err(refused) => return Err(refused.into()),
                },
                Next::ChooseAgain => continue,
                Next::FallBack => {}
            }
            if self.settings.fallback != Fallback::OtherProducer {
                return self.without(host, plan, search.source).await;
            }
        }
    }

    /// Producers whose node is not known to be quarantined. Pages kept of a node that was quarantined are not used for this
    /// request, wherever it is computed.
    async fn not_excluded(&self, host: &EngineHost) -> Vec<&Remote> {
        let mut left = Vec::with_capacity(self.producers.len());
        for remote in &self.producers {
            remote.take_back_lost(host).await;
            if !self.auditor.excludes(remote.address()).await {
                left.push(remote);
            }
        }
        left
    }

    /// Place for the missing rows; `None` if it has to be a producer and none can be asked. After a failure, only the
    /// producers that were not asked yet are candidates.
    fn choose(&self, host: &EngineHost, rows: &Range<u64>, search: &mut Search<'_>) -> Option<Place> {
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
        let mut places: Vec<_> = search.left.iter().filter_map(producer).collect();
        if self.settings.by == PrefillBy::Cheapest && !search.has_failed {
            // The last token is computed here in any case; here it counts, as it may take a step of its own elsewhere.
            places.push((Place::Local, rows.start..rows.end + 1, 0));
        }
        let chosen = self.chooser.choose(&places, &host.status());
        let is_alone = |chosen: &Chosen| {
            let mut producers = chosen.choice.explanations.iter().filter(|each| each.place != Place::Local);
            producers.all(|each| matches!(each.verdict, Verdict::BackOff { .. }))
        };
        let alone = chosen.as_ref().is_none_or(is_alone);
        if alone && !search.has_failed {
            search.source.add_reason(ALL_ALONE);
        }
        let chosen = chosen?;
        self.lock().chosen(&chosen);
        let place = chosen.choice.place;
        search.source.chosen = Some(chosen);
        (!alone).then_some(place)
    }

    /// Enters the outcome of an attempt into the counts, the policy and the request's report.
    fn settle(
        &self,
        attempt: &Attempt<'_>,
        outcome: Outcome,
        audited: Option<Audited>,
        search: &mut Search<'_>,
    ) -> Next {
        let (address, lost) = (attempt.remote.address(), attempt.asked.elapsed());
        let place = Place::Producer(address);
        if let Some(audited) = &audited {
            self.lock().audited(audited);
        }
        let reason = match outcome {
            Outcome::Brought { installed, handoff } => {
                self.chooser.brought(place, &handoff);
                search.source.audited = audited;
                search.source.handoff = Some(handoff.clone());
                self.lock().brought(address, &handoff, search.source.brought_tokens());
                return Next::Submit(installed);
            }
            Outcome::Quarantined => return Next::ChooseAgain,
            Outcome::Unsuitable { reason, is_too_long } => {
                if is_too_long {
                    self.chooser.too_long(place, attempt.rows.end);
                }
                reason
            }
            Outcome::Busy { reason, retry } => {
                self.lock().failed(address, lost);
                self.chooser.busy(place, retry);
                reason
            }
            Outcome::Failed { reason } => {
                self.lock().failed(address, lost);
                self.chooser.failed(place);
                reason
            }
            Outcome::Void { reason } => reason,
        };
        search.source.audited = audited.or(search.source.audited.take());
        search.source.lost += lost;
        search.source.add_reason(&format!("{address}: {reason}"));
        search.has_failed = true;
        Next::FallBack
    }

    /// Computes here, as chosen.
    async fn here(&self, host: &EngineHost, plan: &Plan, source: Source, held: u64) -> Result<Begun, ApiError> {
        let watch = self.chooser.watch(held, plan.prompt.len() as u64);
        Ok(Begun { answer: host.submit(plan.job()).await?, source, watch: Some(watch) })
    }

    /// Falls back to computing here, or refuses the request, by the settings.
    async fn without(&self, host: &EngineHost, plan: &Plan, source: Source) -> Result<Begun, ApiError> {
        match self.settings.fallback {
            Fallback::Local | Fallback::OtherProducer => {
                self.lock().fallbacks += 1;
                self.here(host, plan, source, 0).await
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

impl PageSource for RemotePrefill {
    fn begin<'a>(
        &'a self,
        host: &'a EngineHost,
        plan: &'a Plan,
        listener: &'a mut ProgressListener<'a>,
    ) -> BeginFuture<'a> {
        Box::pin(self.start(host, plan, listener))
    }

    fn remote_counts(&self) -> Option<RemoteCounts> {
        Some(self.lock().clone())
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
        f.debug_struct("RemotePrefill").field("producers", &addresses).field("counts", &*self.lock()).finish()
    }
}
