//! The context of one device: found, checked and opened.

use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::error::{DriverError, check};

/// CUDA version whose code the embedded kernels are: `(major, minor)`.
const CUDA_NEEDED: (u32, u32) = (13, 0);

/// Compute capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// 9 for Hopper.
    pub major: u32,
    /// 0 for the first of a generation.
    pub minor: u32,
}

impl Capability {
    /// True where the `sm_90a` kernels run.
    pub fn is_hopper(self) -> bool {
        self == Self { major: 9, minor: 0 }
    }
}

/// Device memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not allocated by any process.
    pub free: usize,
    /// On the card.
    pub total: usize,
}

/// The primary context of one device, shared by all objects made from it.
#[derive(Clone, Debug)]
pub struct Context {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    name: String,
    capability: Capability,
    processors: u32,
    shared_bytes_max: u32,
}

// SAFETY: a CUcontext may be made current on any thread, and the driver API is thread-safe.
unsafe impl Send for Shared {}
// SAFETY: as above; the other fields are plain values that never change.
unsafe impl Sync for Shared {}

impl Context {
    /// Opens device `ordinal`, 0 for the first.
    ///
    /// # Errors
    /// [`DriverError::Absent`] without a driver or device, [`DriverError::DriverTooOld`], [`DriverError::DeviceTooOld`],
    /// [`DriverError::NoSuchDevice`], or the driver's refusal.
    pub fn open(ordinal: u32) -> Result<Self, DriverError> {
        // SAFETY: loads the driver library, whose initialisers are the vendor's; nothing of it is kept.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::Absent { reason: "the driver library libcuda is not installed".into() });
        }
        let mut version = 0;
        // SAFETY: the library is present, and `version` is a valid place for one int.
        check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
        check_version(version.unsigned_abs())?;
        // SAFETY: the library is present; 0 is the only flag there is.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        let mut count = 0;
        // SAFETY: initialised, and `count` is a valid place for one int.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
        let (count, wanted) = (count.unsigned_abs(), i32::try_from(ordinal));
        let Ok(wanted) = wanted.map_err(|_| ()).and_then(|wanted| if ordinal < count { Ok(wanted) } else { Err(()) })
        else {
            return Err(DriverError::NoSuchDevice { ordinal, count });
        };
        let mut device = 0;
        // SAFETY: initialised, `wanted` is below the count, and `device` is a valid place for a handle.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, wanted) })?;
        Self::of_device(ordinal, device)
    }

    fn of_device(ordinal: u32, device: sys::CUdevice) -> Result<Self, DriverError> {
        use CUdevice_attribute as A;
        let major = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(DriverError::DeviceTooOld { ordinal, major, minor });
        }
        let processors = attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_bytes_max = attribute(device, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let name = device_name(device)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `device` is a handle of the driver's; the context is released once, when `Shared` is dropped.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) })?;
        let capability = Capability { major, minor };
        let context = Self { shared: Arc::new(Shared { device, raw, name, capability, processors, shared_bytes_max }) };
        context.bind()?;
        Ok(context)
    }

    /// Name of the device, as the vendor spells it.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Compute capability of the device.
    pub fn capability(&self) -> Capability {
        self.shared.capability
    }

    /// Streaming multiprocessors.
    pub fn processors(&self) -> u32 {
        self.shared.processors
    }

    /// Bytes of shared memory that one thread block may ask for.
    pub fn shared_bytes_max(&self) -> u32 {
        self.shared.shared_bytes_max
    }

    /// Device memory at this moment.
    ///
    /// # Errors
    /// The driver's refusal, or the error of an earlier kernel.
    pub fn memory(&self) -> Result<MemoryInfo, DriverError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both are valid places for one size.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        Ok(MemoryInfo { free, total })
    }

    /// Makes this context current on the calling thread.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.shared.raw) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: retained once in `of_device`. An error here has no one to hear it; the process's end frees the rest.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// `version` is the driver's: 1000 times major plus 10 times minor.
fn check_version(version: u32) -> Result<(), DriverError> {
    let (found_major, found_minor) = (version / 1000, version % 1000 / 10);
    let (needed_major, needed_minor) = CUDA_NEEDED;
    if (found_major, found_minor) < CUDA_NEEDED {
        return Err(DriverError::DriverTooOld { found_major, found_minor, needed_major, needed_minor });
    }
    Ok(())
}

fn attribute(device: sys::CUdevice, attribute: CUdevice_attribute) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: `device` is a handle of the driver's, and `value` is a valid place for one int.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value.unsigned_abs())
}

fn device_name(device: sys::CUdevice) -> Result<String, DriverError> {
    let mut bytes = [0u8; 128];
    // SAFETY: the array has 128 bytes; the driver writes at most 127 and a zero.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(bytes.as_mut_ptr().cast(), 128, device) })?;
    let name = CStr::from_bytes_until_nul(&bytes).map(|name| name.to_string_lossy().into_owned());
    Ok(name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_driver_is_refused_with_both_versions() {
        let error = check_version(12_080).unwrap_err().to_string();
        assert_eq!(error, "the CUDA driver supports CUDA 12.8, the kernels need 13.0");
        assert_eq!([13_000, 13_010, 14_000].map(check_version), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn without_a_driver_opening_fails_with_absent_and_no_panic() {
        match Context::open(0) {
            Err(DriverError::Absent { reason }) => assert!(!reason.is_empty()),
            Err(other) => panic!("{other}"),
            Ok(context) => assert!(context.capability() >= Capability { major: 8, minor: 0 }),
        }
    }
}
