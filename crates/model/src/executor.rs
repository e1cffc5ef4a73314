//! A model, a device and the buffers between them: runs steps.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use muser_kernels::cpu::{Cpu, CpuLimits, Kernels};
use muser_kernels::pool::PoolError;
use muser_kv::KvLayout;

use crate::device::{Device, DeviceDescription, DeviceError};
use crate::graph::{LogitsRow, Pass};
use crate::load::{Model, ModelSpec};
use crate::step::{SequenceInput, StepError};
use crate::workspace::Workspace;

/// Runs steps of a model on some device: [`Executor`] without its type.
pub trait Forward: Send + Debug {
    /// Configuration and geometry of the model.
    fn spec(&self) -> &Arc<ModelSpec>;

    /// Most rows of a step.
    fn rows_max(&self) -> usize;

    /// Bytes of the weights in the device's form, most of which are read for every step.
    fn weight_bytes(&self) -> usize;

    /// Name and size of the device.
    fn device(&self) -> DeviceDescription;

    /// As [`Executor::forward_pending`].
    ///
    /// # Errors
    /// As [`Executor::forward_pending`].
    fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError>;

    /// As [`Executor::forward`].
    ///
    /// # Errors
    /// As [`Executor::forward`].
    fn forward(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        self.forward_pending(batch, on_logits)?;
        commit_all(batch);
        Ok(())
    }
}

impl<D: Device> Forward for Executor<D> {
    fn spec(&self) -> &Arc<ModelSpec> {
        self.model.spec()
    }

    fn rows_max(&self) -> usize {
        Executor::rows_max(self)
    }

    fn weight_bytes(&self) -> usize {
        self.model.weight_bytes()
    }

    fn device(&self) -> DeviceDescription {
        self.device.describe()
    }

    fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        Executor::forward_pending(self, batch, on_logits)
    }
}

impl Forward for Box<dyn Forward> {
    fn spec(&self) -> &Arc<ModelSpec> {
        (**self).spec()
    }

    fn rows_max(&self) -> usize {
        (**self).rows_max()
    }

    fn weight_bytes(&self) -> usize {
        (**self).weight_bytes()
    }

    fn device(&self) -> DeviceDescription {
        (**self).device()
    }

    fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        (**self).forward_pending(batch, on_logits)
    }
}

/// Runs steps of a model.
#[derive(Debug)]
pub struct Executor<D: Device = Cpu> {
    model: Arc<Model<D>>,
    device: D,
    work: Workspace<D>,
}

impl Executor {
    /// An executor on the CPU, for steps of up to `rows_max` rows on `threads` threads.
    ///
    /// # Errors
    /// [`PoolError`] if the system refuses the threads.
    pub fn new(
        model: Arc<Model>,
        kernels: Kernels,
        threads: NonZeroUsize,
        rows_max: NonZeroUsize,
    ) -> Result<Self, PoolError> {
        let config = model.config();
        let limits = CpuLimits {
            cols_max: config.widest_input().max(config.vocab),
            attention: model.spec().attention_shape(),
            angles: model.spec().angles(),
            context: config.context,
        };
        let cpu = Cpu::new(kernels, threads, limits)?;
        Ok(Self::on(model, cpu, rows_max).expect("buffers of the host are allocated or the process ends"))
    }
}

