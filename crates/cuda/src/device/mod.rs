//! The GPU as a device of the layer graph: it enqueues every operation, and waits where the graph reads something back.
//!
//! [`CudaDevice`] holds what a step needs besides weights and buffers: positions, row status, rotary angles, the plans of
//! attention, and copies of the pages (`pages`). `prepare` brings weights to the device. Nothing outside this crate learns of
//! device memory: caches hold the canonical bytes of every page, and [`CudaDevice`] keeps copies of them that it writes
//! through.

mod operations;
mod pages;
mod prepare;
mod slots;
mod step;

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kernels::cpu::RowStatus;
use muser_kernels::rope::RopeTable;
use muser_model::{DeviceError, ModelSpec};

use crate::driver::{Context, DeviceBuffer, DriverError, PinnedBuffer};
use crate::kernels::GpuKernels;
use crate::queue::{FINE, Queue};
use crate::self_test::{SelfTestError, self_test, test_model};

pub use prepare::{PrepareForCuda, Table};

pub(crate) use pages::staging_bytes;

use step::StepState;

/// A GPU and the kernels that are loaded into it.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Context,
    kernels: Arc<GpuKernels>,
}

impl Gpu {
    /// Opens GPU `ordinal`, loads the kernels and tests that it computes the reference's bits.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or it cannot run the kernels, or it fails the test.
    pub fn open(ordinal: u32) -> Result<Self, SelfTestError> {
        let context = Context::open(ordinal)?;
        let kernels = Arc::new(GpuKernels::load(&context)?);
        self_test(&context, Arc::clone(&kernels))?;
        let gpu = Self { context, kernels };
        test_model(&gpu)?;
        Ok(gpu)
    }

    /// Name and memory.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// A queue of its own.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn queue(&self) -> Result<Queue, DriverError> {
        Queue::new(&self.context, Arc::clone(&self.kernels))
    }

    /// A preparer of weights for this GPU.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn preparer(&self) -> Result<PrepareForCuda, DriverError> {
        Ok(PrepareForCuda::new(self.queue()?))
    }
}

/// Device memory that pages may take, and the largest step.
#[derive(Clone, Copy, Debug)]
pub struct CudaLimits {
    /// Rows of a step.
    pub rows_max: usize,
    /// Bytes of device copies of pages, at least one slab. Pages beyond that stay on the host and are copied when a step needs
    /// them.
    pub page_bytes_max: usize,
    /// Bytes of device memory taken at once for copies, at least one page.
    pub page_slab_bytes: usize,
    /// Threads of the host that compute rotary angles.
    pub host_threads: NonZeroUsize,
}

impl CudaLimits {
    /// Limits with slabs of 64 MiB.
    pub fn new(rows_max: usize, page_bytes_max: usize, host_threads: NonZeroUsize) -> Self {
        Self { rows_max, page_bytes_max, page_slab_bytes: 64 << 20, host_threads }
    }
}

/// A GPU with its kernels, and the state of the step that it computes.
#[derive(Debug)]
pub struct CudaDevice {
    queue: Queue,
    shape: AttentionShape,
    rotations: Vec<Angles>,
    /// `[rows_max]`: absolute positions of the step's rows.
    positions: DeviceBuffer<u32>,
    /// `[rows_max]`: tokens, or rows selected for the head.
    indices: DeviceBuffer<u32>,
    /// `[rows_max]`.
    status: DeviceBuffer<u32>,
    status_host: Vec<RowStatus>,
    logits_host: Option<PinnedBuffer<f32>>,
    site: u32,
    rows: usize,
    step: StepState,
}

/// Rotary angles of one rotation on the device, extended as positions come.
#[derive(Debug)]
struct Angles {
    table: RopeTable,
    context: usize,
    threads: NonZeroUsize,
    angles: DeviceBuffer<f32>,
}

impl CudaDevice {
    /// A device for steps of a model of `spec` on `gpu`.
    ///
    /// # Errors
    /// [`DriverError`] if the GPU has no room.
    pub fn new(gpu: &Gpu, spec: &ModelSpec, limits: CudaLimits) -> Result<Self, DriverError> {
        let context = gpu.context.clone();
        let queue = gpu.queue()?;
        let shape = spec.attention_shape();
        let rows = limits.rows_max;
        let config = spec.config();
        let rotations = spec.angles().into_iter().map(|table| {
            let angles = DeviceBuffer::new(&context, 0)?;
            Ok(Angles { table, context: config.context, threads: limits.host_threads, angles })
        });
        let rotations = rotations.collect::<Result<_, DriverError>>()?;
        Ok(Self {
            shape,
            rotations,
            positions: DeviceBuffer::new(&context, rows)?,
            indices: DeviceBuffer::new(&context, rows)?,
            status: DeviceBuffer::new(&context, rows)?,
            status_host: Vec::with_capacity(rows),
            logits_host: None,
            site: 0,
            rows: 0,
            step: StepState::new(&context, shape, limits, config.context)?,
            queue,
        })
    }

    /// Writes positions and a clean status for a step.
    fn begin_rows(&mut self, positions: &[u32]) -> Result<(), DriverError> {
        self.rows = positions.len();
        self.site = 0;
        self.queue.stream().upload(positions, &mut self.positions, 0)?;
        self.queue.fill(&mut self.status, FINE.to_ne_bytes()[0]);
        let needed = positions.iter().max().map_or(0, |last| *last as usize + 1);
        self.rotations.iter_mut().try_for_each(|angles| angles.extend_to(needed, &mut self.queue))
    }

    /// Waits for the step's status.
    fn download_status(&mut self) -> Result<(), DriverError> {
        self.queue.sync()?;
        let mut words = vec![0; self.rows];
        self.queue.stream().download(&self.status, 0, &mut words)?;
        self.status_host.clear();
        self.status_host.extend(words.into_iter().map(|word| match word {
            FINE => RowStatus::FINE,
            site => RowStatus::failed_at(site),
        }));
        Ok(())
    }
}

impl Angles {
    fn extend_to(&mut self, needed: usize, queue: &mut Queue) -> Result<(), DriverError> {
        if needed <= self.table.positions() {
            return Ok(());
        }
        // Doubling, so that decode seldom waits for the table.
        let positions = needed.max(2 * self.table.positions()).max(1024).min(self.context);
        self.table.extend_to(positions, self.threads.get());
        let values = self.table.values();
        queue.sync()?;
        let mut angles = DeviceBuffer::new(queue.context(), values.len())?;
        queue.stream().upload(values, &mut angles, 0)?;
        self.angles = angles;
        Ok(())
    }
}

/// The graph's view of a failure of the driver.
pub(crate) fn device_error(error: DriverError) -> DeviceError {
    match error {
        DriverError::OutOfMemory { bytes, .. } => DeviceError::OutOfMemory { device: "the GPU", bytes },
        other => DeviceError::Failed { device: "the GPU", reason: other.to_string() },
    }
}

/// Layout of the caches of a step.
fn layout_of(batch: &[muser_model::SequenceInput<'_>]) -> KvLayout {
    batch.first().map_or(KvLayout::Q8, |input| input.cache.spec().layout().layout())
}
