//! What this process holds.

use std::fs;
use std::time::{Duration, Instant};

use crate::world::World;

/// What this process and the server in it hold while nobody is served.
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
    /// Bytes of KV pages that somebody owns.
    pub kv_live_bytes: usize,
    /// Of these, bytes kept for reuse.
    pub kv_kept_bytes: usize,
}

impl Footprint {
    /// That of `world`, as soon as it is idle and has closed all but `descriptors` files, or does not within a minute.
    pub fn of(world: &World, descriptors: usize) -> Self {
        let status = world.wait_until_idle();
        // A connection is closed a little after its request has ended.
        let began = Instant::now();
        while open_descriptors() > descriptors && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
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
pub fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

pub fn resident_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
