//! Audits: of a share of handoffs, pages chosen at random are recomputed here before anything of them is used.
//!
//! Neither the handoffs nor the pages can be predicted: every page of a handoff has the same chance. A page that is
//! not, bit for bit, the one computed here makes the handoff void. It quarantines the machine that made the page,
//! whichever was audited: cached pages of others are recomputed with those behind them. Earlier handoffs of that
//! machine were perhaps not audited, so every page that depends on it is revoked, and nothing else.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muser_cluster::handoff::{Handoff, Remote};
use muser_engine::engine::{Beginning, Installed, PrefixReuse, Verdict};
use muser_host::EngineHost;
use muser_kv::{Maker, PAGE_ROWS};
use muser_lane::UnixClock;
use muser_model::Place;
use muser_trust::Address;
use muser_trust::identity::NodeId;
use muser_trust::quarantine::{Quarantine, Quarantined};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Longest wait of a request for the quarantine to be written.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// Settings of audits.
#[derive(Clone)]
pub struct AuditSettings {
    /// Share of the handoffs, 0 to 1.
    pub rate: f64,
    /// Pages recomputed in one audit, at most; where the pages before them are not cached, as many more may be.
    pub pages_max: NonZeroUsize,
    /// The identity of model and layout.
    pub model: [u8; 32],
    /// Random numbers that no producer can guess; a source that fails gives 0, which chooses the handoff at any rate
    /// above 0.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// The time of day.
    pub clock: UnixClock,
    /// Receives a report of each fault of a producer, and of each failure to persist it.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Runs audits, and keeps the list of quarantined nodes.
pub struct Auditor {
    settings: AuditSettings,
    quarantine: Arc<Quarantine>,
    /// Node that answered last, by address.
    nodes: Mutex<HashMap<Address, NodeId>>,
}

/// Result of one audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Audited {
    /// The verdict.
    pub outcome: AuditOutcome,
    /// Tokens recomputed; after a difference, as many as would have been.
    pub tokens: usize,
    /// Time taken.
    pub elapsed: Duration,
}

/// Verdict of an audit.
#[derive(Clone, Debug, PartialEq)]
pub enum AuditOutcome {
    /// All recomputed pages are equal, bit for bit.
    Same {
        /// Pages compared.
        pages: usize,
    },
    /// A page differs.
    Differs(Difference),
    /// The audit could not be run.
    NotAudited {
        /// The error.
        reason: String,
    },
}

/// First difference found by an audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The layer.
    pub layer: usize,
    /// The position.
    pub position: usize,
    /// Message: the place of the difference, or the reason for which the pages cannot be continued from.
    pub found: String,
    /// Node that made the page; `None` if that is not certain.
    pub maker: Option<NodeId>,
}

/// Input of an audit: the handoff's pages, their maker, and the range to recompute.
struct Audition<'a> {
    installed: &'a Installed,
    reuse: PrefixReuse,
    maker: Maker,
    pages: Range<usize>,
}

/// Result of recomputing a range.
struct Finding {
    verdict: Verdict,
    /// Pages before the first recomputed one.
    base: usize,
    /// True if these come from this machine and the audited one only.
    is_certain: bool,
}

impl Auditor {
    /// An auditor that adds the nodes it finds to `quarantine`.
    pub fn new(settings: AuditSettings, quarantine: Arc<Quarantine>) -> Self {
        Self { settings, quarantine, nodes: Mutex::new(HashMap::new()) }
    }

    /// True if the node that answered last at this address is quarantined.
    pub async fn excludes(&self, address: Address) -> bool {
        let node = self.nodes().get(&address).copied();
        match node {
            // If the list cannot be read, the request to a producer fails with that error, and nothing is asked.
            Some(node) => self.quarantine.lookup(node).await.unwrap_or(false),
            None => false,
        }
    }

    /// Records the node that answers at an address.
    pub fn met(&self, address: Address, node: NodeId) {
        self.nodes().insert(address, node);
    }

