//! A lane's socket where the kernel paces nothing and tells nothing.

use std::io;

use crate::accounting::KernelTimes;
use crate::lane::Lane;

/// Nothing.
pub(super) fn kernel_times(_: &Lane) -> KernelTimes {
    KernelTimes::default()
}

/// Nobody but the sender itself paces.
pub(super) fn set_pacing_rate(_: &Lane, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The kernel does as it is set up to.
pub(super) fn watch(_: &Lane) {}

/// The kernel takes what it likes.
pub(super) fn bound_unsent(_: &Lane, _: u32) {}
