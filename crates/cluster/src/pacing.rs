//! Sending no faster than the link was measured to take: by the kernel where it can, by a token bucket elsewhere.

use std::time::Duration;

/// How a connection is paced.
#[derive(Debug)]
pub enum Pacing {
    /// The kernel spaces the packets. Senders do nothing.
    Kernel {
        /// The rate it was given.
        bytes_per_s: u64,
    },
    /// Senders ask the bucket.
    Bucket(TokenBucket),
}

/// A rate and a burst. Time is an argument, in any unit of time that only rises.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    bytes_per_s: u64,
    burst_bytes: u64,
    /// In billionths of a byte, so that no rounding is ever lost. Negative after a send larger than the burst.
    level: i128,
    last: Duration,
}

/// A rate of nothing, or a bucket that holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate of {bytes_per_s} bytes a second with bursts of {burst_bytes} bytes never sends; both must be above 0")]
pub struct NoRate {
    /// As given.
    pub bytes_per_s: u64,
    /// As given.
    pub burst_bytes: u64,
}

const BILLION: i128 = 1_000_000_000;

impl Pacing {
    /// Paces a connection, by the kernel if it takes the rate.
    ///
    /// # Errors
    /// [`NoRate`].
    #[cfg(target_os = "linux")]
    pub fn of(
        socket: std::os::fd::BorrowedFd<'_>,
        bytes_per_s: u64,
        burst_bytes: u64,
        now: Duration,
    ) -> Result<Self, NoRate> {
        let bucket = TokenBucket::new(bytes_per_s, burst_bytes, now)?;
        Ok(match crate::socket_options::set_pacing_rate(socket, bytes_per_s) {
            Ok(()) => Self::Kernel { bytes_per_s },
            Err(_) => Self::Bucket(bucket),
        })
    }

    /// How long to wait before `bytes` are sent, which are counted as sent then.
    pub fn wait(&mut self, bytes: u64, now: Duration) -> Duration {
        match self {
            Self::Kernel { .. } => Duration::ZERO,
            Self::Bucket(bucket) => bucket.wait(bytes, now),
        }
    }
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Errors
    /// [`NoRate`] if either number is 0.
    pub fn new(bytes_per_s: u64, burst_bytes: u64, now: Duration) -> Result<Self, NoRate> {
        if bytes_per_s == 0 || burst_bytes == 0 {
            return Err(NoRate { bytes_per_s, burst_bytes });
        }
        Ok(Self { bytes_per_s, burst_bytes, level: i128::from(burst_bytes) * BILLION, last: now })
    }

    /// How long to wait before `bytes` are sent, which are counted as sent then. More than a burst is allowed, and paid for
    /// by the wait before the next send.
    pub fn wait(&mut self, bytes: u64, now: Duration) -> Duration {
        // A clock that steps back gives nothing and takes nothing.
        let elapsed_ns = now.saturating_sub(self.last).as_nanos();
        self.last = self.last.max(now);
        let full = i128::from(self.burst_bytes) * BILLION;
        let gained = i128::try_from(elapsed_ns).unwrap_or(i128::MAX).saturating_mul(i128::from(self.bytes_per_s));
        self.level = self.level.saturating_add(gained).min(full);
        let missing = (-self.level).max(0);
        self.level -= i128::from(bytes) * BILLION;
        let wait_ns = u64::try_from(missing.unsigned_abs().div_ceil(u128::from(self.bytes_per_s)));
        Duration::from_nanos(wait_ns.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends 64 KiB pieces whenever the bucket allows; with pauses now and then, which earn at most a burst.
    #[test]
    fn over_any_time_no_more_than_rate_and_burst_is_sent_and_not_much_less() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (rate, burst) = (random.u64(1_000_000..2_000_000_000), random.u64(65_536..1_000_000));
            let mut bucket = TokenBucket::new(rate, burst, Duration::ZERO).unwrap();
            let (mut now, mut sent, mut paused) = (Duration::ZERO, 0u64, Duration::ZERO);
            for _ in 0..2000 {
                let size = random.u64(1..65_536);
                now += bucket.wait(size, now);
                let allowed = now.as_secs_f64() * rate as f64 + burst as f64;
                assert!(sent as f64 <= allowed + 1.0, "seed {seed}: {sent} bytes at {now:?}, {allowed} allowed");
                sent += size;
                if random.u8(0..100) == 0 {
                    let pause = Duration::from_micros(random.u64(0..5000));
                    now += pause;
                    paused += pause;
                }
            }
            let used = (now - paused).as_secs_f64() * rate as f64;
            assert!(sent as f64 >= used * 0.99 - 65_536.0, "seed {seed}: {sent} bytes sent, {used} were possible");
        }
    }

    #[test]
    fn a_clock_that_steps_back_earns_nothing() {
        let at = Duration::from_secs;
        let mut bucket = TokenBucket::new(1000, 1000, at(10)).unwrap();
        assert_eq!(bucket.wait(2000, at(10)), Duration::ZERO);
        assert_eq!(bucket.wait(0, at(5)), at(1));
        assert_eq!(bucket.wait(0, at(10)), at(1));
        assert_eq!(bucket.wait(0, at(11)), Duration::ZERO);
        assert!(TokenBucket::new(0, 1, at(0)).is_err() && TokenBucket::new(1, 0, at(0)).is_err());
    }
}
