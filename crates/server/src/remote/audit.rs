//! Audits: of a share of handoffs, pages chosen at random are computed again here before anything of them is used.
//!
//! Which handoffs and which pages nobody can know before: every page of a handoff has the same chance. A page that is not,
//! bit for bit, what is computed here makes the handoff void and quarantines the producer; and since earlier handoffs of it
//! were perhaps not audited, everything that is kept for reuse is forgotten.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muser_cluster::handoff::{Address, Handoff, Remote};
use muser_cluster::identity::NodeId;
use muser_cluster::lane::UnixClock;
use muser_cluster::quarantine::{Quarantine, Quarantined};
use muser_engine::engine::{Beginning, Installed, PrefixReuse, Verdict};
use muser_host::EngineHost;
use muser_kv::PAGE_ROWS;
use muser_model::Place;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Longest wait of a request for the quarantine to be written.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// How handoffs are audited.
#[derive(Clone)]
pub struct AuditSettings {
    /// Share of the handoffs, 0 to 1.
    pub rate: f64,
    /// Pages that are computed again in one audit, at most; where what comes before them is not there, as many more may be.
    pub pages_max: NonZeroUsize,
    /// The identity of model and layout.
    pub model: [u8; 32],
    /// A number that no producer can guess; where there is none, 0, at which a handoff is audited.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The time of day.
    pub clock: UnixClock,
    /// Hears what is wrong with a producer, or with writing that down.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Audits handoffs, and knows who is quarantined.
pub struct Auditor {
    settings: AuditSettings,
    quarantine: Arc<Quarantine>,
    /// Who answered where last.
    nodes: Mutex<HashMap<Address, NodeId>>,
}

/// What came of an audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Audited {
    /// What was found.
    pub outcome: AuditOutcome,
    /// Tokens that were computed again; where something was found, as many as would have been.
    pub tokens: usize,
    /// How long it took.
    pub elapsed: Duration,
}

/// What an audit found.
#[derive(Clone, Debug, PartialEq)]
pub enum AuditOutcome {
    /// The bits of so many pages are those that are computed here.
    Same {
        /// Pages compared.
        pages: usize,
    },
    /// They are not.
    Differs(Difference),
    /// There was none, although it was wanted.
    NotAudited {
        /// Why.
        reason: String,
    },
}

/// The first difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The layer.
    pub layer: usize,
    /// The position.
    pub position: usize,
    /// Both and more, in words.
    pub found: String,
}

impl Auditor {
    /// One that adds to `quarantine` whom it finds.
    pub fn new(settings: AuditSettings, quarantine: Arc<Quarantine>) -> Self {
        Self { settings, quarantine, nodes: Mutex::new(HashMap::new()) }
    }

    /// Whether whoever answered at this address last is quarantined.
    pub async fn excludes(&self, address: Address) -> bool {
        let node = self.nodes().get(&address).copied();
        match node {
            // If the list cannot be used, whoever asks a producer is told why, and asks nobody.
            Some(node) => self.quarantine.lookup(node).await.unwrap_or(false),
            None => false,
        }
    }

    /// Notes who answers at an address.
    pub fn met(&self, address: Address, node: NodeId) {
        self.nodes().insert(address, node);
    }

