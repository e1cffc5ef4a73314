//! Audits: of a share of handoffs, pages chosen at random are computed again here before anything of them is used.
//!
//! Which handoffs and which pages nobody can know before: every page of a handoff has the same chance. A page that is not,
//! bit for bit, what is computed here makes the handoff void. It quarantines the machine that made the page, whoever was
//! audited: held pages of others are computed again with those behind them. Earlier handoffs of it were perhaps not audited,
//! so whatever depends on it is taken back, and nothing else.

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
use muser_kv::{Maker, PAGE_ROWS};
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
    /// Who made it; none if that is not certain.
    pub maker: Option<NodeId>,
}

/// What is audited, and who sent it.
struct Audition<'a> {
    installed: &'a Installed,
    reuse: PrefixReuse,
    maker: Maker,
    pages: Range<usize>,
}

/// What came of computing a range again.
struct Finding {
    verdict: Verdict,
    /// Pages before those that were computed.
    base: usize,
    /// These are of nobody but this machine and the one that is audited.
    is_certain: bool,
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

    /// Quarantines whoever made a wrong page, and has everything taken back that depends on it; where that is not certain,
    /// everything that is kept is forgotten. The quarantine counts before anything is told to forget, so that no handoff
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

    /// Computes the range again. Pages of others before it are computed with it, where that is not too far; otherwise only if
    /// the range differs, since then they may be the reason.
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

    /// Where the range can be computed from without anything more that comes: the first row, or the first `held` pages, if
    /// either is no further away than the range may be long, and the pages are of nobody else.
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
    /// Computes the range from `base` on, and compares.
    async fn run(&self, host: &EngineHost, base: Beginning, tokens: &mut usize) -> Result<Finding, String> {
        let pages = base.pages();
        let is_certain = pages <= self.installed.pages_without_others(&self.maker);
        let audit = self.installed.audit(base, self.pages.clone()).map_err(|error| error.to_string())?;
        *tokens += audit.tokens();
        let verdict = host.audit(audit).await.map_err(|refused| refused.to_string())?;
        Ok(Finding { verdict, base: pages, is_certain })
    }

    /// What was found, and who made what is wrong.
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
            // Nothing that came was gone on from: it is the model that has no number there.
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
    /// What an answer's times say of it.
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
