//! A model, a device and the buffers between them: what runs steps.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use muser_kernels::cpu::{Cpu, CpuLimits, Kernels};
use muser_kernels::pool::PoolError;
use muser_kv::KvLayout;

use crate::graph::{LogitsRow, Pass};
use crate::load::Model;
use crate::step::{SequenceInput, StepError};
use crate::workspace::Workspace;

/// Runs steps of a model.
#[derive(Debug)]
pub struct Executor {
    model: Arc<Model>,
    cpu: Cpu,
    work: Workspace,
}

impl Executor {
    /// An executor for steps of up to `rows_max` rows on `threads` threads.
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
        let limits =
            CpuLimits { cols_max: config.widest_input().max(config.vocab), attention: model.attention_shape() };
        let cpu = Cpu::new(kernels, threads, limits)?;
        let work = Workspace::new(&model, rows_max.get());
        Ok(Self { model, cpu, work })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
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
        let layers = self.model.config().layers.len();
        if let Some(&layer) = captured.iter().find(|layer| **layer >= layers) {
            return Err(StepError::NoSuchLayer { layer, layers });
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.begin(batch)?;
        let mut pass = self.pass(batch);
        pass.embed();
        for layer in 0..layers {
            pass.layers(layer..layer + 1);
            if captured.contains(&layer) {
                on_hidden(layer, pass.hidden());
            }
        }
        pass.head(on_logits);
        finish(batch);
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
        self.work.hidden[..want].copy_from_slice(hidden);
        self.pass(batch).layers(range);
        hidden.copy_from_slice(&self.work.hidden[..want]);
        Ok(())
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
        let width = self.model.config().hidden;
        let (cpu, work) = (&mut self.cpu, &mut self.work);
        crate::graph::embed(&self.model, cpu, tokens.iter().copied(), &mut work.hidden);
        Ok(work.hidden[..tokens.len() * width].to_vec())
    }

    fn pass<'a, 'b>(&'a mut self, batch: &'a mut [SequenceInput<'b>]) -> Pass<'a, 'b> {
        Pass { model: &self.model, cpu: &mut self.cpu, work: &mut self.work, batch }
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
    fn go_on(&mut self, batch: &[SequenceInput<'_>]) -> Result<(), StepError> {
        self.check(batch)?;
        for input in batch {
            let (pending, rows) = (input.cache.pending_rows(), input.tokens.len());
            if pending != rows {
                return Err(StepError::NotBegun { pending, rows });
            }
        }
        self.start(batch);
        Ok(())
    }

    fn start(&mut self, batch: &[SequenceInput<'_>]) {
        let layout = batch.first().map_or(KvLayout::Q8, |input| input.cache.spec().layout().layout());
        self.work.start(batch, layout);
        self.work.extend_angles(self.model.config().context);
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
            if Some(spec.layout()) != layout || !self.model.accepts(spec) {
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

/// Makes the rows of each sequence part of its cache, or takes them back if something in them was not finite.
fn finish(batch: &mut [SequenceInput<'_>]) {
    for input in batch {
        match input.outcome {
            Ok(()) => input.cache.commit(input.tokens.len()).expect("exactly these rows are pending"),
            Err(_) => input.cache.abandon(),
        }
    }
}
