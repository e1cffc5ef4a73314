//! Streams, in which work runs in the order it was enqueued, and events, which mark a place in that order.

use cudarc::driver::sys;

use super::buffer::{DeviceBuffer, PinnedBuffer, Plain};
use super::context::Context;
use super::error::{DriverError, check};

/// A stream of the device. Work of different streams may overlap.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: sys::CUstream,
}

// SAFETY: the driver API is thread-safe, and every method binds the context first.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current, and `raw` is a valid place for a handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The context that the stream belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for everything enqueued so far.
    ///
    /// # Errors
    /// The error of any of it.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Copies `from` to element `at` of `to`. The bytes of `from` have been read when this returns.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    ///
    /// # Panics
    /// If there is not so much room.
    pub fn upload<T: Plain>(&self, from: &[T], to: &mut DeviceBuffer<T>, at: usize) -> Result<(), DriverError> {
        assert!(at + from.len() <= to.len(), "{} elements at {at} of a device buffer of {}", from.len(), to.len());
        self.context.bind()?;
        let (source, bytes) = (from.as_ptr().cast(), size_of_val(from));
        // SAFETY: both ranges are valid; from pageable memory the driver returns after the source was read.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to.address_at(at), source, bytes, self.raw) })
    }

    /// Enqueues a copy of elements `range` of the pinned `from` to element `at` of `to`.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    ///
    /// # Panics
    /// If a range is too long.
    ///
    /// # Safety
    /// `from` must neither change nor be dropped before the copy has run.
    pub unsafe fn upload_pinned<T: Plain>(
        &self,
        from: &PinnedBuffer<T>,
        range: std::ops::Range<usize>,
        to: &mut DeviceBuffer<T>,
        at: usize,
    ) -> Result<(), DriverError> {
        let from = &from.as_slice()[range];
        assert!(at + from.len() <= to.len(), "{} elements at {at} of a device buffer of {}", from.len(), to.len());
        self.context.bind()?;
        let (source, bytes) = (from.as_ptr().cast(), size_of_val(from));
        // SAFETY: both ranges are valid, and the caller keeps the source as it is until the copy has run.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to.address_at(at), source, bytes, self.raw) })
    }

    /// Copies elements from `at` of `from` into `to`, and waits for it.
    ///
    /// # Errors
    /// The error of this or of earlier work.
    ///
    /// # Panics
    /// If there are not so many elements.
    pub fn download<T: Plain>(&self, from: &DeviceBuffer<T>, at: usize, to: &mut [T]) -> Result<(), DriverError> {
        assert!(at + to.len() <= from.len(), "{} elements at {at} of a device buffer of {}", to.len(), from.len());
        self.context.bind()?;
        let (target, bytes) = (to.as_mut_ptr().cast(), size_of_val(to));
        // SAFETY: both ranges are valid, and `to` is borrowed until the synchronisation below.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(target, from.address_at(at), bytes, self.raw) };
        let waited = self.synchronize();
        check("cuMemcpyDtoHAsync", result)?;
        waited
    }

    /// Enqueues a copy of elements `range` of `from` to the front of the pinned `to`.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    ///
    /// # Panics
    /// If a range is too long.
    ///
    /// # Safety
    /// `to` must not be read, changed or dropped before the copy has run.
    pub unsafe fn download_pinned<T: Plain>(
        &self,
        from: &DeviceBuffer<T>,
        range: std::ops::Range<usize>,
        to: &mut PinnedBuffer<T>,
    ) -> Result<(), DriverError> {
        assert!(range.end <= from.len(), "elements {range:?} of a device buffer of {}", from.len());
        let to = &mut to.as_mut_slice()[..range.len()];
        self.context.bind()?;
        let (target, bytes) = (to.as_mut_ptr().cast(), size_of_val(to));
        // SAFETY: both ranges are valid, and the caller leaves the target alone until the copy has run.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(target, from.address_at(range.start), bytes, self.raw)
        })
    }

    /// Enqueues setting all bytes of `buffer` to `byte`.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    pub fn fill<T: Plain>(&self, buffer: &mut DeviceBuffer<T>, byte: u8) -> Result<(), DriverError> {
        buffer.context().bind()?;
        // SAFETY: the range is the buffer's own.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(buffer.address(), byte, buffer.bytes(), self.raw) })
    }

    /// Lets later work of this stream wait for `event`.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait(&self, event: &CudaEvent) -> Result<(), DriverError> {
        self.context.bind()?;
        // SAFETY: both handles live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }

    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once in `new`; the driver lets work under way finish.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A place in a stream's order, with the time at which the device came there.
#[derive(Debug)]
pub struct CudaEvent {
    context: Context,
    raw: sys::CUevent,
}

// SAFETY: the driver API is thread-safe, and every method binds the context first.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// An event that no stream has recorded yet.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a context is current, and `raw` is a valid place for a handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut raw, 0) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Puts the event behind everything enqueued in `stream` so far.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        self.context.bind()?;
        // SAFETY: both handles live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.raw) })
    }

    /// True once the device has come to the event.
    ///
    /// # Errors
    /// The error of earlier work.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        self.context.bind()?;
        // SAFETY: the handle lives.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until the device has come to the event.
    ///
    /// # Errors
    /// The error of earlier work.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.bind()?;
        // SAFETY: the handle lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds from `earlier` to this event; both must have been passed.
    ///
    /// # Errors
    /// The driver's refusal if one was not recorded or not passed.
    pub fn milliseconds_since(&self, earlier: &Self) -> Result<f32, DriverError> {
        self.context.bind()?;
        let mut time = 0.0;
        // SAFETY: both handles live, and `time` is a valid place for one float.
        check("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime(&raw mut time, earlier.raw, self.raw) })?;
        Ok(time)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once in `new`.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
