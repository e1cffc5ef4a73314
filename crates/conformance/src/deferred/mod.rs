//! A CPU that executes as late as a GPU may: it records operations, and runs them where the graph waits.
//!
//! A graph that counts on an operation's effect before one of the waiting calls of [`muser_model::Device`] does not find
//! it. The device keeps copies of pages (`pages`), writes the rows of a step into them, and sends these rows to the caches
//! in [`muser_model::Device::store_pending`] alone. Its buffers (`buffer`) note every read and write: a result that is
//! overwritten before anything read it, and contents that no operation of the step specified, make the next waiting call
//! fail. The operations themselves are those of [`Cpu`], in the order in which they were recorded (`operations`).

mod buffer;
mod operations;
mod pages;

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::cpu::{Cpu, CpuLimits, Kernels};
use muser_kernels::embedding::EmbeddingTable;
use muser_kernels::matrix::Matrix;
use muser_kernels::pool::PoolError;
use muser_kv::PageLayout;
use muser_model::{
    DeviceError, Executor, Form, LoadError, Model, ModelSpec, Prepare, PrepareForCpu, PreparedWeights, RawMatrix,
    SequenceInput,
};
use muser_weights::gguf::ModelFiles;

use crate::backend::{Backend, CaseError, CpuVariant, count};
use buffer::{Content, Misuse};
use pages::{PageStore, Place};

pub use buffer::Buffer;
pub use pages::CopyCounts;

/// An operation that was recorded and not executed yet.
type Operation = Box<dyn FnOnce(&mut Machine) + Send>;

/// A CPU that executes late.
pub struct DeferredCpu {
    machine: Machine,
    recorded: Vec<Operation>,
    pages: PageStore,
    /// Number of the step, which marks the buffers that it writes.
    step: u64,
    site: u32,
    /// Layers of the step.
    layers: Vec<Arc<[SequencePages]>>,
    layout: Option<PageLayout>,
    /// Layers whose keys and values were stored in this step, in that order.
    stored: Vec<usize>,
    /// A step began and its rows did not all reach the caches: no copy can be trusted.
    is_open: bool,
    logits: Vec<f32>,
    misuse: Option<Misuse>,
}

/// State that operations read and write when they execute.
struct Machine {
    cpu: Cpu,
    /// Copies of pages, by slot.
    copies: Vec<Box<[u8]>>,
}

/// Pages of one sequence in one layer.
#[derive(Clone, Debug)]
struct SequencePages {
    /// First of its rows among the step's rows.
    first_row: usize,
    /// Its rows in the step.
    rows: usize,
    /// Position of the first row.
    position: usize,
    /// Absolute index of the first page.
    first_page: usize,
    /// Slots of the copies.
    slots: Vec<usize>,
}

impl DeferredCpu {
    /// A device for a model of `spec` with room for `copies_max` copies of pages, or as many as one step needs.
    ///
    /// # Errors
    /// [`PoolError`] if the system refuses the threads.
    pub fn new(spec: &ModelSpec, variant: CpuVariant, copies_max: usize) -> Result<Self, PoolError> {
        let config = spec.config();
        let limits = CpuLimits {
            cols_max: config.widest_input().max(config.vocab),
            attention: spec.attention_shape(),
            angles: spec.angles(),
            context: config.context,
        };
        Ok(Self {
            machine: Machine { cpu: Cpu::new(variant.kernels, variant.threads, limits)?, copies: Vec::new() },
            recorded: Vec::new(),
            pages: PageStore::new(copies_max),
            step: 0,
            site: 0,
            layers: Vec::new(),
            layout: None,
            stored: Vec::new(),
            is_open: false,
            logits: Vec::new(),
            misuse: None,
        })
    }

    /// Lookups of page copies, by result.
    pub fn copy_counts(&self) -> CopyCounts {
        self.pages.counts()
    }

    /// Records an operation, which will report failing rows at the present site.
    fn record(&mut self, operation: impl FnOnce(&mut Machine) + Send + 'static) {
        let site = self.site;
        self.recorded.push(Box::new(move |machine| {
            machine.cpu.set_site(site);
            operation(machine);
        }));
    }

    /// The content of a buffer that an operation uses, if the graph uses it rightly.
    fn used<T>(&mut self, content: Result<Content<T>, Misuse>) -> Option<Content<T>> {
        content.map_err(|misuse| *self.misuse.get_or_insert(misuse)).ok()
    }

    /// Executes everything that was recorded.
    fn wait(&mut self) -> Result<(), DeviceError> {
        if let Some(misuse) = self.misuse {
            return Err(DeviceError::Failed { device: "the deferred CPU", reason: misuse.to_string() });
        }
        self.recorded.drain(..).for_each(|operation| operation(&mut self.machine));
        Ok(())
    }