    /// Audits a handoff; `None` if it is not chosen.
    pub async fn audit(
        &self,
        host: &EngineHost,
        (remote, node): (&Remote, NodeId),
        (installed, reuse): (&Installed, PrefixReuse),
    ) -> Option<Audited> {
        if !is_chosen((self.settings.random)(), self.settings.rate) {
            return None;
        }
        let random = [(self.settings.random)(), (self.settings.random)()];
        let pages = choose_pages(installed.received_pages(), self.settings.pages_max, random);
        let (began, mut tokens) = (Instant::now(), 0);
        let audition = Audition { installed, reuse, maker: Maker(node.0), pages };
        let outcome = match self.examine(host, remote, &audition, &mut tokens).await {
            Ok(finding) => audition.outcome(&finding),
            Err(reason) => AuditOutcome::NotAudited { reason },
        };
        Some(Audited { outcome, tokens, elapsed: began.elapsed() })
    }

    /// Quarantines the node that made a wrong page, and revokes every page that depends on it; if the maker is not
    /// certain, all cached pages are dropped. The quarantine counts before any page is revoked, so that no handoff
    /// begins in between.
    pub async fn condemn(&self, host: &EngineHost, handoff: &Handoff, address: Address, difference: &Difference) {
        let Difference { layer, position, found, maker } = difference.clone();
        let report = Arc::clone(&self.settings.report);
        let Some(node) = maker else {
            host.forget_prefixes();
            report(&format!(
                "keys and values are wrong, and nobody knows whose they are: {found}. All that was kept is forgotten"
            ));
            return;
        };
        self.quarantine.begin(node);
        host.take_back(Maker(node.0));
        if node == handoff.node {
            report(&format!(
                "producer {} at {address} (node {node}) sent wrong keys and values: {found}. Nothing of it was used; it is not \
                 asked again before muser cluster readmit",
                handoff.producer
            ));
        } else {
            report(&format!(
                "node {node} sent wrong keys and values, which were held: {found}. They are taken back; it is not asked again \
                 before muser cluster readmit"
            ));
        }
        let (model, since_unix_s) = (self.settings.model, (self.settings.clock)());
        let entry = Quarantined { node, since_unix_s, model, layer, position, found };
        let quarantine = Arc::clone(&self.quarantine);
        // The disk may be slow. The write goes on even if the request is cancelled meanwhile.
        let written = tokio::task::spawn_blocking(move || {
            if let Err(error) = quarantine.add(entry) {
                report(&format!("the quarantine holds until this process ends, as it cannot be written down: {error}"));
            }
        });
        // The write reports its own errors. A disk that does not answer holds up no request: the node counts as
        // quarantined from the moment at which its entry is to be written.
        let _ = timeout(WRITE_LIMIT, written).await;
    }

    /// Recomputes the range. Pages of other makers before it are recomputed with it, where that is not too far;
    /// otherwise only if the range differs, since then they may be the reason.
    async fn examine(
        &self,
        host: &EngineHost,
        remote: &Remote,
        audition: &Audition<'_>,
        tokens: &mut usize,
    ) -> Result<Finding, String> {
        let Audition { installed, ref maker, ref pages, .. } = *audition;
        let clean = installed.pages_without_others(maker).min(pages.start);
        if clean == pages.start {
            let mut base = installed.beginning(pages.start);
            if base.first_lacking().is_some() {
                base = match self.held_base(host, audition, installed.held_pages()).await {
                    Some(held) => held,
                    None => brought_base(host, remote, base).await?,
                };
            }
            return audition.run(host, base, tokens).await;
        }
        let own = match installed.beginning(clean) {
            whole if clean > 0 && whole.first_lacking().is_none() => whole,
            _ => self.held_base(host, audition, clean).await.unwrap_or_else(|| installed.beginning(0)),
        };
        let near = installed.beginning(pages.start);
        if pages.start - own.pages() > self.settings.pages_max.get() && near.first_lacking().is_none() {
            let finding = audition.run(host, near, tokens).await?;
            if matches!(finding.verdict, Verdict::Same { .. }) {
                return Ok(finding);
            }
        }
        audition.run(host, own, tokens).await
    }

