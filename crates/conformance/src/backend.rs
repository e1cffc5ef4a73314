//! Backends: devices that run models, and the CPU run that each is compared with.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::cpu::{Cpu, Kernels};
use muser_kernels::pool::PoolError;
use muser_kv::{ExportError, InstallError, KvLayout, PagePool, RewindError, SequenceCache};
use muser_model::{
    CacheError, Device, DeviceError, Executor, ForwardError, LoadError, Model, ModelConfig, PrepareForCpu, StepError,
};
use muser_weights::gguf::{ModelFiles, ModelOpenError};

/// A kind of device that runs models. Its variants differ in instruction set, threads or memory, never in a result.
pub trait Backend: Debug {
    /// The device.
    type Device: Device;

    /// Brings a model to the device.
    ///
    /// # Errors
    /// [`LoadError`] names what is wrong with the model, or the memory that is missing.
    fn load(&self, files: &ModelFiles) -> Result<Model<Self::Device>, LoadError>;

    /// Number of variants, at least one.
    fn variants(&self) -> usize;

    /// Description of a variant, for messages.
    fn describe(&self, variant: usize) -> String;

    /// An executor for steps of up to `rows_max` rows.
    ///
    /// # Errors
    /// [`CaseError`] if the device has no room or the system refuses threads.
    fn executor(
        &self,
        model: &Arc<Model<Self::Device>>,
        variant: usize,
        rows_max: NonZeroUsize,
    ) -> Result<Executor<Self::Device>, CaseError>;
}

/// A case that could not be computed: a fault of the device or of the suite, which counts as a difference.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A model file was refused.
    #[error(transparent)]
    Open(#[from] ModelOpenError),
    /// A model was refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A step was refused.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A step met a value that is not finite.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No cache can be made.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A rewind was refused.
    #[error(transparent)]
    Rewind(#[from] RewindError),
    /// A page could not be taken out of a cache.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A page could not be put into a cache.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The system refused threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Logits came for another row than the next one.
    #[error("logits of position {position} came where those of position {expected} were due")]
    OutOfOrder {
        /// Position of the row that came.
        position: usize,
        /// Position that was due.
        expected: usize,
    },
    /// A step gave another number of rows of logits than it was asked for.
    #[error("{got} rows of logits came, {expected} were asked for")]
    RowCount {
        /// Rows that came.
        got: usize,
        /// Rows asked for.
        expected: usize,
    },
    /// A cache takes other memory than its specification predicts.
    #[error("the cache has {got} bytes after {rows} rows, {predicted} were predicted")]
    CacheBytes {
        /// Bytes of the cache.
        got: usize,
        /// Bytes predicted.
        predicted: usize,
        /// Committed rows.
        rows: usize,
    },
}

/// The CPU, on several instruction sets and numbers of threads.
#[derive(Clone, Debug)]
pub struct CpuBackend {
    variants: Vec<CpuVariant>,
}

/// Kernels and threads of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct CpuVariant {
    /// Implementation of the operations.
    pub kernels: Kernels,
    /// Threads.
    pub threads: NonZeroUsize,
}

impl CpuVariant {
    /// Portable code on one thread.
    pub fn plain() -> Self {
        Self { kernels: Kernels::scalar(), threads: NonZeroUsize::MIN }
    }

    /// An executor of steps of up to `rows_max` rows.
    ///
    /// # Errors
    /// If the system refuses the threads.
    pub fn executor(&self, model: &Arc<Model>, rows_max: NonZeroUsize) -> Result<Executor, PoolError> {
        Executor::new(Arc::clone(model), self.kernels, self.threads, rows_max)
    }
}

impl std::fmt::Display for CpuVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} kernels, {} threads", self.kernels.name(), self.threads)
    }
}

impl CpuBackend {
    /// Every implementation that this machine can run, with one thread, two or three by turns; the fastest comes last.
    pub fn each_implementation() -> Self {
        let implementations = Kernels::available().into_iter().zip((1..=3).cycle());
        Self::of(implementations.map(|(kernels, threads)| CpuVariant { kernels, threads: count(threads) }).collect())
    }

    /// Every implementation with every number of threads from one to three.
    pub fn every_combination() -> Self {
        let combine = |kernels| (1..=3).map(move |threads| CpuVariant { kernels, threads: count(threads) });
        Self::of(Kernels::available().into_iter().flat_map(combine).collect())
    }

