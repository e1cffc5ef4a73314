//! Socket options of a lane on Linux: pacing, keep-alive, unsent limit, and TCP counters.

use std::io;
use std::os::fd::AsFd;

use muser_lane::Lane;
use muser_lane::accounting::KernelTimes;
use muser_lane::socket_options;

/// A peer that vanished is noticed after 90 s.
const SILENT_S: u32 = 60;
const BETWEEN_PROBES_S: u32 = 10;
const PROBES: u32 = 3;

/// TCP counters of the lane so far.
pub(super) fn kernel_times(lane: &Lane) -> KernelTimes {
    socket_options::kernel_times(lane.as_fd()).unwrap_or_default()
}

/// Sets the kernel's pacing rate of the lane.
pub(super) fn set_pacing_rate(lane: &Lane, bytes_per_s: u64) -> io::Result<()> {
    socket_options::set_pacing_rate(lane.as_fd(), bytes_per_s)
}

/// Turns keep-alive probes on, so that the kernel closes an idle lane whose peer vanished.
pub(super) fn watch(lane: &Lane) {
    // Without it a lane of a peer that vanished stays open, and nothing else.
    let _ = socket_options::set_keepalive(lane.as_fd(), SILENT_S, BETWEEN_PROBES_S, PROBES);
}

/// Limits the bytes that the kernel has and has not sent, so that bytes written are about bytes sent.
pub(super) fn bound_unsent(lane: &Lane, bytes: u32) {
    // Without it the times of sending are less true, and nothing else.
    let _ = socket_options::set_unsent_max(lane.as_fd(), bytes);
}
