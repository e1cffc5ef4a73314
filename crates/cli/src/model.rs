//! Opening a model and the machine that runs it.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use muser_engine::ChunkRows;
use muser_kernels::cpu::Kernels;
use muser_kernels::pool::Pool;
use muser_model::{Executor, Forward, Model};
use muser_weights::gguf::ModelFiles;

use crate::failure::Failure;
use crate::gpu;
use crate::hub::model_from_hub;
use crate::output::tell;
use crate::settings::{DeviceChoice, HubArgs, MachineArgs};
use crate::usage::UsageError;

/// The model that ships with muser, so that the first command needs no download.
pub static SHIPPED: &[u8] = include_bytes!("../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// Rows of a prefill step on the CPU; a GPU takes more.
pub const CHUNK_ROWS: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");

/// Opens the model at `path`, or that of the hub, or the shipped one.
pub fn open(path: Option<&Path>, hub: &HubArgs) -> Result<Arc<ModelFiles>, Failure> {
    let pulled = hub.hf_repo.as_ref().map(|reference| model_from_hub(reference, hub)).transpose()?;
    Ok(Arc::new(match path.or(pulled.as_deref()) {
        Some(path) => ModelFiles::open(path)?,
        None => ModelFiles::from_bytes(SHIPPED.to_vec())?,
    }))
}

/// Loads the model into an executor for steps of up to `rows_max` rows. Nothing is read from `files` afterwards.
pub fn executor(
    files: Arc<ModelFiles>,
    machine: &MachineArgs,
    rows_max: NonZeroUsize,
) -> Result<Box<dyn Forward>, Failure> {
    match machine.device {
        DeviceChoice::Cuda if machine.kernels.is_some() => Err(UsageError::KernelsOfGpu.into()),
        DeviceChoice::Cuda => gpu::executor(&files, rows_max, threads(machine.threads)),
        DeviceChoice::Auto if machine.kernels.is_none() && gpu::is_there() => {
            match gpu::executor(&files, rows_max, threads(machine.threads)) {
                Err(Failure::Device(reason)) => {
                    tell(format_args!("muser: running on the CPU: {reason}"));
                    on_cpu(files, machine, rows_max)
                }
                other => other,
            }
        }
        DeviceChoice::Auto | DeviceChoice::Cpu => on_cpu(files, machine, rows_max),
    }
}

/// Rows of prefill in a step: alone, as many as the executor was made for.
pub fn chunk(executor: &dyn Forward) -> ChunkRows {
    let alone = NonZeroUsize::new(executor.rows_max()).unwrap_or(CHUNK_ROWS);
    ChunkRows { alone, ..ChunkRows::DEFAULT }
}

fn on_cpu(files: Arc<ModelFiles>, machine: &MachineArgs, rows_max: NonZeroUsize) -> Result<Box<dyn Forward>, Failure> {
    let (kernels, threads) = (machine.kernels.unwrap_or_else(Kernels::detected), threads(machine.threads));
    let model = Arc::new(Model::load(files, threads)?);
    Ok(Box::new(Executor::new(model, kernels, threads, rows_max)?))
}

/// The number asked for, or one per core as far as a pool can have them.
pub fn threads(asked: Option<NonZeroUsize>) -> NonZeroUsize {
    let per_core = || available_parallelism().map_or(1, NonZeroUsize::get).clamp(1, Pool::THREADS_MAX);
    asked.or_else(|| NonZeroUsize::new(per_core())).unwrap_or(NonZeroUsize::MIN)
}
