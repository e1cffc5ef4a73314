//! Memory of the device, and pinned memory of the host that the copy engines reach.

use std::marker::PhantomData;

use cudarc::driver::sys;

use super::context::Context;
use super::error::{DriverError, check};

/// Types without padding, for which every pattern of bytes is a value.
///
/// # Safety
/// Implementers must be such types.
pub unsafe trait Plain: Copy + 'static {}

// SAFETY: every pattern of bytes is a value, and there is no padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// `len` elements in device memory, at a multiple of 256 bytes. Freed when dropped, after the work that is under way.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    context: Context,
    pointer: sys::CUdeviceptr,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Plain> DeviceBuffer<T> {
    /// Uninitialised room for `len` elements; at least one byte is taken.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    pub fn new(context: &Context, len: usize) -> Result<Self, DriverError> {
        context.bind()?;
        let bytes = bytes_of::<T>(len, "device memory")?;
        let mut pointer = 0;
        // SAFETY: a context is current, and `pointer` is a valid place for one device pointer.
        let result = unsafe { sys::cuMemAlloc_v2(&raw mut pointer, bytes) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = context.memory()?.free;
            return Err(DriverError::OutOfMemory { place: "device memory", bytes, free });
        }
        check("cuMemAlloc", result)?;
        Ok(Self { context: context.clone(), pointer, len, element: PhantomData })
    }
}

impl<T> DeviceBuffer<T> {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The device address of the first element.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// The device address of element `index`, which may be one past the last.
    ///
    /// # Panics
    /// If `index` is beyond that.
    pub fn address_at(&self, index: usize) -> u64 {
        assert!(index <= self.len, "element {index} of a device buffer of {}", self.len);
        self.pointer + (index * size_of::<T>()) as u64
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `new` and not freed since; the driver waits for work that uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.pointer) };
        }
    }
}

/// `len` elements of pinned host memory: what asynchronous copies read and write.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    context: Context,
    pointer: *mut T,
    len: usize,
}

// SAFETY: the memory is plain host memory owned by the value, and freeing it binds the context first.
unsafe impl<T: Plain + Send> Send for PinnedBuffer<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Plain + Sync> Sync for PinnedBuffer<T> {}

impl<T: Plain> PinnedBuffer<T> {
    /// Room for `len` elements, all bytes zero.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    pub fn new(context: &Context, len: usize) -> Result<Self, DriverError> {
        context.bind()?;
        let bytes = bytes_of::<T>(len, "pinned host memory")?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a context is current, and `pointer` is a valid place for one pointer.
        let result = unsafe { sys::cuMemHostAlloc(&raw mut pointer, bytes, 0) };
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = context.memory()?.free;
            return Err(DriverError::OutOfMemory { place: "pinned host memory", bytes, free });
        }
        check("cuMemHostAlloc", result)?;
        // SAFETY: the driver gave `bytes` bytes there.
        unsafe { pointer.cast::<u8>().write_bytes(0, bytes) };
        Ok(Self { context: context.clone(), pointer: pointer.cast(), len })
    }

    /// The elements. A copy from the device that is still under way may change them: wait for it first.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` initialised elements of a plain type live there as long as `self`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }

    /// The elements, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated once in `new` and not freed since; the driver waits for copies that use it.
            let _ = unsafe { sys::cuMemFreeHost(self.pointer.cast()) };
        }
    }
}

/// Bytes of `len` elements, at least one: the driver refuses empty allocations.
fn bytes_of<T>(len: usize, place: &'static str) -> Result<usize, DriverError> {
    let bytes = len.checked_mul(size_of::<T>());
    bytes.map(|bytes| bytes.max(1)).ok_or(DriverError::OutOfMemory { place, bytes: usize::MAX, free: 0 })
}
