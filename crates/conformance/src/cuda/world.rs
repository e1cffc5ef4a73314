//! A GPU with a queue on it, and the count of what was compared.

use std::sync::Arc;

use muser_cuda::driver::Plain;
use muser_cuda::kernels::GpuKernels;
use muser_cuda::matrix::DeviceMatrixError;
use muser_cuda::self_test::{SelfTestError, self_test};
use muser_cuda::{Context, DeviceBuffer, DriverError, Queue};
use muser_kernels::attention::AttentionError;
use muser_kernels::matrix::MatrixError;
use muser_kernels::pool::PoolError;
use muser_kernels::rope::RopeError;

use crate::tally::{BitTally, Bits};

/// A family that could not be gone through: the device failed, or the program's own operands were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The device gives wrong bits, and is not used.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
    /// A matrix was refused on the device.
    #[error(transparent)]
    DeviceMatrix(#[from] DeviceMatrixError),
    /// A matrix was refused on the CPU.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
    /// A shape was refused.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// Rotary angles were refused.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// The system refused threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Everything that a family of cases works with.
#[derive(Debug)]
pub struct World {
    pub(super) context: Context,
    pub(super) queue: Queue,
    /// Launches of each case after the first.
    pub(super) repeats: usize,
    tally: BitTally,
    /// Count and first index of differences found on the device since the last look.
    found: DeviceBuffer<u64>,
    /// The comparison on the device that is under way.
    repeated: Option<Repeated>,
}

#[derive(Debug)]
struct Repeated {
    what: String,
    compared: usize,
}

impl World {
    /// Opens GPU `ordinal`, which must pass its self-test.
    ///
    /// # Errors
    /// If there is no such GPU, or it fails the test.
    pub fn open(ordinal: u32, repeats: usize) -> Result<Self, CudaError> {
        let context = Context::open(ordinal)?;
        let kernels = Arc::new(GpuKernels::load(&context)?);
        self_test(&context, Arc::clone(&kernels))?;
        let queue = Queue::new(&context, kernels)?;
        let mut found = DeviceBuffer::new(&context, 2)?;
        queue.stream().upload(&[0, u64::MAX], &mut found, 0)?;
        Ok(Self { context, queue, repeats, tally: BitTally::default(), found, repeated: None })
    }

    /// Takes the counts of the comparisons since the last call.
    pub fn take_tally(&mut self) -> BitTally {
        std::mem::take(&mut self.tally)
    }

    /// A device copy of `values`.
    pub(super) fn upload<T: Plain>(&mut self, values: &[T]) -> Result<DeviceBuffer<T>, DriverError> {
        let mut buffer = self.room(values.len())?;
        self.queue.stream().upload(values, &mut buffer, 0)?;
        Ok(buffer)
    }

    /// Room for `len` elements, all bytes 0xff: NaN as floats.
    pub(super) fn room<T: Plain>(&mut self, len: usize) -> Result<DeviceBuffer<T>, DriverError> {
        let mut buffer = DeviceBuffer::new(&self.context, len)?;
        self.queue.fill(&mut buffer, 0xff);
        Ok(buffer)
    }

    /// The first `len` elements of `buffer`, once everything enqueued has run.
    pub(super) fn download<T: Plain + Default>(
        &mut self,
        buffer: &DeviceBuffer<T>,
        len: usize,
    ) -> Result<Vec<T>, DriverError> {
        self.queue.sync()?;
        let mut values = vec![T::default(); len];
        self.queue.stream().download(buffer, 0, &mut values)?;
        Ok(values)
    }

    /// Counts a case: `got` against `expected`, rows of `width` elements.
    pub(super) fn compare<T: Bits>(&mut self, what: &dyn std::fmt::Display, width: usize, expected: &[T], got: &[T]) {
        self.tally.compare(what, width, expected, got);
    }

    /// Enqueues a comparison of two results on the device; [`World::end_repeats`] counts what was found.
    pub(super) fn compare_on_device(&mut self, what: &str, left: &DeviceBuffer<f32>, right: &DeviceBuffer<f32>) {
        self.queue.count_differences(left, right, &mut self.found);
        let compared = self.repeated.take().map_or(0, |repeated| repeated.compared);
        self.repeated = Some(Repeated { what: what.to_owned(), compared: compared + left.len() });
    }

    /// Counts the comparisons enqueued since the last call as one case.
    pub(super) fn end_repeats(&mut self) -> Result<(), DriverError> {
        let Some(Repeated { what, compared }) = self.repeated.take() else { return Ok(()) };
        self.queue.sync()?;
        let mut found = [0; 2];
        self.queue.stream().download(&self.found, 0, &mut found)?;
        self.queue.stream().upload(&[0, u64::MAX], &mut self.found, 0)?;
        let wrong = usize::try_from(found[0]).unwrap_or(usize::MAX);
        self.tally.count(&format_args!("{what}, against the first run"), compared, wrong, found[1]);
        Ok(())
    }
}
