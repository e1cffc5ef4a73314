//! Models on NVIDIA GPUs.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_conformance::backend::{Comparison, CpuVariant};
use muser_conformance::cuda::{self, CudaBackend, CudaError, World};
use muser_conformance::suite::ways::Effort;
use muser_cuda::memory_plan::{MemoryPlan, NoRoom, PlannedModel};
use muser_cuda::self_test::SelfTestError;
use muser_cuda::{Context, CudaDevice, CudaLimits, DriverError, Gpu};
use muser_kernels::cpu::Kernels;
use muser_model::cost::GraphProducts;
use muser_model::{DeviceError, Executor, Forward, LoadError, Model, read_config};
use muser_weights::gguf::ModelFiles;

use crate::commands::conformance::{Report, ReportPart, compare_models};
use crate::failure::Failure;
use crate::model::{CHUNK_ROWS, threads};
use crate::output::tell;
use crate::settings::conformance::ConformanceArgs;

/// Rows of a prefill step: enough that what a step costs besides its rows hardly counts.
const GPU_CHUNK_ROWS: NonZeroUsize = NonZeroUsize::new(2048).expect("not zero");
/// Launches of each operation after the first, where conformance is checked.
const CONFORMANCE_REPEATS: usize = 20;
/// Tokens of the prompts of conformance: several pages; more than one segment would be slow for the CPU beside it.
const CONFORMANCE_TOKENS: usize = 600;
/// Number of the GPU that is used.
const ORDINAL: u32 = 0;
/// Of the memory beside weights and buffers, which pages may take, one part in this many stays free.
const FREE_PART: usize = 16;
/// Bytes of page copies without which no model is loaded, beside [`FREE_PART`]: one slab.
const PAGE_BYTES_MIN: usize = 64 << 20;

/// Reason why a GPU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver or no device, or it fails.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The device fails its self-test.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
    /// The model does not fit its memory.
    #[error(transparent)]
    NoRoom(NoRoom),
    /// The device fails while the model is loaded.
    #[error(transparent)]
    Device(DeviceError),
    /// It cannot be compared.
    #[error(transparent)]
    World(CudaError),
}

/// True if the machine has a GPU that its driver lets us use.
pub fn is_there() -> bool {
    Context::open(ORDINAL).is_ok()
}

/// Loads the model into an executor on the GPU, for steps of up to `rows_max` rows, or whole chunks of prefill. The host
/// computes rotary angles on `threads` threads.
pub fn executor(
    files: &ModelFiles,
    rows_max: NonZeroUsize,
    threads: NonZeroUsize,
) -> Result<Box<dyn Forward>, Failure> {
    let rows_max = if rows_max == CHUNK_ROWS { GPU_CHUNK_ROWS } else { rows_max };
    let gpu = Gpu::open(ORDINAL)?;
    let free_before = gpu.context().memory()?.free;
    let plan = plan(files, rows_max, &gpu)?;
    let pages_min = PAGE_BYTES_MIN.max(free_before / FREE_PART);
    let plan = plan.map(|plan| plan.fit(free_before, pages_min)).transpose();
    let plan = plan.map_err(GpuError::NoRoom)?;
    if let Some(plan) = &plan {
        let pages = plan.page_bytes(free_before, FREE_PART);
        let (pages, free) = (gigabytes(pages), gigabytes(free_before));
        tell(format_args!("muser: GPU memory, planned: {plan}, page copies up to {pages:.2} GB, of {free:.2} GB free"));
    }
    // Where not all layouts fit, those of the matrices that come first are made, so that pages keep their room.
    let mut preparer = gpu.preparer()?.with_layout_bytes(plan.map_or(usize::MAX, |plan| plan.layouts));
    let model = Model::<CudaDevice>::load_with(files, &mut preparer).map_err(|reason| match reason {
        LoadError::Device(reason @ DeviceError::OutOfMemory { .. }) => Failure::Device(GpuError::Device(reason)),
        other => Failure::Load(other),
    })?;
    let planned = plan.map_or(0, |plan| plan.workspace + plan.first_step);
    let left = gpu.context().memory()?.free.saturating_sub(planned);
    let limits = CudaLimits::new(rows_max.get(), left - left / FREE_PART, threads);
    let device = CudaDevice::new(&gpu, model.spec(), limits)?;
    let executor = Executor::on(Arc::new(model), device, rows_max).map_err(GpuError::Device)?;
    let measured = free_before.saturating_sub(gpu.context().memory()?.free);
    if let Some(plan) = plan {
        tell_measured(&plan, measured);
    }
    Ok(Box::new(executor))
}

