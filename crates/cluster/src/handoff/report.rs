//! Events of a producer, for its operator.

use std::fmt;
use std::time::Duration;

use muser_lane::LaneError;
use muser_lane::accounting::SendAccount;
use muser_trust::judgement::TrustError;
use muser_wire::{SenderTimes, Sent};

/// Event of a producer.
#[derive(Debug)]
pub enum ProducerNews {
    /// A handshake failed.
    LaneRefused(LaneError),
    /// The system has no descriptor for a new connection; accepting is retried. Reported once a minute at most.
    NoConnection(std::io::Error),
    /// A handoff was refused, or cancelled before its commit, by this node's keys or deny-list.
    Untrusted(TrustError),
    /// A decoder has installed a handoff.
    Sent(HandoffReport),
}

/// A handoff that was installed by its decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct HandoffReport {
    /// The decoder's name in the cluster.
    pub decoder: String,
    /// Rows and bytes.
    pub sent: Sent,
    /// Leading rows of the prompt that were reused, not computed.
    pub reused_rows: u32,
    /// Sender-side time by phase: queue, compute, pack, send.
    pub times: SenderTimes,
    /// Page bytes as sent, with the time from the first of them to the decoder's confirmation.
    pub account: SendAccount,
    /// Pacing rate, with the time that it applied to.
    pub pace: Option<KeptPace>,
}

/// Pacing rate of a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPace {
    /// Rate of the link, bytes per second.
    pub bytes_per_s: u64,
    /// True if other lanes sent at the same time.
    pub shared: bool,
    /// Time with bytes to send.
    pub time: Duration,
}

/// Within these parts of its pace a handoff keeps it: frames, encryption and headers are not counted.
const KEPT: std::ops::RangeInclusive<f64> = 0.90..=1.05;
/// The kernel counts in ticks of up to 10 ms; shorter times give no rate to judge by.
const MEASURABLE: Duration = Duration::from_millis(100);

impl HandoffReport {
    /// Send rate relative to the pacing rate.
    pub fn part_of_pace(&self) -> Option<f64> {
        let KeptPace { bytes_per_s, time, .. } = self.pace?;
        (!time.is_zero()).then(|| self.sent.stored_bytes as f64 / time.as_secs_f64() / bytes_per_s as f64)
    }

    /// Send rate relative to the pacing rate, if it is off although the lane was alone and the time was long enough to
    /// measure.
    pub fn deviation(&self) -> Option<f64> {
        let judged = self.pace.is_some_and(|pace| !pace.shared && pace.time >= MEASURABLE);
        self.part_of_pace().filter(|part| judged && !KEPT.contains(part))
    }
}

impl fmt::Display for HandoffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sent { rows, payload_bytes, stored_bytes } = self.sent;
        write!(f, "handoff to {}: {rows} rows, {payload_bytes} bytes", self.decoder)?;
        for (clock, rate) in [("send-busy", self.account.busy_gbit_per_s()), ("wall", self.account.wall_gbit_per_s())] {
            match rate {
                Some(rate) => write!(f, ", {rate:.3} Gbit/s ({clock})")?,
                None => write!(f, ", unknown rate ({clock})")?,
            }
        }
        if let Some(pace) = self.pace {
            write!(f, ", pace {:.3} Gbit/s", gbit_per_s(pace.bytes_per_s))?;
            if let Some(part) = self.part_of_pace() {
                write!(f, ", {:.0} % of it", part * 100.0)?;
            }
            if pace.shared {
                write!(f, ", which was shared")?;
            }
        }
        if stored_bytes < payload_bytes {
            write!(f, ", compressed to {stored_bytes} bytes")?;
        }
        match self.reused_rows {
            0 => Ok(()),
            rows => write!(f, ", {rows} rows reused"),
        }
    }
}

fn gbit_per_s(bytes_per_s: u64) -> f64 {
    bytes_per_s as f64 * 8.0 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(busy_ms: Option<u64>, pace: Option<KeptPace>) -> HandoffReport {
        let sent = Sent { rows: 1299, payload_bytes: 60_000_000, stored_bytes: 50_000_000 };
        let times = SenderTimes { queue_us: 1, compute_us: 2, pack_us: 3, send_busy_us: Some(4), send_wall_us: 5 };
        let (busy, wall) = (busy_ms.map(Duration::from_millis), Duration::from_millis(800));
        let account = SendAccount { payload_bytes: sent.stored_bytes, busy, wall };
        HandoffReport { decoder: "desk".into(), sent, reused_rows: 0, times, account, pace }
    }

    #[test]
    fn a_line_tells_rates_pace_and_compression_with_their_clocks() {
        let pace = KeptPace { bytes_per_s: 125_000_000, shared: false, time: Duration::from_millis(500) };
        assert_eq!(
            report(Some(500), Some(pace)).to_string(),
            "handoff to desk: 1299 rows, 60000000 bytes, 0.800 Gbit/s (send-busy), 0.500 Gbit/s (wall), \
             pace 1.000 Gbit/s, 80 % of it, compressed to 50000000 bytes"
        );
        let untold = report(None, Some(KeptPace { shared: true, ..pace })).to_string();
        assert!(untold.contains("unknown rate (send-busy)") && untold.contains("80 % of it, which was shared"));
        assert!(!report(Some(500), None).to_string().contains("pace"));
        let reused = HandoffReport { reused_rows: 1280, ..report(None, None) }.to_string();
        assert!(reused.ends_with(" bytes, 1280 rows reused"), "{reused}");
    }

    #[test]
    fn only_a_rate_that_was_measured_and_not_shared_deviates() {
        let timed = |bytes_per_s, shared, time| Some(KeptPace { bytes_per_s, shared, time });
        let pace = |bytes_per_s, shared| timed(bytes_per_s, shared, Duration::from_millis(500));
        // 100 MB/s were sent.
        for (rate, deviates) in
            [(112_000_000, true), (110_000_000, false), (100_000_000, false), (96_000_000, false), (94_000_000, true)]
        {
            assert_eq!(report(Some(500), pace(rate, false)).deviation().is_some(), deviates, "{rate}");
            assert_eq!(report(Some(500), pace(rate, true)).deviation(), None);
        }
        let short = timed(1_000_000_000, false, Duration::from_millis(99));
        assert_eq!((report(Some(500), short).deviation(), report(Some(500), None).deviation()), (None, None));
    }
}
