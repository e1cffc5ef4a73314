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
use muser_model::{DeviceError, Executor, LoadError, Model};
use muser_weights::gguf::ModelFiles;

use crate::backend::{Backend, CaseError};

pub use world::{CudaError, World};

/// A family of cases.
#[derive(Clone, Copy, Debug)]
pub struct CudaFamily {
    /// What is computed.
    pub name: &'static str,
    /// Goes through the family's cases.
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

/// Device memory for pages: one slab, so that copies are dropped and made again.
const PAGE_BYTES_MAX: usize = 1;

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

    fn variants(&self) -> usize {
        1
    }

    fn describe(&self, _variant: usize) -> String {
        self.gpu.context().name().to_owned()
    }

    fn executor(
        &self,
        model: &Arc<Model<CudaDevice>>,
        _variant: usize,
        rows_max: NonZeroUsize,
    ) -> Result<Executor<CudaDevice>, CaseError> {
        let limits =
            CudaLimits { rows_max: rows_max.get(), page_bytes_max: PAGE_BYTES_MAX, host_threads: HOST_THREADS };
        let device = CudaDevice::new(&self.gpu, model.spec(), limits).map_err(failed)?;
        Ok(Executor::on(Arc::clone(model), device, rows_max)?)
    }
}