    /// Finds or makes a copy of every page of the step.
    fn find_pages(&mut self, batch: &[SequenceInput<'_>]) {
        self.pages.begin_step();
        self.layers.clear();
        let Some(spec) = batch.first().map(|input| Arc::clone(input.cache.spec())) else { return };
        self.layout = Some(spec.layout());
        for layer in 0..spec.layers().len() {
            let of_layer: Vec<_> = batch.iter().map(|input| self.find_pages_of(layer, input, spec.layout())).collect();
            self.layers.push(of_layer.into());
        }
    }

    fn find_pages_of(&mut self, layer: usize, input: &SequenceInput<'_>, layout: PageLayout) -> SequencePages {
        let (pages, position) = (input.cache.pages(layer), input.cache.rows());
        let mut slots = Vec::with_capacity(pages.as_slice().len());
        for (number, page) in (pages.first_page()..).zip(pages.as_slice()) {
            let slot = match self.pages.find(page) {
                Place::Found(slot) => slot,
                Place::New(slot) => {
                    let rows = position.saturating_sub(number * muser_kv::PAGE_ROWS).min(muser_kv::PAGE_ROWS);
                    let copy = pages::copy_of(layout, page.bytes(), rows);
                    self.record(move |machine| machine.put(slot, copy));
                    slot
                }
            };
            slots.push(slot);
        }
        let (first_row, rows, first_page) = (input.first_row(), input.tokens.len(), pages.first_page());
        SequencePages { first_row, rows, position, first_page, slots }
    }

    /// Sends the rows of the step to their pages, and nothing else of the copies.
    fn write_back(&mut self, batch: &mut [SequenceInput<'_>]) {
        let Some(layout) = self.layout else { return };
        for layer in std::mem::take(&mut self.stored) {
            for (input, sequence) in batch.iter_mut().zip(self.layers[layer].iter()) {
                for (page, bytes) in input.cache.pending_pages_mut(layer) {
                    let rows = sequence.rows_of(page);
                    pages::copy_rows(layout, &self.machine.copies[sequence.slot(page)], bytes, rows);
                }
                let pages = input.cache.pages(layer);
                for page in input.cache.pending_pages() {
                    self.pages.has_written(sequence.slot(page), &pages.as_slice()[page - pages.first_page()]);
                }
            }
        }
        self.is_open = false;
    }
}

impl Machine {
    fn put(&mut self, slot: usize, copy: Box<[u8]>) {
        if self.copies.len() <= slot {
            self.copies.resize(slot + 1, Box::default());
        }
        self.copies[slot] = copy;
    }
}

impl SequencePages {
    fn slot(&self, page: usize) -> usize {
        self.slots[page - self.first_page]
    }

    /// Rows of the step in page `page`, within the page.
    fn rows_of(&self, page: usize) -> std::ops::Range<usize> {
        let (first, end) = (page * muser_kv::PAGE_ROWS, (page + 1) * muser_kv::PAGE_ROWS);
        self.position.max(first) - first..(self.position + self.rows).min(end) - first
    }

    /// Pages that rows of the step lie in.
    fn written_pages(&self) -> std::ops::Range<usize> {
        self.position / muser_kv::PAGE_ROWS..(self.position + self.rows).div_ceil(muser_kv::PAGE_ROWS)
    }
}

impl std::fmt::Debug for DeferredCpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredCpu").field("step", &self.step).field("recorded", &self.recorded.len()).finish()
    }
}

impl Form for DeferredCpu {
    type Matrix = Matrix;
    type Vector = Arc<[f32]>;
}

/// Brings weights into the form of [`DeferredCpu`].
#[derive(Clone, Copy, Debug)]
pub struct PrepareForDeferredCpu {
    /// Threads that pack.
    pub threads: NonZeroUsize,
}

impl Prepare for PrepareForDeferredCpu {
    type Device = DeferredCpu;

    fn prepare(
        &mut self,
        table: &RawMatrix<'_>,
        matrices: &[RawMatrix<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<PreparedWeights<DeferredCpu>, LoadError> {
        let prepared: PreparedWeights<Cpu> =
            PrepareForCpu { threads: self.threads }.prepare(table, matrices, progress)?;
        let PreparedWeights { table, matrices, bytes } = prepared;
        Ok(PreparedWeights { table, matrices, bytes })
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<Arc<[f32]>, LoadError> {
        Ok(values.into())
    }
}

/// The embedding table: a share of the weights.
pub(crate) type Table = EmbeddingTable;

/// The deferred CPU as a backend.
#[derive(Clone, Debug)]
pub struct DeferredBackend {
    variants: Vec<DeferredVariant>,
}

/// Configuration of a deferred CPU.
#[derive(Clone, Copy, Debug)]
pub struct DeferredVariant {
    /// Its CPU.
    pub cpu: CpuVariant,
    /// Copies of pages beyond what a step needs that it keeps at most.
    pub copies_max: usize,
}

impl DeferredBackend {
    /// The variants given, of which there is at least one.
    pub fn of(variants: Vec<DeferredVariant>) -> Self {
        Self { variants }
    }

    /// Portable code that keeps every copy, and the fastest with two threads that keeps none beyond the step.
    pub fn both_ways_of_keeping_copies() -> Self {
        let fastest = CpuVariant { kernels: Kernels::detected(), threads: count(2) };
        Self::of(vec![
            DeferredVariant { cpu: CpuVariant::plain(), copies_max: usize::MAX },
            DeferredVariant { cpu: fastest, copies_max: 1 },
        ])
    }
}

impl Backend for DeferredBackend {
    type Device = DeferredCpu;

    fn load(&self, files: &ModelFiles) -> Result<Model<DeferredCpu>, LoadError> {
        Model::load_with(files, &mut PrepareForDeferredCpu { threads: self.variants[0].cpu.threads })
    }

    fn variants(&self) -> usize {
        self.variants.len()
    }

    fn describe(&self, variant: usize) -> String {
        let DeferredVariant { cpu, copies_max } = self.variants[variant];
        let kept =
            if copies_max == usize::MAX { "all copies kept".into() } else { format!("{copies_max} copies kept") };
        format!("deferred, {cpu}, {kept}")
    }

    fn executor(
        &self,
        model: &Arc<Model<DeferredCpu>>,
        variant: usize,
        rows_max: NonZeroUsize,
    ) -> Result<Executor<DeferredCpu>, CaseError> {
        let DeferredVariant { cpu, copies_max } = self.variants[variant];
        let device = DeferredCpu::new(model.spec(), cpu, copies_max)?;
        Ok(Executor::on(Arc::clone(model), device, rows_max)?)
    }
}