impl<D: Device> Executor<D> {
    /// An executor for steps of up to `rows_max` rows on `device`, which the model's weights were prepared for.
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no room for the buffers.
    pub fn on(model: Arc<Model<D>>, mut device: D, rows_max: NonZeroUsize) -> Result<Self, DeviceError> {
        let work = Workspace::new(&model, &mut device, rows_max.get())?;
        Ok(Self { model, device, work })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model<D>> {
        &self.model
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Most rows of a step.
    pub fn rows_max(&self) -> usize {
        self.work.rows_max
    }

    /// Appends each sequence's tokens to its cache and hands every wanted row of logits, `[vocab]`, to `on_logits`.
    ///
    /// A sequence that meets a NaN or an infinity gets its `outcome` set, keeps its cache as it was, and gets no logits from
    /// there on (none at all if that was in a layer); the others are not concerned.
    ///
    /// # Errors
    /// [`StepError`] if the step was refused; then no cache has changed.
    pub fn forward(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        self.forward_capturing(batch, &[], &mut |_, _| {}, on_logits)
    }

    /// As [`Self::forward`], but the rows of a sequence without an error stay pending: the caller commits as many of them, from
    /// the first, as it accepts ([`SequenceCache::commit`](muser_kv::SequenceCache::commit)), before the cache's next step.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        self.compute(batch, &[], &mut |_, _| {}, on_logits)
    }

    /// As [`Self::forward`], and copies the residual stream after each layer of `captured` to `on_hidden(layer, rows)`,
    /// `[rows of the step, hidden]`. Drafting models read these.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_capturing(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        captured: &[usize],
        on_hidden: &mut dyn FnMut(usize, &[f32]),
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        self.compute(batch, captured, on_hidden, on_logits)?;
        commit_all(batch);
        Ok(())
    }

    /// Runs a step whose rows stay pending, or in no cache if it fails.
    fn compute(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        captured: &[usize],
        on_hidden: &mut dyn FnMut(usize, &[f32]),
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        let layers = self.model.config().layers.len();
        if let Some(&layer) = captured.iter().find(|layer| **layer >= layers) {
            return Err(StepError::NoSuchLayer { layer, layers });
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.begin(batch)?;
        let ran = self.run(batch, captured, on_hidden, on_logits);
        // Rows in which something was not finite are taken back, and all rows if the device failed.
        batch.iter_mut().filter(|input| ran.is_err() || input.outcome.is_err()).for_each(|input| input.cache.abandon());
        Ok(ran?)
    }

    /// Runs the whole graph over a step that has begun.
    fn run(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        captured: &[usize],
        on_hidden: &mut dyn FnMut(usize, &[f32]),
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), DeviceError> {
        self.device.begin_step(&self.work.positions, batch)?;
        let mut hidden = std::mem::take(&mut self.work.captured);
        let values = self.work.positions.len() * self.model.config().hidden;
        let mut pass = self.pass(batch);
        pass.embed();
        let mut done = 0;
        for layer in (0..pass.model.layers().len()).filter(|layer| captured.contains(layer)) {
            pass.layers(done..layer + 1);
            done = layer + 1;
            hidden.resize(values, 0.0);
            pass.device.read_rows(&pass.work.hidden, &mut hidden)?;
            on_hidden(layer, &hidden);
        }
        pass.layers(done..pass.model.layers().len());
        // While the device still computes: pages leave layer by layer.
        pass.device.store_pending(pass.batch)?;
        pass.head(on_logits)?;
        self.work.captured = hidden;
        Ok(())
    }

    /// Runs layers `range` alone on `hidden`, `[rows of the step, model width]`, in place. Keys and values of these layers
    /// are stored as pending rows: the caller runs the other layers too (each once, in order), then commits or abandons.
    ///
    /// The first range of a step begins it: `range.start == 0` opens the pending rows and resets each `outcome`. Later
    /// ranges leave an `outcome` that is an error as it is.
    ///
    /// # Errors
    /// [`StepError`] if the step was refused; then no cache has changed.
    pub fn run_layers(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        range: Range<usize>,
        hidden: &mut [f32],
    ) -> Result<(), StepError> {
        let (layers, width) = (self.model.config().layers.len(), self.model.config().hidden);
        if range.end > layers {
            return Err(StepError::NoSuchLayer { layer: range.end - 1, layers });
        }
        let want = batch.iter().map(|input| input.tokens.len()).sum::<usize>() * width;
        if hidden.len() != want {
            return Err(StepError::HiddenLength { got: hidden.len(), want });
        }
        if batch.is_empty() {
            return Ok(());
        }
        if range.start == 0 {
            self.begin(batch)?;
        } else {
            self.go_on(batch)?;
        }
        let ran = self.run_range(batch, range, hidden);
        if ran.is_err() {
            batch.iter_mut().for_each(|input| input.cache.abandon());
        }
        Ok(ran?)
    }

    fn run_range(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        range: Range<usize>,
        hidden: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.device.begin_step(&self.work.positions, batch)?;
        self.device.write_rows(hidden, &mut self.work.hidden)?;
        let mut pass = self.pass(batch);
        pass.layers(range);
        pass.note_failures()?;
        self.device.read_rows(&self.work.hidden, hidden)?;
        self.device.store_pending(batch)
    }

    /// The residual stream before the first layer, `[tokens, model width]`.
    ///
    /// # Errors
    /// [`StepError`] for a token outside the vocabulary or more than [`Self::rows_max`] tokens.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        self.check_tokens(tokens)?;
        if tokens.len() > self.rows_max() {
            return Err(StepError::TooManyRows { rows: tokens.len(), max: self.rows_max() });
        }
        crate::graph::embed(&self.model, &mut self.device, tokens, &mut self.work.hidden);
        let mut hidden = vec![0.0; tokens.len() * self.model.config().hidden];
        self.device.read_rows(&self.work.hidden, &mut hidden)?;
        Ok(hidden)
    }

