//! Errors of the CUDA driver, by what a caller can do about them.

use cudarc::driver::sys::CUresult;

/// Failure of the CUDA driver. After [`DriverError::Lost`] every object of the context is unusable; after the others the
/// call had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver library is not installed, or finds no device.
    #[error("no CUDA device: {reason}")]
    Absent {
        /// The missing part.
        reason: String,
    },
    /// The installed driver cannot load this build's kernels.
    #[error(
        "the CUDA driver supports CUDA {found_major}.{found_minor}, the kernels need {needed_major}.{needed_minor}"
    )]
    DriverTooOld {
        /// Major version of CUDA that the driver supports.
        found_major: u32,
        /// Its minor version.
        found_minor: u32,
        /// Major version needed.
        needed_major: u32,
        /// Minor version needed.
        needed_minor: u32,
    },
    /// The device is older than the oldest supported one.
    #[error("device {ordinal} has compute capability {major}.{minor}, at least 8.0 is needed")]
    DeviceTooOld {
        /// Number of the device.
        ordinal: u32,
        /// Major capability.
        major: u32,
        /// Minor capability.
        minor: u32,
    },
    /// There is no device with this number.
    #[error("there is no CUDA device {ordinal}: the machine has {count}")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: u32,
        /// Devices found.
        count: u32,
    },
    /// An allocation did not fit.
    #[error("{place} has no room for {bytes} more bytes ({free} free)")]
    OutOfMemory {
        /// `device memory` or `pinned host memory`.
        place: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of device memory free at that time.
        free: usize,
    },
    /// The device failed while it computed, or was taken away.
    #[error("the CUDA device failed: {call}: {code}")]
    Lost {
        /// The driver call that reported it, which need not be the one that caused it.
        call: &'static str,
        /// The driver's name of the error.
        code: String,
    },
    /// A kernel that this build needs is missing from its machine code.
    #[error("kernel `{name}` is missing from the machine code of this build")]
    MissingKernel {
        /// Name of the kernel.
        name: String,
    },
    /// Any other refusal by the driver.
    #[error("{call}: {code}")]
    Call {
        /// The driver call.
        call: &'static str,
        /// The driver's name of the error.
        code: String,
    },
}

impl DriverError {
    /// True where the device or its context is gone: requests in flight have failed, and a new context is needed.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// `Ok` for success, otherwise the error of `call`.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    use CUresult as R;
    let code = || format!("{result:?}");
    match result {
        R::CUDA_SUCCESS => Ok(()),
        R::CUDA_ERROR_NO_DEVICE
        | R::CUDA_ERROR_STUB_LIBRARY
        | R::CUDA_ERROR_SYSTEM_NOT_READY
        | R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        | R::CUDA_ERROR_NOT_INITIALIZED => Err(DriverError::Absent { reason: code() }),
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_LAUNCH_TIMEOUT
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC
        | R::CUDA_ERROR_HARDWARE_STACK_ERROR
        | R::CUDA_ERROR_ECC_UNCORRECTABLE
        | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | R::CUDA_ERROR_DEVICE_UNAVAILABLE
        | R::CUDA_ERROR_DEINITIALIZED
        | R::CUDA_ERROR_ASSERT
        | R::CUDA_ERROR_UNKNOWN => Err(DriverError::Lost { call, code: code() }),
        _ => Err(DriverError::Call { call, code: code() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_launch_counts_as_a_lost_device_and_a_wrong_argument_does_not() {
        assert_eq!(check("cuCall", CUresult::CUDA_SUCCESS), Ok(()));
        let lost = check("cuCall", CUresult::CUDA_ERROR_ILLEGAL_ADDRESS).unwrap_err();
        assert!(lost.is_lost(), "{lost}");
        let wrong = check("cuCall", CUresult::CUDA_ERROR_INVALID_VALUE).unwrap_err();
        assert!(!wrong.is_lost());
        assert_eq!(wrong.to_string(), "cuCall: CUDA_ERROR_INVALID_VALUE");
        let absent = check("cuInit", CUresult::CUDA_ERROR_NO_DEVICE).unwrap_err();
        assert!(matches!(absent, DriverError::Absent { .. }), "{absent}");
    }
}
