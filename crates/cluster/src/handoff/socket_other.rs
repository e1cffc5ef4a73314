//! Socket options of a lane on systems without pacing and TCP counters.

use std::io;

use muser_lane::Lane;
use muser_lane::accounting::KernelTimes;

/// No counters.
pub(super) fn kernel_times(_: &Lane) -> KernelTimes {
    KernelTimes::default()
}

/// Unsupported: the token bucket paces.
pub(super) fn set_pacing_rate(_: &Lane, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The system's default keep-alive.
pub(super) fn watch(_: &Lane) {}

/// The system's default buffers.
pub(super) fn bound_unsent(_: &Lane, _: u32) {}
