//! Pacing of sends to the measured rate of the link: by the kernel (`SO_MAX_PACING_RATE`) where possible, by a token
//! bucket elsewhere.

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Mechanism that spaces the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacedBy {
    /// The kernel, per lane; falls back to the bucket if the socket refuses the rate.
    Kernel,
    /// One token bucket shared by all lanes.
    Bucket,
}

/// Send rate of a link, shared by all lanes that send at the same time.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: NonZeroU64,
    by: PacedBy,
    /// Lanes with bytes to send.
    sending: AtomicU64,
    bucket: Mutex<TokenBucket>,
}

/// One lane's share of a [`Pace`].
#[derive(Debug)]
pub struct LanePace {
    pace: Arc<Pace>,
    by: PacedBy,
    /// Rate given to the kernel, bytes per second; 0 for none.
    given: u64,
    /// Start of the current busy period, if there is one.
    since: Option<Duration>,
    /// Length of earlier busy periods since the last report.
    sending: Duration,
}

/// Token bucket: a rate and a burst. Time is an argument, on any clock that only rises.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    bytes_per_s: u64,
    burst_bytes: u64,
    /// Tokens in billionths of a byte, so that rounding loses none. Negative after a send larger than the burst.
    level: i128,
    last: Duration,
}

/// A rate or a burst of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate of {bytes_per_s} bytes a second with bursts of {burst_bytes} bytes never sends; both must be above 0")]
pub struct NoRate {
    /// As given.
    pub bytes_per_s: u64,
    /// As given.
    pub burst_bytes: u64,
}

const BILLION: i128 = 1_000_000_000;

/// Burst of [`Pace`]'s bucket: the bytes of 1/100 s, at least one 64 KiB write.
const BURSTS_PER_S: u64 = 100;
const BURST_BYTES_MIN: u64 = 64 << 10;

impl Pace {
    /// A link of this rate.
    pub fn new(bytes_per_s: NonZeroU64, by: PacedBy) -> Arc<Self> {
        let (rate, burst) = (bytes_per_s.get(), (bytes_per_s.get() / BURSTS_PER_S).max(BURST_BYTES_MIN));
        let bucket = Mutex::new(TokenBucket::full(rate, burst, Duration::ZERO));
        Arc::new(Self { bytes_per_s, by, sending: AtomicU64::new(0), bucket })
    }

    /// The rate of all lanes together.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s.get()
    }

    /// A lane that sends nothing yet.
    pub fn lane(self: &Arc<Self>) -> LanePace {
        LanePace { pace: Arc::clone(self), by: self.by, given: 0, since: None, sending: Duration::ZERO }
    }

    /// Send rate of one busy lane, bytes per second: the link's rate over the number of busy lanes, at least 1.
    fn share(&self) -> u64 {
        (self.bytes_per_s.get() / self.sending.load(Ordering::Relaxed).max(1)).max(1)
    }

    fn bucket(&self) -> std::sync::MutexGuard<'_, TokenBucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LanePace {
    /// Marks the lane busy and returns the wait before its next send. Its share of the rate goes to the kernel through
    /// `give_kernel`; if that fails, the bucket paces from now on.
    pub fn begin(&mut self, now: Duration, give_kernel: impl FnOnce(u64) -> io::Result<()>) -> Duration {
        if self.since.is_none() {
            self.pace.sending.fetch_add(1, Ordering::Relaxed);
            self.since = Some(now);
        }
        let share = self.pace.share();
        if self.by == PacedBy::Kernel && self.given != share {
            match give_kernel(share) {
                Ok(()) => self.given = share,
                Err(_) => self.by = PacedBy::Bucket,
            }
        }
        match self.by {
            PacedBy::Kernel => Duration::ZERO,
            PacedBy::Bucket => self.pace.bucket().wait(0, now),
        }
    }

    /// Counts bytes that were sent.
    pub fn sent(&mut self, bytes: u64, now: Duration) {
        if self.by == PacedBy::Bucket {
            self.pace.bucket().wait(bytes, now);
        }
    }

    /// Marks the lane idle.
    pub fn end(&mut self, now: Duration) {
        if let Some(since) = self.since.take() {
            self.pace.sending.fetch_sub(1, Ordering::Relaxed);
            self.sending += now.saturating_sub(since);
        }
    }

    /// Busy time of the lane since the last call; `None` if the kernel paces, which has its own counter.
    pub fn take_sending(&mut self, now: Duration) -> Option<Duration> {
        let under_way = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.since = self.since.map(|_| now);
        let sending = std::mem::take(&mut self.sending) + under_way;
        (self.by == PacedBy::Bucket).then_some(sending)
    }

    /// True if other lanes are busy too.
    pub fn is_shared(&self) -> bool {
        self.pace.sending.load(Ordering::Relaxed) > 1
    }
}