/// Memory that the model will take, from the header of its file. Without a matrix that the graph needs there is no plan: loading
/// says which one is missing.
fn plan(files: &ModelFiles, rows_max: NonZeroUsize, gpu: &Gpu) -> Result<Option<MemoryPlan>, Failure> {
    let config = read_config(&files.metadata()).map_err(LoadError::from)?;
    let Some(products) = GraphProducts::new(&config, &|name| Some(files.weight(name).ok()?.ty)) else {
        return Ok(None);
    };
    let vectors =
        files.tensors().filter(|tensor| tensor.shape().len() == 1).map(|tensor| tensor.elements()).sum::<u64>();
    let vector_elements = usize::try_from(vectors).unwrap_or(usize::MAX);
    let model = PlannedModel { config: &config, products: &products, vector_elements, rows_max: rows_max.get() };
    Ok(Some(MemoryPlan::new(model, gpu.context().capability().is_hopper())))
}

/// Says what was taken, and whether that is what was planned.
fn tell_measured(plan: &MemoryPlan, measured: usize) {
    let (planned, taken) = (gigabytes(plan.loaded()), gigabytes(measured));
    tell(format_args!(
        "muser: GPU memory, measured: {taken:.2} GB for weights and workspace, {planned:.2} GB were planned"
    ));
    if !plan.agrees_with(measured) {
        tell(
            "muser: warning: the plan of GPU memory is wrong by more than 1 % and 64 MiB; other programs may use the GPU, or layouts for fast products found no room",
        );
    }
}

fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

/// Compares every operation with the CPU's, then models.
pub fn conform(args: &ConformanceArgs, named: Vec<(String, ModelFiles)>, report: &mut Report) -> Result<(), Failure> {
    let repeats =
        args.repeats.map_or(CONFORMANCE_REPEATS, |repeats| usize::try_from(repeats.get()).unwrap_or(usize::MAX));
    let mut world = World::open(ORDINAL, repeats).map_err(GpuError::World)?;
    let gpu = Gpu::open(ORDINAL)?;
    report.begin("cuda", vec![gpu.context().name().to_owned()]);
    for family in cuda::FAMILIES {
        report.measure(ReportPart::Operations, family.name, |tally| {
            let ran = (family.run)(&mut world);
            tally.add(world.take_tally());
            ran
        })?;
    }
    drop(world);
    let baseline = CpuVariant { kernels: Kernels::detected(), threads: threads(args.threads) };
    let effort = Effort { tokens: CONFORMANCE_TOKENS, rounds: args.rounds.map_or(2, Into::into) };
    compare_models(&Comparison { backend: CudaBackend::new(gpu), baseline }, effort, named, report)
}

/// Name and memory of the GPU, which has passed its self-test, or the reason why none can be used.
pub fn describe() -> String {
    let found = Gpu::open(ORDINAL).and_then(|gpu| {
        let (name, memory) = (gpu.context().name(), gpu.context().memory()?);
        let (total, free) = (gigabytes(memory.total), gigabytes(memory.free));
        Ok(format!("{name}, {total:.1} GB, {free:.1} GB free, self-test passed"))
    });
    found.unwrap_or_else(|reason| reason.to_string())
}

impl From<DriverError> for Failure {
    fn from(reason: DriverError) -> Self {
        Self::Device(reason.into())
    }
}

impl From<SelfTestError> for Failure {
    fn from(reason: SelfTestError) -> Self {
        Self::Device(reason.into())
    }
}
