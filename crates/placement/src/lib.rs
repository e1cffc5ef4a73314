//! Placement of a prompt's computation: this node or one of the producers, whichever is cheapest by measured rates.
//!
//! A candidate's cost is `queue + max(compute, wire) + fixed`: pages travel while the next rows are computed, and whatever
//! does not overlap ends up in the fixed part. Rates follow what is observed, each observation moving them by a bounded
//! step. A candidate that was not measured for long is tried again although another seems cheaper, the sooner the closer
//! it is; so neither a bad day nor a single blip decides for ever. After a failure a producer is left alone for a stated
//! time, which doubles with each failure in a row.
//!
//! Producers are keyed by address: requests, failures and wire rates belong to an address, and it is known before the
//! first connection. The node id that answers is [noted](Policy::met); the rates of an address are dropped when another
//! node or another model is behind it.
//!
//! No clock and no randomness: times are arguments, in ms of any clock that only rises.
//!
//! - `rates` learns, `store` keeps what was learnt in a file.

#![forbid(unsafe_code)]

mod rates;
mod store;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use muser_trust::Address;
use muser_trust::identity::NodeId;
use rates::{Rates, Step};

pub use store::PolicyFileError;

/// Node that may compute a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// This node.
    Local,
    /// The producer at this address.
    Producer(Address),
}

/// Work of one place for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The place.
    pub place: Place,
    /// Positions to compute, without those that it holds already.
    pub compute: Range<u64>,
    /// Bytes to transfer; 0 for this node.
    pub wire_bytes: u64,
    /// Expected queueing time, ms.
    pub queue_ms: f64,
    /// Permission to choose it for the sake of a measurement.
    pub trial: Trial,
}

/// Permission to choose a place that is not known to be the cheapest, to measure it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// The request is long enough for a measurement.
    Allowed,
    /// The request is too short, or another request is measuring the place already.
    Barred,
}

/// Measured times of one request, ms.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// Place that computed it.
    pub place: Place,
    /// Positions computed.
    pub compute: Range<u64>,
    /// Compute time.
    pub compute_ms: f64,
    /// Bytes transferred.
    pub wire_bytes: u64,
    /// Time in which the wire was busy with them.
    pub wire_ms: f64,
    /// Queueing time behind other requests.
    pub queue_ms: f64,
    /// From the request to the last row installed.
    pub total_ms: f64,
}

/// Learning rate, retry period and back-off of the policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicySettings {
    /// Share of a new observation, above 0 and at most 1. Smaller is steadier, larger is quicker.
    pub weight: f64,
    /// After this time without an observation a place is tried again if it costs at most a quarter more than the cheapest;
    /// after each further period, twice as much as that.
    pub retry_every_ms: u64,
    /// Back-off after a first failure, ms.
    pub back_off_first_ms: u64,
    /// Longest back-off, ms.
    pub back_off_max_ms: u64,
}

/// Estimated cost of a candidate, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Queueing behind other requests.
    pub queue_ms: f64,
    /// Compute time.
    pub compute_ms: f64,
    /// Transfer time, overlapped with computing.
    pub wire_ms: f64,
    /// Overhead independent of the length.
    pub fixed_ms: f64,
    /// `queue + max(compute, wire) + fixed`.
    pub total_ms: f64,
}

/// Outcome of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Chosen as the cheapest.
    Cheapest,
    /// Chosen to be measured for the first time.
    FirstTry,
    /// Chosen although not the cheapest, because its last measurement is old.
    Retry {
        /// Age of the last measurement, ms.
        age_ms: u64,
    },
    /// Usable, but another candidate was chosen.
    NotChosen,
    /// Not usable: backing off after failures, or busy.
    BackOff {
        /// Time from which it may be used again, ms.
        until_ms: u64,
        /// Failures in a row.
        failures: u32,
    },
}

/// One candidate of a choice, with every term.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explanation {
    /// The candidate's place.
    pub place: Place,
    /// `None` if it was never measured.
    pub cost: Option<Cost>,
    /// Outcome of the candidate.
    pub verdict: Verdict,
}

/// Chosen place, with one explanation per candidate, in the candidates' order.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Place that computes.
    pub place: Place,
    /// Cost and outcome of every candidate.
    pub explanations: Vec<Explanation>,
}

/// Placement policy: measured rates, failures and back-off of every place.
#[derive(Debug, Clone)]
pub struct Policy {
    settings: PolicySettings,
    places: HashMap<Place, Known>,
    /// Digest of the model and layout that the rates were measured with.
    model: [u8; 32],
}

