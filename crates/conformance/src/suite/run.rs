//! Computing a prompt, and comparing what came of it: full logits of every position, and the bytes of every page.

use std::fmt::Display;

use muser_kv::{KvLayout, PAGE_ROWS, SequenceCache};
use muser_model::{Device, Executor, LogitsWanted, SequenceInput, StepError};

use crate::backend::{Backend, CaseError, Subject, new_cache};
use crate::tally::BitTally;

/// Both forms of the cache.
pub const LAYOUTS: [KvLayout; 2] = [KvLayout::Q8, KvLayout::F16];

/// A prompt that is being computed, or has been.
#[derive(Debug)]
pub struct Run {
    /// `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The cache after these rows.
    pub cache: SequenceCache,
}

/// Variant of a backend, and most rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Variant of the backend.
    pub variant: usize,
    /// Most rows of a step.
    pub chunk: usize,
}

impl Run {
    /// A run of nothing yet.
    ///
    /// # Errors
    /// If the model's heads make no page.
    pub fn begin<D: Device>(executor: &Executor<D>, layout: KvLayout) -> Result<Self, CaseError> {
        let model = executor.model();
        Ok(Self { logits: Vec::new(), vocab: model.config().vocab, cache: new_cache(model, layout)? })
    }

    /// Appends `tokens`, `chunk` at a time. Every step must give its rows in order, and the cache must then hold as many bytes
    /// as its specification predicts.
    ///
    /// # Errors
    /// [`CaseError`] if a step fails, or gives other rows than it should.
    pub fn extend<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        tokens: &[u32],
        chunk: usize,
    ) -> Result<(), CaseError> {
        for tokens in tokens.chunks(chunk) {
            step(executor, &mut [(self, tokens)])?;
        }
        Ok(())
    }

    /// Appends the first `accepted` of `tokens`, all of which are computed in one step: the others are never committed.
    ///
    /// # Errors
    /// As [`Self::extend`].
    pub fn extend_in_part<D: Device>(
        &mut self,
        executor: &mut Executor<D>,
        tokens: &[u32],
        accepted: usize,
    ) -> Result<(), CaseError> {
        let Self { logits, vocab, cache } = self;
        let mut batch = [SequenceInput::new(cache, tokens, LogitsWanted::All)];
        executor.forward_pending(&mut batch, &mut |_, z| logits.extend_from_slice(z))?;
        batch[0].outcome?;
        cache.commit(accepted).map_err(StepError::from)?;
        logits.truncate(cache.rows() * *vocab);
        Ok(())
    }

    /// Takes rows back, and their logits with them.
    ///
    /// # Errors
    /// If the cache refuses.
    pub fn truncate(&mut self, rows: usize) -> Result<(), CaseError> {
        self.cache.truncate(rows)?;
        self.logits.truncate(rows * self.vocab);
        Ok(())
    }

    /// Compares logits and pages with those that `base` has for the same positions. Of `self` the logits begin at row `first`.
    pub fn compare_from(&self, first: usize, base: &Self, what: &dyn Display, tally: &mut BitTally) {
        let want = base.logits.get(first * base.vocab..).unwrap_or_default();
        let want = &want[..self.logits.len().min(want.len())];
        tally.compare(&format_args!("{what}: logits from position {first}"), self.vocab, want, &self.logits);
        compare_pages(&self.cache, &base.cache, what, tally);
    }

    /// Compares logits and pages with those that `base` has for the same positions.
    pub fn compare(&self, base: &Self, what: &dyn Display, tally: &mut BitTally) {
        self.compare_from(0, base, what, tally);
    }
}

