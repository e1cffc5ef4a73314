//! Operations enqueued on one stream of the device. None waits; the first failure is kept, later operations do nothing, and
//! [`Queue::sync`] reports it.

pub mod attend;
pub mod diagnostics;
pub mod heads;
pub mod matmul;
pub mod pages;
pub mod prepare;
pub mod quantise;
pub mod rows;

use std::sync::Arc;

use crate::driver::{Arguments, Context, CudaEvent, DeviceBuffer, DriverError, Launch, Plain, Stream};
use crate::kernels::GpuKernels;

/// `status` of a row in which nothing was found that is not finite.
pub const FINE: u32 = u32::MAX;

/// Status buffer and place, for operations that find rows not to be finite.
#[derive(Debug)]
pub struct Failures<'a> {
    /// `[rows of the step]`, [`FINE`] at the start: lowered to the lowest place at which a row was found not to be finite.
    pub status: &'a mut DeviceBuffer<u32>,
    /// Index of the layer; the number of layers for the head.
    pub place: u32,
}

/// A stream of operations with the kernels they are made of.
#[derive(Debug)]
pub struct Queue {
    stream: Stream,
    kernels: Arc<GpuKernels>,
    failed: Option<DriverError>,
    hand_over: HandOver,
}

/// Sums of tiles that two thread blocks of a Hopper kernel share (`kernels/stream_k.cuh`).
#[derive(Debug)]
struct HandOver {
    sums: DeviceBuffer<f32>,
    /// All zero between two launches.
    flags: DeviceBuffer<u32>,
}

impl HandOver {
    /// Most sums of a thread block: 64 of each of 384 threads.
    const SUMS: usize = 64 * 384;

    fn new(stream: &Stream) -> Result<Self, DriverError> {
        let context = stream.context();
        let processors = if context.capability().is_hopper() { context.processors() as usize } else { 0 };
        let sums = DeviceBuffer::new(context, processors * Self::SUMS)?;
        let mut flags = DeviceBuffer::new(context, processors)?;
        stream.fill(&mut flags, 0)?;
        Ok(Self { sums, flags })
    }
}

impl Queue {
    /// A queue of its own; several queues may share the loaded kernels.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(context: &Context, kernels: Arc<GpuKernels>) -> Result<Self, DriverError> {
        let stream = Stream::new(context)?;
        let hand_over = HandOver::new(&stream)?;
        Ok(Self { stream, kernels, failed: None, hand_over })
    }

    /// The device that the queue runs on.
    pub fn context(&self) -> &Context {
        self.stream.context()
    }

    /// The stream, for copies and events.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Bytes of device memory that the queue itself takes.
    pub fn bytes(&self) -> usize {
        self.hand_over.sums.bytes() + self.hand_over.flags.bytes()
    }

    /// Waits for everything enqueued so far.
    ///
    /// # Errors
    /// The first failure since the last call. After [`DriverError::Lost`] the queue stays failed.
    pub fn sync(&mut self) -> Result<(), DriverError> {
        let waited = self.stream.synchronize();
        let result = self.failed.take().map_or(waited, Err);
        self.failed = result.as_ref().err().filter(|error| error.is_lost()).cloned();
        result
    }

    /// Puts `event` behind everything enqueued so far.
    pub fn mark(&mut self, event: &CudaEvent) {
        let marked = event.record(&self.stream);
        self.note(marked);
    }

    /// Enqueues setting all bytes of `buffer` to `byte`.
    pub fn fill<T: Plain>(&mut self, buffer: &mut DeviceBuffer<T>, byte: u8) {
        if self.failed.is_none() {
            let filled = self.stream.fill(buffer, byte);
            self.note(filled);
        }
    }

    /// Enqueues `kernel`, unless an earlier operation failed.
    ///
    /// # Safety
    /// As for [`Stream::launch`].
    pub(crate) unsafe fn launch(&mut self, kernel: &'static str, launch: &Launch, mut arguments: Arguments) {
        if self.failed.is_some() || launch.grid.contains(&0) {
            return;
        }
        // SAFETY: the caller's promise.
        let launched = self
            .kernels
            .function(kernel)
            .and_then(|function| unsafe { self.stream.launch(function, launch, &mut arguments) });
        self.note(launched);
    }

    /// `launch` started early where the device can: for kernels that call `wait_for_previous` (`kernels/launch.cuh`).
    pub(crate) fn early(&self, launch: Launch) -> Launch {
        if self.context().capability().is_hopper() { launch.early() } else { launch }
    }

    /// The first failure so far, if there was one: everything behind it was left out.
    pub fn failure(&self) -> Option<DriverError> {
        self.failed.clone()
    }

    /// Keeps the failure of work that was put into the stream beside the operations.
    pub(crate) fn note(&mut self, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

/// A dimension of a launch.
///
/// # Panics
/// If it passes 2^32, which no buffer of a device allows.
pub(crate) fn dimension(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} thread blocks"))
}