    /// Audits what was brought, or does not: `None` if it was not chosen.
    pub async fn audit(
        &self,
        host: &EngineHost,
        remote: &Remote,
        (installed, reuse): (&Installed, PrefixReuse),
    ) -> Option<Audited> {
        if !is_chosen((self.settings.random)(), self.settings.rate) {
            return None;
        }
        let random = [(self.settings.random)(), (self.settings.random)()];
        let pages = choose_pages(installed.received_pages(), self.settings.pages_max, random);
        let (began, mut tokens) = (Instant::now(), 0);
        let outcome = match self.examine(host, remote, (installed, reuse), pages, &mut tokens).await {
            Ok(Verdict::Same { pages, .. }) => AuditOutcome::Same { pages },
            Ok(Verdict::Differs(mismatch)) => AuditOutcome::Differs(Difference {
                layer: mismatch.layer,
                position: mismatch.position,
                found: mismatch.to_string(),
            }),
            Ok(Verdict::NotFinite(error)) => AuditOutcome::Differs(Difference {
                layer: match error.place {
                    Place::Layer(layer) => layer,
                    // It cannot be there: an audit has no logits computed.
                    Place::Head => 0,
                },
                position: error.position,
                found: format!("what came cannot be gone on from: {error}"),
            }),
            Err(reason) => AuditOutcome::NotAudited { reason },
        };
        Some(Audited { outcome, tokens, elapsed: began.elapsed() })
    }

    /// Quarantines a producer, and has everything forgotten that may have come from it.
    pub async fn condemn(&self, host: &EngineHost, handoff: &Handoff, address: Address, difference: &Difference) {
        host.forget_prefixes();
        let Difference { layer, position, found } = difference.clone();
        let report = Arc::clone(&self.settings.report);
        report(&format!(
            "producer {} at {address} (node {}) sent wrong keys and values: {found}. Nothing of it was used; it is not asked \
             again before muser cluster readmit",
            handoff.producer, handoff.node
        ));
        let (model, since_unix_s) = (self.settings.model, (self.settings.clock)());
        let entry = Quarantined { node: handoff.node, since_unix_s, model, layer, position, found };
        let quarantine = Arc::clone(&self.quarantine);
        // The disk may take its time. What is begun is done even if nobody waits for it any more.
        let written = tokio::task::spawn_blocking(move || {
            if let Err(error) = quarantine.add(entry) {
                report(&format!("the quarantine holds until this process ends, as it cannot be written down: {error}"));
            }
        });
        // It says itself what is wrong with it. A disk that does not answer holds up no request: the node counts as quarantined
        // from the moment at which its entry is to be written.
        let _ = timeout(WRITE_LIMIT, written).await;
    }

    async fn examine(
        &self,
        host: &EngineHost,
        remote: &Remote,
        (installed, reuse): (&Installed, PrefixReuse),
        pages: Range<usize>,
        tokens: &mut usize,
    ) -> Result<Verdict, String> {
        let mut base = installed.beginning(pages.start);
        if base.first_lacking().is_some() {
            base = match self.held_base(host, (installed, reuse), pages.start).await {
                Some(held) => held,
                None => brought_base(host, remote, base).await?,
            };
        }
        let audit = installed.audit(base, pages).map_err(|error| error.to_string())?;
        *tokens = audit.tokens();
        host.audit(audit).await.map_err(|refused| refused.to_string())
    }