    fn of(variants: Vec<CpuVariant>) -> Self {
        Self { variants }
    }
}

impl Backend for CpuBackend {
    type Device = Cpu;

    fn load(&self, files: &ModelFiles) -> Result<Model, LoadError> {
        Model::load_with(files, &mut PrepareForCpu { threads: NonZeroUsize::MIN })
    }

    fn variants(&self) -> usize {
        self.variants.len()
    }

    fn describe(&self, variant: usize) -> String {
        self.variants[variant].to_string()
    }

    fn executor(&self, model: &Arc<Model>, variant: usize, rows_max: NonZeroUsize) -> Result<Executor, CaseError> {
        Ok(self.variants[variant].executor(model, rows_max)?)
    }
}

/// `threads`, which is not zero.
pub(crate) fn count(threads: usize) -> NonZeroUsize {
    NonZeroUsize::new(threads).expect("at least one")
}

/// A backend, and the CPU that it is compared with.
#[derive(Clone, Debug)]
pub struct Comparison<B> {
    /// Backend under test.
    pub backend: B,
    /// CPU that computes the expected results.
    pub baseline: CpuVariant,
}

impl<B: Backend> Comparison<B> {
    /// A comparison with portable code on one thread.
    pub fn with_plain(backend: B) -> Self {
        Self { backend, baseline: CpuVariant::plain() }
    }

    /// Brings a model to both sides.
    ///
    /// # Errors
    /// [`LoadError`] of either side.
    pub fn load(&self, name: impl Into<String>, files: &ModelFiles) -> Result<Subject<'_, B>, LoadError> {
        let base = Arc::new(Model::load_with(files, &mut PrepareForCpu { threads: self.baseline.threads })?);
        let model = Arc::new(self.backend.load(files)?);
        Ok(Subject { name: name.into(), backend: &self.backend, model, base, baseline: self.baseline })
    }

    /// As [`Self::load`], out of the bytes of a file.
    ///
    /// # Errors
    /// [`CaseError`] if the file or the model is refused.
    pub fn load_bytes(&self, name: impl Into<String>, file: Vec<u8>) -> Result<Subject<'_, B>, CaseError> {
        Ok(self.load(name, &ModelFiles::from_bytes(file)?)?)
    }
}

/// One model on both sides of a comparison.
#[derive(Debug)]
pub struct Subject<'b, B: Backend> {
    /// For messages.
    pub name: String,
    backend: &'b B,
    model: Arc<Model<B::Device>>,
    base: Arc<Model>,
    baseline: CpuVariant,
}

impl<B: Backend> Subject<'_, B> {
    /// Configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        self.base.config()
    }

    /// Variants of the backend.
    pub fn variants(&self) -> std::ops::Range<usize> {
        0..self.backend.variants()
    }

    /// The last variant, the fastest.
    pub fn fastest(&self) -> usize {
        self.backend.variants() - 1
    }

    /// The model and a variant, for messages.
    pub fn describe(&self, variant: usize) -> String {
        format!("{}, {}", self.name, self.backend.describe(variant))
    }

    /// An executor of the backend.
    ///
    /// # Errors
    /// As [`Backend::executor`].
    pub fn executor(&self, variant: usize, rows_max: usize) -> Result<Executor<B::Device>, CaseError> {
        self.backend.executor(&self.model, variant, count(rows_max))
    }

    /// An executor of the baseline.
    ///
    /// # Errors
    /// If the system refuses the threads.
    pub fn base_executor(&self, rows_max: usize) -> Result<Executor, CaseError> {
        Ok(self.baseline.executor(&self.base, count(rows_max))?)
    }

    /// An empty cache with a pool of its own.
    ///
    /// # Errors
    /// If the model's heads make no page.
    pub fn new_cache(&self, layout: KvLayout) -> Result<SequenceCache, CaseError> {
        new_cache(&self.base, layout)
    }
}

/// An empty cache for the model's whole context, with a pool of its own.
///
/// # Errors
/// If the model's heads make no page.
pub fn new_cache<D: Device>(model: &Model<D>, layout: KvLayout) -> Result<SequenceCache, CaseError> {
    let spec = model.cache_spec(layout, model.config().context)?;
    Ok(SequenceCache::new(spec, PagePool::new(usize::MAX)))
}