/// Cost of a candidate at one moment, and the back-off that keeps it from being used, if there is one.
#[derive(Debug, Clone, Copy)]
struct Weighed {
    /// `None` if it was never measured.
    cost: Option<Cost>,
    back_off: Option<BackOff>,
}

/// A producer's back-off.
#[derive(Debug, Clone, Copy)]
struct BackOff {
    until_ms: u64,
    failures: u32,
}

#[derive(Debug, Clone, Default)]
struct Known {
    rates: Rates,
    /// Node id that last answered at the address.
    node: Option<NodeId>,
    /// Time of the last measurement, or of loading the rates from a file; `None` if the place was never measured.
    measured_at_ms: Option<u64>,
    failures: u32,
    usable_from_ms: u64,
}

impl Default for PolicySettings {
    /// Follows a change within about ten requests; tries again after a minute; backs off from one second to one minute.
    fn default() -> Self {
        Self { weight: 0.25, retry_every_ms: 60_000, back_off_first_ms: 1000, back_off_max_ms: 60_000 }
    }
}

impl Policy {
    /// A policy that knows nothing yet about the model with this digest, of its layout too. A weight out of its range is
    /// brought to the nearer end.
    pub fn new(settings: PolicySettings, model: [u8; 32]) -> Self {
        let weight = if settings.weight.is_finite() { settings.weight.clamp(0.01, 1.0) } else { 0.25 };
        Self { settings: PolicySettings { weight, ..settings }, places: HashMap::new(), model }
    }

    /// The digest of the model that was measured.
    pub fn model(&self) -> [u8; 32] {
        self.model
    }

