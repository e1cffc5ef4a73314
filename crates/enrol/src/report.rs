//! Results of an enrolment's tests: rates of the link, and the bitwise comparison of a handoff with a local prefill.
//!
//! A [`Round`] is 24 bytes: payload bytes, time by the wall clock in us, and time in which the kernel was busy sending in us
//! (`u64::MAX` if it does not tell). A [`LinkReport`] is a `u8` of round trips, as many `u32` in us, then for each
//! direction, to the producer first, a `u8` of rounds and the rounds. A [`Qualification`] is 41 bytes:
//!
//! | at | field         | meaning                                                              |
//! |----|---------------|----------------------------------------------------------------------|
//! | 0  | rows          | `u32`, positions that were brought                                   |
//! | 4  | pages         | `u32`                                                                |
//! | 8  | payload_bytes | `u64`                                                                |
//! | 16 | local_us      | `u64`, to the first token, computed here                             |
//! | 24 | remote_us     | `u64`, to the first token, with the producer                         |
//! | 32 | difference    | `u8`, 0 none, 1 in a page, 2 in the first token or its probabilities |
//! | 33 | layer         | `u32`, of the first difference                                       |
//! | 37 | position      | `u32`, of the first difference                                       |

use std::fmt;
use std::time::Duration;

use muser_lane::accounting::SendAccount;

use super::frame::{Fields, FrameError};

/// Most samples of a list that are accepted.
const SAMPLES_MAX: u8 = 32;

/// One measurement of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Bytes received.
    pub bytes: u64,
    /// From the first byte to the receiver's confirmation.
    pub wall_us: u64,
    /// Kernel's busy time, us; `None` if not reported.
    pub busy_us: Option<u64>,
}

/// Measurements of a link. Rates are of payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Round-trip times, us.
    pub round_trips_us: Vec<u32>,
    /// Towards the node that computes.
    pub to_producer: Vec<Round>,
    /// Towards the node that decodes: the way that pages go.
    pub to_decoder: Vec<Round>,
}

/// Comparison of a handoff with the decoder's own prefill of the same prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qualification {
    /// Positions brought.
    pub rows: u32,
    /// Pages that were compared.
    pub pages: u32,
    /// Bytes of the compared pages.
    pub payload_bytes: u64,
    /// Time to the first token, computed by the decoder alone.
    pub local: Duration,
    /// Time to the first token, with the producer.
    pub remote: Duration,
    /// First difference; `None` if all bits are equal.
    pub difference: Option<Difference>,
}

/// Place of the first differing bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// In the brought pages.
    #[error("keys and values of layer {layer} differ at position {position}")]
    Page {
        /// The layer.
        layer: u32,
        /// The first position in the page at which they do.
        position: u32,
    },
    /// In the logits computed from equal pages.
    #[error("the first token or its probabilities differ, at position {position}, and no page does")]
    Logits {
        /// Absolute position of the prompt's last token.
        position: u32,
    },
}

/// Rates of the rounds of one direction, in Gbit/s by the wall clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Median.
    pub median: f64,
    /// Slowest round.
    pub slowest: f64,
    /// Fastest round.
    pub fastest: f64,
}

impl Round {
    /// As the rest of the cluster accounts for it.
    pub fn account(&self) -> SendAccount {
        let busy = self.busy_us.map(Duration::from_micros);
        SendAccount { payload_bytes: self.bytes, busy, wall: Duration::from_micros(self.wall_us) }
    }

    pub(super) fn put(self, out: &mut Vec<u8>) {
        for number in [self.bytes, self.wall_us, self.busy_us.unwrap_or(u64::MAX)] {
            out.extend(number.to_le_bytes());
        }
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let (bytes, wall_us, busy_us) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Ok(Self { bytes, wall_us, busy_us: Some(busy_us).filter(|told| *told != u64::MAX) })
    }
}

impl LinkReport {
    /// Median round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        let mut sorted = self.round_trips_us.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|middle| Duration::from_micros((*middle).into()))
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        let count = |samples: usize, field| match u8::try_from(samples) {
            Ok(count) if count <= SAMPLES_MAX => Ok(count),
            _ => Err(field),
        };
        out.push(count(self.round_trips_us.len(), "round trips")?);
        for round_trip in &self.round_trips_us {
            out.extend(round_trip.to_le_bytes());
        }
        for rounds in [&self.to_producer, &self.to_decoder] {
            out.push(count(rounds.len(), "rounds")?);
            rounds.iter().for_each(|round| round.put(out));
        }
        Ok(())
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let mut report = Self::default();
        for _ in 0..count(fields, "round trips")? {
            report.round_trips_us.push(fields.u32()?);
        }
        for rounds in [&mut report.to_producer, &mut report.to_decoder] {
            for _ in 0..count(fields, "rounds")? {
                rounds.push(Round::read(fields)?);
            }
        }
        Ok(report)
    }
}

fn count(fields: &mut Fields<'_>, field: &'static str) -> Result<u8, FrameError> {
    let count = fields.u8()?;
    if count > SAMPLES_MAX { Err(fields.value(field)) } else { Ok(count) }
}

impl Qualification {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.rows.to_le_bytes());
        out.extend(self.pages.to_le_bytes());
        for number in [self.payload_bytes, microseconds(self.local), microseconds(self.remote)] {
            out.extend(number.to_le_bytes());
        }
        let (what, layer, position) = match self.difference {
            None => (0, 0, 0),
            Some(Difference::Page { layer, position }) => (1, layer, position),
            Some(Difference::Logits { position }) => (2, 0, position),
        };
        out.push(what);
        out.extend(layer.to_le_bytes());
        out.extend(position.to_le_bytes());
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, FrameError> {
        let (rows, pages, payload_bytes) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (local, remote) = (Duration::from_micros(fields.u64()?), Duration::from_micros(fields.u64()?));
        let difference = match (fields.u8()?, fields.u32()?, fields.u32()?) {
            (0, 0, 0) => None,
            (1, layer, position) => Some(Difference::Page { layer, position }),
            (2, 0, position) => Some(Difference::Logits { position }),
            _ => return Err(fields.value("difference")),
        };
        Ok(Self { rows, pages, payload_bytes, local, remote, difference })
    }
}

impl Rates {
    /// Of the rounds of one direction; `None` if there are none that took any time.
    pub fn of(rounds: &[Round]) -> Option<Self> {
        let mut rates: Vec<f64> = rounds.iter().filter_map(|round| round.account().wall_gbit_per_s()).collect();
        rates.sort_by(f64::total_cmp);
        let (slowest, fastest) = (*rates.first()?, *rates.last()?);
        Some(Self { median: rates[rates.len() / 2], slowest, fastest })
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} Gbit/s ({:.3} to {:.3})", self.median, self.slowest, self.fastest)
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
