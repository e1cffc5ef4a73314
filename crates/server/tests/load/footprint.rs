//! Resources held by this process.

use std::fs;
use std::time::{Duration, Instant};

use crate::world::{World, wait_until};

/// Resources held by this process, and the server in it, while no request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Open files, sockets included.
    pub descriptors: usize,
    /// Pages of memory that are there, in KiB.
    pub resident_kib: usize,
    /// Slots with a request.
    pub busy_slots: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Bytes of KV pages with an owner.
    pub kv_live_bytes: usize,
    /// Of these, bytes kept for reuse.
    pub kv_kept_bytes: usize,
}

impl Footprint {
    /// Footprint of `world` once it serves no client: to compare with the one after clients have come and gone.
    ///
    /// A connection is closed a little after its answer has been read, and counts as open until its file is closed.
    pub fn at_rest(world: &World) -> Self {
        wait_until("nobody is connected", || world.connections() == 0);
        world.wait_until_idle();
        Self::now(world)
    }

    /// Footprint of `world` as soon as it holds what it held `before`, or after a minute in which it never did.
    pub fn back_at(before: &Self, world: &World) -> Self {
        let began = Instant::now();
        loop {
            let now = Self::now(world);
            // Far beyond what any client takes to be gone.
            if now.held() == before.held() || began.elapsed() > Duration::from_secs(60) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Counts that must be 0 or unchanged after clients have left: open files, requests that run or wait, bytes of
    /// pages that are live and not kept for reuse.
    pub fn held(&self) -> [usize; 4] {
        [self.descriptors, self.busy_slots, self.waiting, self.kv_live_bytes.abs_diff(self.kv_kept_bytes)]
    }

    fn now(world: &World) -> Self {
        let status = world.status();
        Self {
            descriptors: open_descriptors(),
            resident_kib: resident_kib(),
            busy_slots: status.running(),
            waiting: status.waiting,
            kv_live_bytes: status.memory.live_bytes,
            kv_kept_bytes: status.prefix_bytes,
        }
    }
}

/// The one that lists them included.
fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

pub fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
