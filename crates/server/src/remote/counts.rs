//! Remote prefill counts for `/metrics`.

use std::collections::BTreeMap;
use std::time::Duration;

use muser_cluster::handoff::Handoff;
use muser_trust::Address;

use super::audit::{AuditOutcome, Audited};
use super::source::{Chosen, place_name, verdict_name};

/// Sums since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteCounts {
    /// By producer, those that were not asked yet included.
    pub producers: BTreeMap<Address, ProducerCounts>,
    /// Prompts computed here as a fallback: no room for a handoff, no producer to ask, or a failed one.
    pub fallbacks: u64,
    /// Audits.
    pub audits: AuditCounts,
    /// Placement choices, by place and reason.
    pub choices: BTreeMap<(String, &'static str), u64>,
}

/// Sums over all audits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Those that came to a verdict.
    pub done: u64,
    /// Of these, those that found something wrong.
    pub mismatches: u64,
    /// Tokens that were computed again.
    pub tokens: u64,
    /// Handoffs that were to be audited and could not be.
    pub skipped: u64,
}

/// Sums over one producer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProducerCounts {
    /// Prompts that it computed.
    pub handoffs: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Tokens that it computed or had.
    pub tokens: u64,
    /// Bytes of pages that came.
    pub payload_bytes: u64,
    /// Bytes of them as they travelled.
    pub wire_bytes: u64,
    /// Seconds of handoffs.
    pub seconds: f64,
    /// Seconds of queueing at the producer.
    pub queue_seconds: f64,
    /// Seconds of its prefill.
    pub compute_seconds: f64,
    /// Seconds in which its kernel was sending, of handoffs that report it.
    pub send_busy_seconds: f64,
    /// Seconds from handing its kernel the first page to the end of the last.
    pub send_wall_seconds: f64,
    /// Seconds lost with failed attempts.
    pub lost_seconds: f64,
}

impl RemoteCounts {
    /// A producer brought pages for so many tokens.
    pub fn brought(&mut self, address: Address, handoff: &Handoff, tokens: usize) {
        let sums = self.producers.entry(address).or_default();
        sums.handoffs += 1;
        sums.tokens += tokens as u64;
        sums.payload_bytes += handoff.stats.payload_bytes;
        sums.wire_bytes += handoff.stats.stored_bytes;
        sums.seconds += handoff.elapsed.as_secs_f64();
        let (times, seconds) = (&handoff.stats.times, |us: u64| Duration::from_micros(us).as_secs_f64());
        sums.queue_seconds += seconds(times.queue_us);
        sums.compute_seconds += seconds(times.compute_us);
        sums.send_busy_seconds += times.send_busy_us.map_or(0.0, seconds);
        sums.send_wall_seconds += seconds(times.send_wall_us);
    }

    /// A producer failed.
    pub fn failed(&mut self, address: Address, lost: Duration) {
        let sums = self.producers.entry(address).or_default();
        sums.failures += 1;
        sums.lost_seconds += lost.as_secs_f64();
    }

    /// A handoff was audited, or was to be.
    pub fn audited(&mut self, Audited { outcome, tokens, .. }: &Audited) {
        let audits = &mut self.audits;
        match outcome {
            AuditOutcome::Same { .. } => audits.done += 1,
            AuditOutcome::Differs(_) => (audits.done, audits.mismatches) = (audits.done + 1, audits.mismatches + 1),
            AuditOutcome::NotAudited { .. } => return audits.skipped += 1,
        }
        audits.tokens += *tokens as u64;
    }

    /// A place was chosen.
    pub fn chosen(&mut self, Chosen { choice, .. }: &Chosen) {
        let chosen = choice.explanations.iter().find(|each| each.place == choice.place);
        let reason = chosen.map_or("none", |each| verdict_name(each.verdict));
        *self.choices.entry((place_name(choice.place), reason)).or_default() += 1;
    }
}
