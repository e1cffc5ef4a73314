//! Learned rates of one place: time per position by depth, time per byte on the wire, and fixed time per request.

use std::ops::Range;

use super::{Candidate, Cost, Observation};

/// Depths up to 256, 512, ... 131072 positions, and beyond: attention costs more the deeper a position is.
pub(super) const DEPTHS: usize = 11;
const FIRST_DEPTH: u64 = 256;

/// One observation of a place that is measured often moves a rate at most by this factor.
const FACTOR_MAX: f64 = 2.0;
/// Range of valid times, ms: a nanosecond to a day.
const MS_MIN: f64 = 1e-6;
const MS_MAX: f64 = 86_400_000.0;

/// Learned rates, ms; `None` before the first measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rates {
    pub position_ms: [Option<f64>; DEPTHS],
    pub byte_ms: Option<f64>,
    pub fixed_ms: Option<f64>,
}

/// Weight and bound of one observation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Weight of the new value.
    weight: f64,
    /// Largest factor by which a value moves.
    factor_max: f64,
}

impl Step {
    /// The step of an observation that counts several times.
    pub fn repeated(weight: f64, times: i32) -> Self {
        Self { weight: 1.0 - (1.0 - weight).powi(times), factor_max: FACTOR_MAX.powi(times) }
    }

    /// `new`, or as far towards it from `old` as is allowed.
    fn limited(self, old: f64, new: f64) -> f64 {
        new.clamp(old / self.factor_max, old * self.factor_max)
    }

    /// The old value moved towards the new one; or the new one alone.
    fn moved(self, old: Option<f64>, new: f64) -> f64 {
        old.map_or(new, |old| self.limited(old, old + self.weight * (new - old)))
    }
}

impl Rates {
    /// Estimated cost of the candidate; `None` until every rate that it needs was measured.
    pub fn cost(&self, candidate: &Candidate) -> Option<Cost> {
        let compute_ms = self.compute_ms(&candidate.compute)?;
        let fixed_ms = self.fixed_ms?;
        let wire_ms = match candidate.wire_bytes {
            0 => 0.0,
            bytes => bytes as f64 * self.byte_ms?,
        };
        let queue_ms = bounded(candidate.queue_ms).unwrap_or(0.0);
        let total_ms = queue_ms + compute_ms.max(wire_ms) + fixed_ms;
        Some(Cost { queue_ms, compute_ms, wire_ms, fixed_ms, total_ms })
    }

    /// Takes in an observation, without times that are negative or not finite.
    pub fn learn(&mut self, seen: &Observation, step: Step) {
        let (compute_ms, wire_ms) = (bounded(seen.compute_ms), bounded(seen.wire_ms));
        if let Some(compute_ms) = compute_ms {
            self.learn_positions(&seen.compute, compute_ms, step);
        }
        if let Some(wire_ms) = wire_ms.filter(|_| seen.wire_bytes > 0) {
            let byte_ms = (wire_ms / seen.wire_bytes as f64).max(f64::MIN_POSITIVE);
            self.byte_ms = Some(step.moved(self.byte_ms, byte_ms));
        }
        if let (Some(compute_ms), Some(wire_ms), Some(total_ms), Some(queue_ms)) =
            (compute_ms, wire_ms, bounded(seen.total_ms), bounded(seen.queue_ms))
        {
            let fixed_ms = (total_ms - queue_ms - compute_ms.max(wire_ms)).max(MS_MIN);
            self.fixed_ms = Some(step.moved(self.fixed_ms, fixed_ms));
        }
    }

    /// Spreads an observed time over the depths that it went through: each is moved by as much as it took part (the normalised
    /// least-mean-squares rule), so that requests of different lengths tell the depths apart.
    fn learn_positions(&mut self, range: &Range<u64>, compute_ms: f64, step: Step) {
        let counts = per_depth(range);
        let positions: f64 = counts.iter().sum();
        if positions == 0.0 {
            return;
        }
        // What is new is first taken to be as quick as the nearest depth that is known, or as this request on average.
        let estimated: [f64; DEPTHS] =
            std::array::from_fn(|depth| self.nearest(depth).unwrap_or(compute_ms.max(MS_MIN) / positions));
        let expected_ms: f64 = counts.iter().zip(estimated).map(|(count, position_ms)| count * position_ms).sum();
        let squares: f64 = counts.iter().map(|count| count * count).sum();
        for (depth, (count, position_ms)) in counts.into_iter().zip(estimated).enumerate() {
            if count > 0.0 {
                let target = position_ms + step.weight * (compute_ms - expected_ms) * count / squares;
                self.position_ms[depth] = Some(step.limited(position_ms, target));
            }
        }
    }

    /// The time of these positions, once any was measured.
    pub fn compute_ms(&self, range: &Range<u64>) -> Option<f64> {
        if range.is_empty() {
            return Some(0.0);
        }
        let counts = per_depth(range);
        counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0.0)
            .try_fold(0.0, |sum, (depth, count)| Some(sum + count * self.nearest(depth)?))
    }

    /// The time of a position at this depth, or at the nearest depth that was measured, the shallower of two.
    fn nearest(&self, depth: usize) -> Option<f64> {
        (0..DEPTHS).find_map(|distance| {
            let shallower = depth.checked_sub(distance).and_then(|depth| self.position_ms[depth]);
            shallower.or_else(|| *self.position_ms.get(depth + distance)?)
        })
    }
}

/// Positions of the range per depth class.
fn per_depth(range: &Range<u64>) -> [f64; DEPTHS] {
    std::array::from_fn(|depth| {
        let begin = if depth == 0 { 0 } else { FIRST_DEPTH << (depth - 1) };
        let end = if depth + 1 == DEPTHS { u64::MAX } else { FIRST_DEPTH << depth };
        range.end.min(end).saturating_sub(range.start.max(begin)) as f64
    })
}

/// The time, at most a day; `None` if it is negative or not finite.
fn bounded(ms: f64) -> Option<f64> {
    (ms.is_finite() && ms >= 0.0).then_some(ms.min(MS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_lies_in_one_depth() {
        for range in [0..0, 0..1, 0..256, 255..257, 100..5000, 0..1 << 20, 7..7, 131_072..131_073] {
            let sum: f64 = per_depth(&range).iter().sum();
            assert_eq!(sum, (range.end - range.start) as f64, "{range:?}");
        }
        assert_eq!(per_depth(&(255..258))[..3], [1.0, 2.0, 0.0]);
    }
}
