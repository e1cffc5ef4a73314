//! A GPU with a queue on it.

use std::sync::Arc;

use muser_cuda::driver::Plain;
use muser_cuda::kernels::GpuKernels;
use muser_cuda::self_test::{SelfTestError, self_test};
use muser_cuda::{Context, DeviceBuffer, Queue};

/// Everything that a bench works with.
pub struct World {
    pub context: Context,
    pub queue: Queue,
}

impl World {
    /// Opens GPU 0, which must pass its self-test.
    pub fn open() -> Result<Self, SelfTestError> {
        let context = Context::open(0)?;
        let kernels = Arc::new(GpuKernels::load(&context)?);
        self_test(&context, Arc::clone(&kernels))?;
        Ok(Self { queue: Queue::new(&context, kernels)?, context })
    }

    /// A device copy of `values`.
    pub fn upload<T: Plain>(&mut self, values: &[T]) -> DeviceBuffer<T> {
        let mut buffer = self.room(values.len());
        self.queue.stream().upload(values, &mut buffer, 0).expect("upload");
        buffer
    }

    /// Room for `len` elements, all bytes 0xff.
    pub fn room<T: Plain>(&mut self, len: usize) -> DeviceBuffer<T> {
        let mut buffer = DeviceBuffer::new(&self.context, len).expect("device memory");
        self.queue.fill(&mut buffer, 0xff);
        buffer
    }
}
