//! Room for what attention leaves between its kernels.

use muser_kernels::attention::AttentionShape;

use super::TILE_QUERIES;
use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::queue::Queue;

/// Bytes of partial results at most.
const PARTIAL_BYTES_MAX: usize = 64 << 20;
/// Most partial results.
const PARTIALS_MAX: usize = 8192;

/// Workspace of attention, shared by all layers and plans of one stream.
#[derive(Debug)]
pub struct AttentionScratch {
    partials: usize,
    /// `[partials][kv_heads][16][4]`.
    pub(crate) sums: DeviceBuffer<f32>,
    /// `[partials][kv_heads][16][head_dim]`.
    pub(crate) outputs: DeviceBuffer<f32>,
}

impl AttentionScratch {
    /// Workspace for layers of `shape`.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    pub fn new(context: &Context, shape: &AttentionShape) -> Result<Self, DriverError> {
        let partials = partials_of(shape);
        let rows = partials * shape.kv_heads() * TILE_QUERIES;
        Ok(Self {
            partials,
            sums: DeviceBuffer::new(context, rows * 4)?,
            outputs: DeviceBuffer::new(context, rows * shape.head_dim())?,
        })
    }

    /// Bytes of device memory that [`AttentionScratch::new`] takes.
    pub fn bytes(shape: &AttentionShape) -> usize {
        partials_of(shape) * partial_bytes(shape)
    }

    /// Overwrites everything with bytes 0xff, so that a check sees what a kernel forgets.
    pub fn poison(&mut self, queue: &mut Queue) {
        queue.fill(&mut self.sums, 0xff);
        queue.fill(&mut self.outputs, 0xff);
    }

    pub(crate) fn partials_max(&self, shape: &AttentionShape) -> usize {
        self.partials.min(partials_of(shape))
    }
}

fn partial_bytes(shape: &AttentionShape) -> usize {
    shape.kv_heads() * TILE_QUERIES * (4 + shape.head_dim()) * size_of::<f32>()
}

fn partials_of(shape: &AttentionShape) -> usize {
    (PARTIAL_BYTES_MAX / partial_bytes(shape)).min(PARTIALS_MAX)
}