    /// Start from which the range can be recomputed without fetching more pages: the first row, or the first `held`
    /// pages, if either is at most `pages_max` pages before the range and the pages depend on no other maker.
    async fn held_base(&self, host: &EngineHost, audition: &Audition<'_>, held: usize) -> Option<Beginning> {
        let Audition { installed, ref maker, ref pages, ref reuse } = *audition;
        let (start, pages_max) = (pages.start, self.settings.pages_max.get());
        if start <= pages_max {
            return Some(installed.beginning(0));
        }
        if held == 0 || start - held > pages_max {
            return None;
        }
        // All of it is held, or nothing is gained.
        let prompt = installed.tokens().get(..=held * PAGE_ROWS)?.to_vec();
        let installation = host.begin_installation(prompt, *reuse).await.ok()?;
        let apart = (installation.held_pages() == held).then(|| installation.finish().ok())??;
        (apart.pages_without_others(maker) == held).then(|| installed.beginning(held).completed_by(&apart))
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, NodeId>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Audition<'_> {
    /// Recomputes the range from `base` on, and compares.
    async fn run(&self, host: &EngineHost, base: Beginning, tokens: &mut usize) -> Result<Finding, String> {
        let pages = base.pages();
        let is_certain = pages <= self.installed.pages_without_others(&self.maker);
        let audit = self.installed.audit(base, self.pages.clone()).map_err(|error| error.to_string())?;
        *tokens += audit.tokens();
        let verdict = host.audit(audit).await.map_err(|refused| refused.to_string())?;
        Ok(Finding { verdict, base: pages, is_certain })
    }

    /// The audit's outcome, with the maker of a page that differs.
    fn outcome(&self, finding: &Finding) -> AuditOutcome {
        match &finding.verdict {
            Verdict::Same { pages, .. } => AuditOutcome::Same { pages: *pages },
            Verdict::Differs(mismatch) => AuditOutcome::Differs(Difference {
                layer: mismatch.layer,
                position: mismatch.position,
                found: mismatch.to_string(),
                maker: self
                    .installed
                    .makers(mismatch.layer, mismatch.page)
                    .only()
                    .filter(|_| finding.is_certain)
                    .map(|maker| NodeId(maker.0)),
            }),
            // No received page was used: the model itself has a non-finite number there.
            Verdict::NotFinite(error) if finding.base == 0 => AuditOutcome::NotAudited { reason: error.to_string() },
            Verdict::NotFinite(error) => AuditOutcome::Differs(Difference {
                layer: match error.place {
                    Place::Layer(layer) => layer,
                    // It cannot be there: an audit has no logits computed.
                    Place::Head => 0,
                },
                position: error.position,
                found: format!("what came cannot be gone on from: {error}"),
                maker: finding.is_certain.then_some(NodeId(self.maker.0)),
            }),
        }
    }
}

impl Audited {
    /// The `kv_audit` object in an answer's timings.
    pub fn object(&self) -> Value {
        let mut object = json!({"tokens": self.tokens, "ms": self.elapsed.as_secs_f64() * 1e3});
        match &self.outcome {
            AuditOutcome::Same { pages } => {
                object["outcome"] = "same".into();
                object["pages"] = (*pages).into();
            }
            AuditOutcome::Differs(Difference { layer, position, found, .. }) => {
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

/// True for a share of `rate` of all random numbers.
fn is_chosen(random: u64, rate: f64) -> bool {
    // 53 bits, which a float holds exactly; the quotient is below 1.
    ((random >> 11) as f64 / (1u64 << 53) as f64) < rate
}

/// Up to `pages_max` consecutive pages of `received`, which is not empty: the pages are cut into ranges from a random
/// page on, and one of these is taken, so that every page has the same chance.
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
