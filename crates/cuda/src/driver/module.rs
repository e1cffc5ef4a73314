//! Machine code loaded into a context, and the kernels in it.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys;

use super::context::Context;
use super::error::{DriverError, check};

/// A loaded fatbin.
#[derive(Clone, Debug)]
pub struct Module {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    raw: sys::CUmodule,
}

// SAFETY: the driver API is thread-safe, and the handle does not change.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Module {
    /// Loads `fatbin`, choosing machine code for the device or compiling its PTX.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn load(context: &Context, fatbin: &'static [u8]) -> Result<Self, DriverError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `fatbin` is a whole fatbin as nvcc made it, which says its own length.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut raw, fatbin.as_ptr().cast()) })?;
        Ok(Self { shared: Arc::new(Shared { context: context.clone(), raw }) })
    }

    /// The kernel `name`, allowed to use as much dynamic shared memory as the device has.
    ///
    /// # Errors
    /// [`DriverError::MissingKernel`], or the driver's refusal.
    pub fn function(&self, name: &str) -> Result<Function, DriverError> {
        let missing = || DriverError::MissingKernel { name: name.to_owned() };
        let symbol = CString::new(name).map_err(|_| missing())?;
        self.shared.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded, and `symbol` ends with a zero.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.shared.raw, symbol.as_ptr()) };
        if result == sys::CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(missing());
        }
        check("cuModuleGetFunction", result)?;
        let function = Function { module: self.clone(), raw };
        function.allow_shared_memory()?;
        Ok(function)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once in `load`; functions hold the module.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a [`Module`].
#[derive(Clone, Debug)]
pub struct Function {
    module: Module,
    raw: sys::CUfunction,
}

// SAFETY: the driver API is thread-safe, and the handle does not change.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    fn allow_shared_memory(&self) -> Result<(), DriverError> {
        use sys::CUfunction_attribute as A;
        let mut fixed = 0;
        // SAFETY: the function belongs to a loaded module, and `fixed` is a valid place for one int.
        check("cuFuncGetAttribute", unsafe {
            sys::cuFuncGetAttribute(&raw mut fixed, A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self.raw)
        })?;
        let all = self.module.shared.context.shared_bytes_max().cast_signed();
        // SAFETY: as above.
        check("cuFuncSetAttribute", unsafe {
            sys::cuFuncSetAttribute(self.raw, A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, all - fixed)
        })
    }

    pub(super) fn context(&self) -> &Context {
        &self.module.shared.context
    }

    pub(super) fn raw(&self) -> sys::CUfunction {
        self.raw
    }
}
