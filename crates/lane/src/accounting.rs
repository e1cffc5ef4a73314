//! Send rates of a handoff: payload over the kernel's busy time, and payload over wall time. The two differ whenever
//! the producer waits for rows, so a rate is always shown with its clock.

use std::fmt;
use std::time::Duration;

/// TCP counters of one connection since it was opened. `None` on kernels that do not report a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelTimes {
    /// Time busy sending data (`tcpi_busy_time`), us.
    pub busy_us: Option<u64>,
    /// Part of it limited by the receiver's window, us.
    pub receiver_limited_us: Option<u64>,
    /// Part of it limited by the send buffer, us.
    pub buffer_limited_us: Option<u64>,
    /// Latest delivery rate, bytes per second.
    pub delivery_bytes_per_s: Option<u64>,
}

/// Payload bytes of one sender, with busy and wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendAccount {
    /// Bytes of the pages as sent, after compression.
    pub payload_bytes: u64,
    /// Kernel's busy time, if reported.
    pub busy: Option<Duration>,
    /// Wall time from the first byte to the receiver's confirmation.
    pub wall: Duration,
}

impl SendAccount {
    /// The account between two readings of the kernel's times.
    pub fn between(before: &KernelTimes, after: &KernelTimes, payload_bytes: u64, wall: Duration) -> Self {
        let busy = after.busy_us.zip(before.busy_us).and_then(|(after, before)| after.checked_sub(before));
        Self { payload_bytes, busy: busy.map(Duration::from_micros), wall }
    }

    /// Bytes over the kernel's busy time, Gbit/s. `None` if the kernel reports none, or zero.
    pub fn busy_gbit_per_s(&self) -> Option<f64> {
        self.busy.and_then(|busy| gbit_per_s(self.payload_bytes, busy))
    }

    /// Bytes over wall time, Gbit/s. `None` if the time is zero.
    pub fn wall_gbit_per_s(&self) -> Option<f64> {
        gbit_per_s(self.payload_bytes, self.wall)
    }
}

impl fmt::Display for SendAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} payload bytes", self.payload_bytes)?;
        for (clock, rate) in [("send-busy", self.busy_gbit_per_s()), ("wall", self.wall_gbit_per_s())] {
            match rate {
                Some(rate) => write!(f, ", {rate:.3} Gbit/s ({clock})")?,
                None => write!(f, ", unknown rate ({clock})")?,
            }
        }
        Ok(())
    }
}

fn gbit_per_s(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 * 8.0 / 1e9 / time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rates_are_shown_with_their_clocks() {
        let times = |busy_us| KernelTimes { busy_us, ..KernelTimes::default() };
        let wall = Duration::from_secs(2);
        let account = SendAccount::between(&times(Some(500_000)), &times(Some(1_500_000)), 1_000_000_000, wall);
        assert_eq!((account.busy_gbit_per_s(), account.wall_gbit_per_s()), (Some(8.0), Some(4.0)));
        let shown = "1000000000 payload bytes, 8.000 Gbit/s (send-busy), 4.000 Gbit/s (wall)";
        assert_eq!(account.to_string(), shown);
        let account = SendAccount::between(&times(None), &times(Some(5)), 1_000_000_000, wall);
        let shown = "1000000000 payload bytes, unknown rate (send-busy), 4.000 Gbit/s (wall)";
        assert_eq!(account.to_string(), shown);
        // Readings of two connections that were mixed up give no rate rather than a wrong one.
        assert_eq!(SendAccount::between(&times(Some(9)), &times(Some(5)), 1, Duration::ZERO).busy, None);
    }
}
