//! Timestamps of a handoff's phases at the sender.

use std::time::{Duration, Instant};

use muser_lane::accounting::{KernelTimes, SendAccount};
use muser_wire::SenderTimes;

/// Timestamps of one handoff.
#[derive(Debug)]
pub(super) struct Timeline {
    requested: Instant,
    /// Time at which the engine began.
    started: Option<Instant>,
    /// Time at which the engine was done.
    computed: Option<Instant>,
    packing: Duration,
    /// Time of the first frame of pages, with the kernel's counters before it.
    first_page: Option<(Instant, KernelTimes)>,
}

impl Timeline {
    /// Starts with the request.
    pub(super) fn new(requested: Instant) -> Self {
        Self { requested, started: None, computed: None, packing: Duration::ZERO, first_page: None }
    }

    /// Notes the engine's beginning. Only the first time counts.
    pub(super) fn started(&mut self, at: Instant) {
        self.started.get_or_insert(at);
    }

    /// Notes the end of the last row.
    pub(super) fn computed(&mut self, at: Instant) {
        self.computed = Some(at);
    }

    /// Notes a frame of pages that took `time` to make and waits for the kernel, whose counters are `kernel`.
    pub(super) fn packed(&mut self, time: Duration, now: Instant, kernel: impl FnOnce() -> KernelTimes) {
        self.packing += time;
        self.first_page.get_or_insert_with(|| (now, kernel()));
    }

    /// The account of `bytes` that were sent from the first page until now.
    pub(super) fn account(&self, bytes: u64, now: Instant, kernel: &KernelTimes) -> SendAccount {
        match &self.first_page {
            Some((at, before)) => SendAccount::between(before, kernel, bytes, now.saturating_duration_since(*at)),
            None => SendAccount { payload_bytes: bytes, busy: Some(Duration::ZERO), wall: Duration::ZERO },
        }
    }

    /// Times sent to the receiver with the commit, once the kernel has all pages; its counters are then `kernel`.
    pub(super) fn times(&self, now: Instant, kernel: &KernelTimes) -> SenderTimes {
        let started = self.started.unwrap_or(self.requested);
        let computed = self.computed.unwrap_or(started);
        let SendAccount { busy, wall, .. } = self.account(0, now, kernel);
        SenderTimes {
            queue_us: microseconds(started.saturating_duration_since(self.requested)),
            compute_us: microseconds(computed.saturating_duration_since(started)),
            pack_us: microseconds(self.packing),
            // The kernel counts in its ticks of some milliseconds, and may round up.
            send_busy_us: busy.map(|busy| microseconds(busy.min(wall))),
            send_wall_us: microseconds(wall),
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(busy_us: Option<u64>) -> KernelTimes {
        KernelTimes { busy_us, ..KernelTimes::default() }
    }

    #[test]
    fn each_part_of_a_handoff_is_timed_by_its_own_ends() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut timeline = Timeline::new(at(0));
        timeline.started(at(5));
        timeline.packed(Duration::from_millis(2), at(20), || kernel(Some(1000)));
        timeline.packed(Duration::from_millis(3), at(40), || unreachable!("the first page is long gone"));
        timeline.computed(at(45));
        let times = timeline.times(at(60), &kernel(Some(8000)));
        let expected = SenderTimes {
            queue_us: 5000,
            compute_us: 40_000,
            pack_us: 5000,
            send_busy_us: Some(7000),
            send_wall_us: 40_000,
        };
        assert_eq!(times, expected);
        let rounded_up = timeline.times(at(60), &kernel(Some(42_000)));
        assert_eq!(rounded_up, SenderTimes { send_busy_us: Some(40_000), ..expected });
        let untold = timeline.times(at(60), &kernel(None));
        assert_eq!(untold, SenderTimes { send_busy_us: None, ..expected });
    }

    #[test]
    fn without_pages_nothing_was_sent() {
        let begin = Instant::now();
        let times = Timeline::new(begin).times(begin + Duration::from_millis(9), &kernel(None));
        assert_eq!((times.send_busy_us, times.send_wall_us, times.compute_us), (Some(0), 0, 0));
    }
}