    /// Where the range can be computed from without anything more that comes: the first row, or the pages that were held
    /// before, if either is no further away than the range may be long.
    async fn held_base(
        &self,
        host: &EngineHost,
        (installed, reuse): (&Installed, PrefixReuse),
        start: usize,
    ) -> Option<Beginning> {
        let (held, pages_max) = (installed.held_pages(), self.settings.pages_max.get());
        if start <= pages_max {
            return Some(installed.beginning(0));
        }
        if held == 0 || start - held > pages_max {
            return None;
        }
        // All of it is held, or nothing is gained.
        let prompt = installed.tokens().get(..=held * PAGE_ROWS)?.to_vec();
        let installation = host.begin_installation(prompt, reuse).await.ok()?;
        let apart = (installation.held_pages() == held).then(|| installation.finish().ok())??;
        Some(installed.beginning(held).completed_by(&apart))
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, NodeId>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Audited {
    /// What an answer's times say of it.
    pub fn object(&self) -> Value {
        let mut object = json!({"tokens": self.tokens, "ms": self.elapsed.as_secs_f64() * 1e3});
        match &self.outcome {
            AuditOutcome::Same { pages } => {
                object["outcome"] = "same".into();
                object["pages"] = (*pages).into();
            }
            AuditOutcome::Differs(Difference { layer, position, found }) => {
                object["outcome"] = "differs".into();
                object["layer"] = (*layer).into();
                object["position"] = (*position).into();
                object["found"] = found.as_str().into();
            }
            AuditOutcome::NotAudited { reason } => {
                object["outcome"] = "not_audited".into();
                object["reason"] = reason.as_str().into();
            }
        }
        object
    }
}

/// Has the producer send the window before the range, which did not come with the prompt.
async fn brought_base(host: &EngineHost, remote: &Remote, base: Beginning) -> Result<Beginning, String> {
    let mut installation = host.begin_base(base.clone()).await.map_err(|refused| refused.to_string())?;
    let brought = remote.bring(&mut installation).await;
    brought.map_err(|error| format!("the window before the audited pages did not come: {error}"))?;
    let apart = installation.finish().map_err(|error| error.to_string())?;
    Ok(base.completed_by(&apart))
}

/// Whether a number, of all equally likely, is among the share of `rate`.
fn is_chosen(random: u64, rate: f64) -> bool {
    // 53 bits, which a float holds exactly; the quotient is below 1.
    ((random >> 11) as f64 / (1u64 << 53) as f64) < rate
}

/// Up to `pages_max` consecutive ones of `received`, which are not none: the pages are cut into ranges from a random page
/// on, and one of these is taken, so that every page has the same chance.
fn choose_pages(received: Range<usize>, pages_max: NonZeroUsize, random: [u64; 2]) -> Range<usize> {
    let (count, longest) = (received.len().max(1), pages_max.get().min(received.len().max(1)));
    if count <= longest {
        return received;
    }
    let below = |random: u64, bound: usize| usize::try_from(random % bound as u64).unwrap_or(0);
    // The first range has 1 to `longest` pages.
    let first = below(random[0], longest) + 1;
    let ranges = 1 + (count - first).div_ceil(longest);
    match below(random[1], ranges) {
        0 => received.start..received.start + first,
        index => {
            let start = received.start + first + (index - 1) * longest;
            start..(start + longest).min(received.end)
        }
    }
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AuditSettings { rate, pages_max, .. } = &self.settings;
        f.debug_struct("Auditor").field("rate", rate).field("pages_max", pages_max).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_handoffs_is_that_of_the_numbers() {
        assert!(!is_chosen(0, 0.0) && is_chosen(0, f64::MIN_POSITIVE));
        assert!(is_chosen(u64::MAX, 1.0) && !is_chosen(u64::MAX, 0.999));
        let numbers = || (0..1000u64).map(|n| n * (u64::MAX / 1000) + u64::MAX / 2000);
        assert_eq!(numbers().filter(|number| is_chosen(*number, 0.25)).count(), 250);
    }

    #[test]
    fn every_page_that_came_has_the_same_chance() {
        for (received, pages_max) in [(0..1, 1), (0..7, 3), (5..23, 4), (2..10, 8), (2..11, 8), (0..3, 8)] {
            let longest = pages_max.min(received.len());
            // All first numbers that differ, and as many second ones as every count of ranges divides.
            let seconds: u64 = 2 * 2 * 2 * 3 * 3 * 5 * 7 * 11 * 13;
            let mut chances = vec![0u64; received.end];
            for first in 0..longest as u64 {
                for second in 0..seconds {
                    let pages = choose_pages(received.clone(), NonZeroUsize::new(pages_max).unwrap(), [first, second]);
                    assert!(!pages.is_empty() && pages.len() <= longest, "{pages:?}");
                    pages.for_each(|page| chances[page] += 1);
                }
            }
            assert!(chances[..received.start].iter().all(|chance| *chance == 0));
            let of_received = &chances[received.clone()];
            assert!(
                of_received[0] > 0 && of_received.iter().all(|c| *c == of_received[0]),
                "{received:?}: {chances:?}"
            );
        }
    }
}
