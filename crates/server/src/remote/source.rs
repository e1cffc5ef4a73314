//! Origin of a prompt's keys and values, and the placement choice behind it, as answers report them.

use std::time::Duration;

use muser_cluster::handoff::Handoff;
use muser_kv::PAGE_ROWS;
use muser_placement::{Choice, Cost, Explanation, Place, Verdict};
use serde_json::{Map, Value, json};

use super::audit::Audited;

/// Origin of a prompt's keys and values: those that were not cached were computed by a producer, or here.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The producer's handoff that is used.
    pub handoff: Option<Handoff>,
    /// The choice among places, if the prompt was long enough for one.
    pub chosen: Option<Chosen>,
    /// Reasons for which the choice was not followed: the error of each producer that failed, or the reason why none
    /// could be asked.
    pub fallback: Option<String>,
    /// Time lost with producers that failed.
    pub lost: Duration,
    /// The last audit of a handoff, if there was one.
    pub audited: Option<Audited>,
}

/// A placement choice and its time.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The place, with the cost and verdict of each candidate.
    pub choice: Choice,
    /// Time of the choice by the policy's clock, ms.
    pub at_ms: u64,
}

impl Source {
    /// Tokens of the prompt that a producer computed.
    pub fn brought_tokens(&self) -> usize {
        self.handoff.as_ref().map_or(0, |handoff| handoff.stats.rows as usize - handoff.held_pages * PAGE_ROWS)
    }

    /// Adds a reason for which the choice was not followed.
    pub fn add_reason(&mut self, reason: &str) {
        match &mut self.fallback {
            Some(reasons) => *reasons += &format!("; {reason}"),
            none => *none = Some(reason.to_owned()),
        }
    }

    /// Discards the handoff; the prompt is computed here.
    pub fn lose(&mut self, reason: &str) {
        if let Some(handoff) = self.handoff.take() {
            self.lost += handoff.elapsed;
            self.add_reason(&format!("what {} brought is not used: {reason}", handoff.producer));
        }
    }

    /// The `kv_` fields in an answer's timings.
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        add("kv_source", if self.handoff.is_some() { "producer" } else { "local" }.into());
        if let Some(handoff) = &self.handoff {
            add("kv_producer", handoff.producer.as_str().into());
            add("kv_brought_n", self.brought_tokens().into());
            add("kv_pages", handoff.stats.pages.into());
            add("kv_payload_bytes", handoff.stats.payload_bytes.into());
            add("kv_wire_bytes", handoff.stats.stored_bytes.into());
            add("kv_ms", milliseconds(handoff.elapsed).into());
            let times = &handoff.stats.times;
            let (busy, wall) =
                (times.send_busy_us.map(Duration::from_micros), Duration::from_micros(times.send_wall_us));
            add("kv_queue_ms", milliseconds(Duration::from_micros(times.queue_us)).into());
            add("kv_compute_ms", milliseconds(Duration::from_micros(times.compute_us)).into());
            add("kv_pack_ms", milliseconds(Duration::from_micros(times.pack_us)).into());
            add("kv_send_wall_ms", milliseconds(wall).into());
            if let Some(rate) = gbit_per_s(handoff.stats.stored_bytes, wall) {
                add("kv_wall_gbit_per_s", rate.into());
            }
            if let Some(busy) = busy {
                add("kv_send_busy_ms", milliseconds(busy).into());
                if let Some(rate) = gbit_per_s(handoff.stats.stored_bytes, busy) {
                    add("kv_gbit_per_s", rate.into());
                }
            }
        }
        if let Some(reason) = &self.fallback {
            add("kv_fallback", reason.as_str().into());
        }
        if self.lost > Duration::ZERO {
            add("kv_lost_ms", milliseconds(self.lost).into());
        }
        if let Some(audited) = &self.audited {
            add("kv_audit", audited.object());
        }
        if let Some(chosen) = &self.chosen {
            add("kv_choice", chosen.object());
        }
        fields
    }
}

impl Chosen {
    fn object(&self) -> Value {
        let candidates: Vec<Value> =
            self.choice.explanations.iter().map(|explanation| candidate(explanation, self.at_ms)).collect();
        json!({"place": place_name(self.choice.place), "candidates": candidates})
    }
}

/// Name of a place: `local`, or the producer's address.
pub fn place_name(place: Place) -> String {
    match place {
        Place::Local => "local".into(),
        Place::Producer(address) => address.to_string(),
    }
}

/// Name of a candidate's verdict in answers and metrics.
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Cheapest => "cheapest",
        Verdict::FirstTry => "first_try",
        Verdict::Retry { .. } => "retry",
        Verdict::NotChosen => "not_chosen",
        Verdict::BackOff { .. } => "back_off",
    }
}

fn candidate(explanation: &Explanation, at_ms: u64) -> Value {
    let mut object = json!({
        "place": place_name(explanation.place),
        "verdict": verdict_name(explanation.verdict),
    });
    if let Some(Cost { queue_ms, compute_ms, wire_ms, fixed_ms, total_ms }) = explanation.cost {
        object["queue_ms"] = queue_ms.into();
        object["compute_ms"] = compute_ms.into();
        object["wire_ms"] = wire_ms.into();
        object["fixed_ms"] = fixed_ms.into();
        object["total_ms"] = total_ms.into();
    }
    match explanation.verdict {
        Verdict::Retry { age_ms } => object["measured_ms_ago"] = age_ms.into(),
        Verdict::BackOff { until_ms, failures } => {
            object["usable_in_ms"] = until_ms.saturating_sub(at_ms).into();
            object["failures"] = failures.into();
        }
        Verdict::Cheapest | Verdict::FirstTry | Verdict::NotChosen => {}
    }
    object
}

/// A rate, if the time was long enough to have one.
fn gbit_per_s(bytes: u64, time: Duration) -> Option<f64> {
    (time > Duration::ZERO).then(|| bytes as f64 * 8.0 / time.as_secs_f64() / 1e9)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
