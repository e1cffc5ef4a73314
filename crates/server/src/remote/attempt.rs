//! One attempt to have a producer compute a prompt, with its checks and its audit. Its outcome is a value.

use std::ops::Range;
use std::time::{Duration, Instant};

use muser_cluster::handoff::{BringError, Handoff, Remote};
use muser_engine::engine::{Installation, Installed, PrefixReuse};
use muser_host::EngineHost;
use muser_kv::{Maker, PAGE_ROWS};

use super::ProgressListener;
use super::audit::{AuditOutcome, Audited, Auditor, Difference};
use super::chooser::UnderWay;
use crate::generation::Progress;

/// A producer, and the rows of a prompt that it is asked for.
pub(super) struct Attempt<'a> {
    pub(super) remote: &'a Remote,
    pub(super) host: &'a EngineHost,
    pub(super) auditor: &'a Auditor,
    pub(super) reuse: PrefixReuse,
    /// Rows that are missing here.
    pub(super) rows: Range<u64>,
    /// Start of the attempt.
    pub(super) asked: Instant,
}

/// Outcome of an attempt. Each `reason` is text for the request's report.
pub(super) enum Outcome {
    /// All pages came, and are right as far as they were checked; not yet submitted.
    Brought {
        /// The pages.
        installed: Box<Installed>,
        /// Measurements of their transfer.
        handoff: Handoff,
    },
    /// The producer's node is quarantined: it counts as absent.
    Quarantined,
    /// The producer works, but refuses this prompt, or has another model. No failure is counted, and no back-off begins.
    Unsuitable {
        /// The refusal.
        reason: String,
        /// True if a shorter prompt may be taken.
        is_too_long: bool,
    },
    /// The producer refused for load.
    Busy {
        /// The refusal.
        reason: String,
        /// Time after which it may be asked again.
        retry: Duration,
    },
    /// The producer failed, or sent a wrong page.
    Failed {
        /// The failure.
        reason: String,
    },
    /// A page made by another node, or by an unknown one, is wrong: no failure of the producer is counted.
    Void {
        /// The difference.
        reason: String,
    },
}

impl Attempt<'_> {
    /// Asks the producer for the rows that `installation` lacks; `under_way` and `listener` receive its progress. Pages of
    /// nodes that lost their trust meanwhile are taken back before this returns.
    pub(super) async fn run(
        &self,
        mut installation: Installation,
        under_way: UnderWay,
        listener: &mut ProgressListener<'_>,
    ) -> (Outcome, Option<Audited>) {
        let (held, total) = (installation.held_pages() * PAGE_ROWS, installation.tokens().len() + 1);
        let mut progress = |rows: usize| {
            let computed = rows.clamp(held, total - 1);
            under_way.progress(computed as u64);
            listener(Progress { total, reused: held, computed, elapsed: self.asked.elapsed() });
        };
        let brought = self.remote.bring_telling(&mut installation, &mut progress).await;
        drop(under_way);
        let handoff = match brought {
            Ok(handoff) => handoff,
            Err(error) => return (self.not_brought(&error).await, None),
        };
        match installation.finish() {
            Ok(installed) => self.audit(installed, handoff).await,
            Err(error) => (Outcome::Failed { reason: error.to_string() }, None),
        }
    }

    async fn not_brought(&self, error: &BringError) -> Outcome {
        self.remote.take_back_lost(self.host).await;
        if let BringError::Quarantined(node) = error {
            self.auditor.met(self.remote.address(), *node);
            // Another process may have quarantined the node: its pages kept here are dropped as well.
            self.host.take_back(Maker(node.0));
            return Outcome::Quarantined;
        }
        let reason = error.to_string();
        if error.is_unsuitable() {
            return Outcome::Unsuitable { reason, is_too_long: error.is_too_long() };
        }
        match error.busy_for() {
            Some(retry) => Outcome::Busy { reason, retry },
            None => Outcome::Failed { reason },
        }
    }

    /// Audits a handoff, if it is chosen for that. A node whose page differs is quarantined.
    async fn audit(&self, installed: Installed, handoff: Handoff) -> (Outcome, Option<Audited>) {
        self.auditor.met(self.remote.address(), handoff.node);
        let audited = self.auditor.audit(self.host, (self.remote, handoff.node), (&installed, self.reuse)).await;
        let outcome = match &audited {
            Some(Audited { outcome: AuditOutcome::Differs(difference), .. }) => {
                self.auditor.condemn(self.host, &handoff, self.remote.address(), difference).await;
                blamed(&handoff, difference)
            }
            _ => Outcome::Brought { installed: Box::new(installed), handoff },
        };
        (outcome, audited)
    }
}

/// Outcome of a handoff of which a page differs.
fn blamed(handoff: &Handoff, Difference { maker, found, .. }: &Difference) -> Outcome {
    match maker {
        Some(node) if *node == handoff.node => {
            Outcome::Failed { reason: format!("an audit found what it sent to be wrong: {found}") }
        }
        Some(node) => {
            Outcome::Void { reason: format!("an audit found what was held of node {node} to be wrong: {found}") }
        }
        None => Outcome::Void { reason: format!("an audit found keys and values to be wrong: {found}") },
    }
}