    /// Places that were measured.
    pub fn measured(&self) -> impl Iterator<Item = Place> + '_ {
        self.places.iter().filter(|(_, known)| known.rates != Rates::default()).map(|(place, _)| *place)
    }

    /// True if the place was measured well enough to estimate a request's cost: its fixed time is known.
    pub fn knows(&self, place: Place) -> bool {
        self.places.get(&place).is_some_and(|known| known.rates.fixed_ms.is_some())
    }

    /// Estimated compute time of the positions in `range`, ms; `None` if none was measured.
    pub fn compute_ms(&self, place: Place, range: &Range<u64>) -> Option<f64> {
        self.places.get(&place)?.rates.compute_ms(range)
    }

    /// Chooses among candidates; `None` if there is none that may be used now. Changes nothing: report afterwards what
    /// [happened](Self::observe), or that it [failed](Self::fail).
    pub fn choose(&self, candidates: &[Candidate], now_ms: u64) -> Option<Choice> {
        let weighed: Vec<Weighed> = candidates.iter().map(|candidate| self.weigh(candidate, now_ms)).collect();
        let (chosen, reason) = self.pick(candidates, &weighed, now_ms)?;
        let explain = |(index, (candidate, weighed)): (usize, (&Candidate, &Weighed))| {
            let verdict = match weighed.back_off {
                Some(BackOff { until_ms, failures }) => Verdict::BackOff { until_ms, failures },
                None if index == chosen => reason,
                None => Verdict::NotChosen,
            };
            Explanation { place: candidate.place, cost: weighed.cost, verdict }
        };
        let explanations = candidates.iter().zip(&weighed).enumerate().map(explain).collect();
        Some(Choice { place: candidates[chosen].place, explanations })
    }

    /// Learns from what a request took. Ends a producer's back-off. Numbers that are not finite or negative are left out.
    pub fn observe(&mut self, observation: &Observation, now_ms: u64) {
        let known = self.places.entry(observation.place).or_default();
        // What is old counts for less: as if the new observation had been made once more in each period without one.
        let age_ms = known.measured_at_ms.map_or(0, |measured_at_ms| now_ms.saturating_sub(measured_at_ms));
        let times = i32::try_from(age_ms / self.settings.retry_every_ms.max(1)).unwrap_or(i32::MAX).min(60) + 1;
        known.rates.learn(observation, Step::repeated(self.settings.weight, times));
        (known.measured_at_ms, known.failures, known.usable_from_ms) = (Some(now_ms), 0, 0);
    }

    /// Starts or doubles a producer's back-off, and returns its end. This node never backs off.
    pub fn fail(&mut self, place: Place, now_ms: u64) -> u64 {
        if place == Place::Local {
            return now_ms;
        }
        let known = self.places.entry(place).or_default();
        let doubled = 1u64.checked_shl(known.failures).unwrap_or(u64::MAX);
        let wait_ms = self.settings.back_off_first_ms.saturating_mul(doubled).min(self.settings.back_off_max_ms);
        known.failures = known.failures.saturating_add(1);
        known.usable_from_ms = now_ms.saturating_add(wait_ms);
        known.usable_from_ms
    }

    /// Backs a producer off for the time that it asked for because it is busy, at most the longest back-off. That is no
    /// failure: the next one still counts as the first.
    pub fn busy(&mut self, place: Place, for_ms: u64, now_ms: u64) {
        if place != Place::Local {
            let known = self.places.entry(place).or_default();
            let until_ms = now_ms.saturating_add(for_ms.min(self.settings.back_off_max_ms));
            known.usable_from_ms = known.usable_from_ms.max(until_ms);
        }
    }

    /// Notes the node that answered at a producer's address. If another one answered before, its rates are dropped.
    pub fn met(&mut self, place: Place, node: NodeId) {
        let known = self.places.entry(place).or_default();
        if known.node.is_some_and(|before| before != node) {
            *known = Known::default();
        }
        known.node = Some(node);
    }

    fn weigh(&self, candidate: &Candidate, now_ms: u64) -> Weighed {
        let Some(known) = self.places.get(&candidate.place) else { return Weighed { cost: None, back_off: None } };
        let back_off = BackOff { until_ms: known.usable_from_ms, failures: known.failures };
        Weighed { cost: known.rates.cost(candidate), back_off: (back_off.until_ms > now_ms).then_some(back_off) }
    }

    /// Index of the chosen candidate and the reason: the first unmeasured one, else the one with the oldest overdue
    /// measurement, else the cheapest. If no candidate was measured, an unmeasured one is chosen even where trials are
    /// barred.
    fn pick(&self, candidates: &[Candidate], weighed: &[Weighed], now_ms: u64) -> Option<(usize, Verdict)> {
        let usable = || weighed.iter().enumerate().filter(|(_, each)| each.back_off.is_none());
        let allowed = |index: usize| candidates[index].trial == Trial::Allowed;
        let mut unknown = usable().filter(|(_, each)| each.cost.is_none()).map(|(index, _)| index);
        if let Some(index) = unknown.clone().find(|index| allowed(*index)) {
            return Some((index, Verdict::FirstTry));
        }
        let costs = usable().filter_map(|(index, each)| Some((index, each.cost?.total_ms)));
        let Some((cheapest, least_ms)) = costs.clone().min_by(|(_, one), (_, other)| one.total_cmp(other)) else {
            return Some((unknown.next()?, Verdict::FirstTry));
        };
        let due = costs.filter_map(|(index, total_ms)| {
            let measured = self.places.get(&candidates[index].place)?.measured_at_ms?;
            let age_ms = now_ms.saturating_sub(measured);
            let periods = age_ms / self.settings.retry_every_ms.max(1);
            // A quarter more at first, and twice as much after each further period; far above what costs can differ by, it ends.
            let doublings = i32::try_from(periods.saturating_sub(1)).unwrap_or(i32::MAX).min(60);
            let allowed_ms = least_ms * 1.25 * 2f64.powi(doublings);
            (index != cheapest && allowed(index) && periods > 0 && total_ms <= allowed_ms).then_some((index, age_ms))
        });
        let oldest = due.max_by_key(|(_, age_ms)| *age_ms);
        Some(oldest.map_or((cheapest, Verdict::Cheapest), |(index, age_ms)| (index, Verdict::Retry { age_ms })))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Local => write!(f, "local: ")?,
            Place::Producer(address) => write!(f, "producer {address}: ")?,
        }
        match self.cost {
            None => write!(f, "never measured")?,
            Some(Cost { queue_ms, compute_ms, wire_ms, fixed_ms, total_ms }) => write!(
                f,
                "{total_ms:.1} ms = queue {queue_ms:.1} + max(compute {compute_ms:.1}, wire {wire_ms:.1}) + fixed {fixed_ms:.1}"
            )?,
        }
        match self.verdict {
            Verdict::Cheapest => write!(f, "; chosen as the cheapest"),
            Verdict::FirstTry => write!(f, "; chosen as a first try"),
            Verdict::Retry { age_ms } => write!(f, "; chosen as its last measurement is {age_ms} ms old"),
            Verdict::NotChosen => write!(f, "; not chosen"),
            Verdict::BackOff { until_ms, failures } => {
                write!(f, "; left alone until {until_ms} ms after {failures} failures in a row")
            }
        }
    }
}