/// One step of several runs, each with its next tokens, of which there is at least one; all logits are kept.
///
/// # Errors
/// As [`Run::extend`].
pub fn step<D: Device>(executor: &mut Executor<D>, parts: &mut [(&mut Run, &[u32])]) -> Result<(), CaseError> {
    let mut due: Vec<usize> = parts.iter().map(|(run, _)| run.cache.rows()).collect();
    let mut logits: Vec<&mut Vec<f32>> = Vec::with_capacity(parts.len());
    let mut batch: Vec<SequenceInput<'_>> = Vec::with_capacity(parts.len());
    for (run, tokens) in parts {
        let Run { cache, logits: all, .. } = &mut **run;
        logits.push(all);
        batch.push(SequenceInput::new(cache, tokens, LogitsWanted::All));
    }
    let mut order = Ok(());
    executor.forward(&mut batch, &mut |row, z| {
        let (position, expected) = (row.position as usize, due[row.sequence]);
        if position != expected {
            order = Err(CaseError::OutOfOrder { position, expected });
        }
        due[row.sequence] += 1;
        logits[row.sequence].extend_from_slice(z);
    })?;
    order?;
    for (input, due) in batch.iter().zip(due) {
        input.outcome?;
        let rows = input.cache.rows();
        if due != rows {
            let begun = rows - input.tokens.len();
            return Err(CaseError::RowCount { got: due - begun, expected: input.tokens.len() });
        }
        let (got, predicted) = (input.cache.bytes(), input.cache.spec().predicted_bytes(rows));
        if got != predicted {
            return Err(CaseError::CacheBytes { got, predicted, rows });
        }
    }
    Ok(())
}

/// Compares the pages that both caches hold, and whose rows both have.
pub fn compare_pages(got: &SequenceCache, want: &SequenceCache, what: &dyn Display, tally: &mut BitTally) {
    let rows = got.rows().min(want.rows());
    // A page that is not full holds the same only after the same number of rows.
    let end = if got.rows() == want.rows() { rows.div_ceil(PAGE_ROWS) } else { rows / PAGE_ROWS };
    for layer in 0..got.spec().layers().len() {
        let (got, want) = (got.pages(layer), want.pages(layer));
        for page in got.first_page().max(want.first_page())..end {
            let (got, want) = (got.get(page).unwrap_or_default(), want.get(page).unwrap_or_default());
            tally.compare(&format_args!("{what}: layer {layer}, page {page}"), 1, want, got);
        }
    }
}

impl<B: Backend> Subject<'_, B> {
    /// Computes `tokens` on the baseline, all in one step.
    ///
    /// # Errors
    /// As [`Run::extend`].
    pub fn truth(&self, layout: KvLayout, tokens: &[u32]) -> Result<Run, CaseError> {
        let mut executor = self.base_executor(tokens.len())?;
        let mut run = Run::begin(&executor, layout)?;
        run.extend(&mut executor, tokens, tokens.len())?;
        Ok(run)
    }

    /// Computes `tokens` on an executor of their own.
    ///
    /// # Errors
    /// As [`Run::extend`].
    pub fn run(&self, layout: KvLayout, way: Way, tokens: &[u32]) -> Result<Run, CaseError> {
        let mut executor = self.executor(way.variant, way.chunk)?;
        let mut run = Run::begin(&executor, layout)?;
        run.extend(&mut executor, tokens, way.chunk)?;
        Ok(run)
    }
}

/// All that a cache holds, for telling whether something changed it.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    rows: usize,
    pending_rows: usize,
    layers: Vec<PagesOfLayer>,
}

/// The pages of one layer.
#[derive(Debug, PartialEq)]
struct PagesOfLayer {
    first_page: usize,
    pages: Vec<Vec<u8>>,
}

impl Snapshot {
    /// Copy of the rows and pages that `cache` holds now.
    pub fn of(cache: &SequenceCache) -> Self {
        let layers = (0..cache.spec().layers().len()).map(|layer| {
            let pages = cache.pages(layer);
            PagesOfLayer { first_page: pages.first_page(), pages: pages.iter().map(<[u8]>::to_vec).collect() }
        });
        Self { rows: cache.rows(), pending_rows: cache.pending_rows(), layers: layers.collect() }
    }
}
