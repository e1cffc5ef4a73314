//! The CPU as a device: the operations that the layer graph is written in, spread over a thread pool.
//!
//! An operation's result depends on its operands alone. Threads share out rows, output panels or attention jobs, and no
//! sum crosses what one job computes.

mod attention;
mod matmul;
mod rows;
mod step;

use std::num::NonZeroUsize;

pub use attention::{AttentionLayer, AttentionOutput, SequenceRows, WritablePage};
pub use matmul::Product;
pub use rows::{HeadPlacement, HeadTransform, LogitsBend, RowNorm};
pub use step::RowStatus;

pub use crate::isa::{Isa, Kernels};

use crate::attention::{AttentionScratch, AttentionShape};
use crate::matrix::PANEL_ROWS;
use crate::pool::{Pool, PoolError};
use crate::rope::RopeTable;
use step::StepRows;

/// Sizes that a [`Cpu`] is made for: its buffers are allocated once.
#[derive(Clone, Debug)]
pub struct CpuLimits {
    /// Elements of the longest row that is normalised or quantised.
    pub cols_max: usize,
    /// Heads of every layer.
    pub attention: AttentionShape,
    /// Rotary angles of the model's rotations, of any number of positions: the device extends the tables as positions come.
    pub angles: Vec<RopeTable>,
    /// Positions of the longest sequence.
    pub context: usize,
}

/// Activation rows whose products with one panel are computed in one go.
const TILE_ROWS: usize = 64;

/// Threads, kernels, and each thread's buffers.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    kernels: Kernels,
    workers: Vec<Worker>,
    rows: StepRows,
    angles: Vec<RopeTable>,
    context: usize,
}

/// One thread's buffers.
#[derive(Debug)]
struct Worker {
    /// One row between two operations.
    row: Vec<f32>,
    /// Products of activation rows with one panel.
    tile: Box<[[f32; PANEL_ROWS]; TILE_ROWS]>,
    attention: AttentionScratch,
    /// Rows found not to be finite in the current operation.
    bad_rows: Vec<usize>,
}

impl Cpu {
    /// A device of `threads` threads, the caller's included.
    ///
    /// # Errors
    /// [`PoolError`] if the system refuses the threads.
    pub fn new(kernels: Kernels, threads: NonZeroUsize, limits: CpuLimits) -> Result<Self, PoolError> {
        let worker = || Worker {
            row: vec![0.0; limits.cols_max],
            tile: Box::new([[0.0; PANEL_ROWS]; TILE_ROWS]),
            attention: AttentionScratch::new(&limits.attention, attention::JOB_ROWS),
            bad_rows: Vec::with_capacity(attention::JOB_ROWS),
        };
        let workers = (0..threads.get().min(Pool::THREADS_MAX)).map(|_| worker()).collect();
        let CpuLimits { angles, context, .. } = limits;
        Ok(Self { pool: Pool::new(threads)?, kernels, workers, rows: StepRows::default(), angles, context })
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}