    fn pass<'a, 'b>(&'a mut self, batch: &'a mut [SequenceInput<'b>]) -> Pass<'a, 'b, D> {
        Pass { model: &self.model, device: &mut self.device, work: &mut self.work, batch }
    }

    /// Checks everything, then opens the step's rows in every cache or in none.
    fn begin(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), StepError> {
        self.check(batch)?;
        for begun in 0..batch.len() {
            let input = &mut batch[begun];
            if let Err(refused) = input.cache.begin(input.tokens.len()) {
                batch[..begun].iter_mut().for_each(|input| input.cache.abandon());
                return Err(refused.into());
            }
        }
        batch.iter_mut().for_each(|input| input.outcome = Ok(()));
        self.start(batch);
        Ok(())
    }

    /// Checks that the step has begun, and sets up its rows again: other steps may have run since.
    fn go_on(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), StepError> {
        self.check(batch)?;
        for input in &*batch {
            let (pending, rows) = (input.cache.pending_rows(), input.tokens.len());
            if pending != rows {
                return Err(StepError::NotBegun { pending, rows });
            }
        }
        self.start(batch);
        Ok(())
    }

    fn start(&mut self, batch: &mut [SequenceInput<'_>]) {
        let layout = batch.first().map_or(KvLayout::Q8, |input| input.cache.spec().layout().layout());
        self.work.start(batch, layout);
    }

    fn check(&self, batch: &[SequenceInput<'_>]) -> Result<(), StepError> {
        let rows = batch.iter().map(|input| input.tokens.len()).sum();
        let (config, max) = (self.model.config(), self.rows_max());
        if rows > max {
            return Err(StepError::TooManyRows { rows, max });
        }
        let layout = batch.first().map(|input| input.cache.spec().layout());
        for (sequence, input) in batch.iter().enumerate() {
            if input.tokens.is_empty() {
                return Err(StepError::NoTokens { sequence });
            }
            self.check_tokens(input.tokens)?;
            let end = input.cache.rows() + input.tokens.len();
            if end > config.context {
                return Err(StepError::PastContext { position: config.context, context: config.context });
            }
            let spec = input.cache.spec();
            if Some(spec.layout()) != layout || !self.model.spec().accepts(spec) {
                return Err(StepError::ForeignCache);
            }
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), StepError> {
        let vocab = self.model.config().vocab;
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(StepError::UnknownToken { token, vocab }),
            None => Ok(()),
        }
    }
}

/// Makes the pending rows of each sequence without an error part of its cache.
fn commit_all(batch: &mut [SequenceInput<'_>]) {
    for input in batch.iter_mut().filter(|input| input.outcome.is_ok()) {
        input.cache.commit(input.tokens.len()).expect("exactly these rows are pending");
    }
}
