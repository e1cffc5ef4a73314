//! What Linux tells of a lane's socket.

use std::os::fd::AsFd;

use crate::accounting::KernelTimes;
use crate::lane::Lane;
use crate::socket_options;

/// The kernel's account of the lane so far.
pub(super) fn kernel_times(lane: &Lane) -> KernelTimes {
    socket_options::kernel_times(lane.as_fd()).unwrap_or_default()
}