impl Drop for LanePace {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
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
        Ok(Self::full(bytes_per_s, burst_bytes, now))
    }

    /// As [`Self::new`], for numbers above 0.
    fn full(bytes_per_s: u64, burst_bytes: u64, now: Duration) -> Self {
        Self { bytes_per_s, burst_bytes, level: i128::from(burst_bytes) * BILLION, last: now }
    }

    /// Time to wait before `bytes` are sent, which are counted as sent then. More than a burst is allowed: the level
    /// goes negative, and the next send waits for it.
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

    /// Lanes that come and go, each sending a piece whenever it need not wait.
    #[test]
    fn lanes_that_send_at_a_time_have_the_rate_together() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let rate = random.u64(1_000_000..1_000_000_000);
            let pace = Pace::new(NonZeroU64::new(rate).unwrap(), PacedBy::Bucket);
            let mut lanes: Vec<LanePace> = (0..random.usize(1..5)).map(|_| pace.lane()).collect();
            let (mut now, mut sent) = (Duration::ZERO, 0);
            for _ in 0..2000 {
                let mut waits = Vec::new();
                for lane in &mut lanes {
                    let wait = lane.begin(now, |_| panic!("the kernel is not asked"));
                    if wait.is_zero() {
                        lane.sent(40_000, now);
                        sent += 40_000;
                    } else {
                        waits.push(wait);
                    }
                }
                now += waits.into_iter().min().unwrap_or(Duration::from_micros(1));
            }
            let (most, burst) = (now.as_secs_f64() * rate as f64, (rate / 100).max(65_536) as f64);
            let sent = f64::from(sent);
            assert!(sent <= most + burst + 40_000.0, "seed {seed}: {sent} bytes, {most} by the rate");
            assert!(sent >= most * 0.99, "seed {seed}: {sent} bytes, {most} by the rate");
        }
    }

    #[test]
    fn the_kernel_is_given_a_lanes_part_whenever_that_changes_and_the_bucket_counts_if_it_takes_none() {
        let pace = Pace::new(NonZeroU64::new(1000).unwrap(), PacedBy::Kernel);
        let (mut first, mut second, now) = (pace.lane(), pace.lane(), Duration::ZERO);
        let begin = |lane: &mut LanePace| {
            let mut given = None;
            let wait = lane.begin(now, |rate| {
                given = Some(rate);
                Ok(())
            });
            assert_eq!(wait, Duration::ZERO);
            given
        };
        assert_eq!((begin(&mut first), begin(&mut first)), (Some(1000), None));
        assert_eq!((begin(&mut second), begin(&mut first)), (Some(500), Some(500)));
        assert!(first.is_shared());
        drop(second);
        assert_eq!(begin(&mut first), Some(1000));
        first.end(now);
        first.end(now);
        let mut third = pace.lane();
        assert_eq!(third.begin(now, |_| Err(io::ErrorKind::Unsupported.into())), Duration::ZERO);
        assert!(!third.is_shared());
        third.sent(BURST_BYTES_MIN + 500, now);
        assert_eq!(third.begin(now, |_| panic!("asked again")), Duration::from_millis(500));
        let at = Duration::from_secs;
        third.end(at(2));
        third.begin(at(5), |_| panic!("asked again"));
        assert_eq!(third.take_sending(at(6)), Some(at(3)));
        assert_eq!((third.take_sending(at(7)), first.take_sending(at(7))), (Some(at(1)), None));
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
