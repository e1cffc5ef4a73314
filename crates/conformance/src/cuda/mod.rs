//! Operations and models of an NVIDIA GPU.
//!
//! Every operation is compared with the CPU's, on random and adversarial operands, and repeated with other kernels between
//! the launches; outputs and workspace are poisoned before each (`world`).

mod attend;
mod heads;
mod matmul;
mod quantise;
mod rows;
mod world;

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_cuda::{CudaDevice, CudaLimits, DriverError, Gpu};
use muser_kernels::attention::KvLayout;
use muser_model::{DeviceError, Executor, LoadError, Model};
use muser_weights::gguf::ModelFiles;

use crate::backend::{Backend, CaseError};

pub use world::{CudaError, World};

/// A family of cases.
#[derive(Clone, Copy, Debug)]
pub struct CudaFamily {
    /// Operations of the family, for reports.
    pub name: &'static str,
    /// Runs the family's cases.
    pub run: fn(&mut World) -> Result<(), CudaError>,
}

/// Every family.
pub const FAMILIES: &[CudaFamily] = &[
    CudaFamily { name: "quantise", run: quantise::run },
    CudaFamily { name: "matmul", run: matmul::run },
    CudaFamily { name: "rows", run: rows::run },
    CudaFamily { name: "heads", run: heads::run },
    CudaFamily { name: "attend", run: attend::run },
];

/// Sequences of the suite's largest steps.
const SEQUENCES_MAX: usize = 3;

/// Threads of the host that compute rotary angles.
const HOST_THREADS: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");

/// A GPU as a backend.
#[derive(Clone, Debug)]
pub struct CudaBackend {
    gpu: Gpu,
}

impl CudaBackend {
    /// The GPU, which has passed its self-test.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu }
    }
}

/// The graph's view of a failure of the driver.
fn failed(error: DriverError) -> DeviceError {
    DeviceError::Failed { device: "the GPU", reason: error.to_string() }
}

impl Backend for CudaBackend {
    type Device = CudaDevice;

    fn load(&self, files: &ModelFiles) -> Result<Model<CudaDevice>, LoadError> {
        let mut preparer = self.gpu.preparer().map_err(failed)?;
        Model::load_with(files, &mut preparer)
    }

    /// The GPU with plenty of room for copies of pages, and with room for those of one step, so that copies make way.
    fn variants(&self) -> usize {
        2
    }

    fn describe(&self, variant: usize) -> String {
        let room = if variant == 0 { "plenty of room" } else { "room for the pages of a step" };
        format!("{}, {room}", self.gpu.context().name())
    }

    fn executor(
        &self,
        model: &Arc<Model<CudaDevice>>,
        variant: usize,
        rows_max: NonZeroUsize,
    ) -> Result<Executor<CudaDevice>, CaseError> {
        let (spec, rows_max_of_step) = (model.spec(), rows_max.get());
        let context = spec.config().context;
        let sequence = spec.cache_spec(KvLayout::F16, context)?.peak_bytes(context, rows_max_of_step);
        let mut limits = CudaLimits::new(rows_max_of_step, SEQUENCES_MAX * sequence, HOST_THREADS);
        if variant == 1 {
            limits.page_slab_bytes = 1; // One page each.
        }
        let device = CudaDevice::new(&self.gpu, model.spec(), limits).map_err(failed)?;
        Ok(Executor::on(Arc::clone(model), device, rows_max)?)
    }
}
