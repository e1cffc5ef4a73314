//! A job under way.

use std::sync::Arc;

use muser_kv::{ExportError, KvIdentity, PAGE_ROWS, PageName, Provenance, SequenceCache};
use muser_model::ForwardError;

use super::audit::{Comparison, Verdict};
use super::event::{ChosenToken, Finish, OnEvent, Outcome, RequestEvent};
use super::export::{Export, ReadyPage};
use super::job::{Origin, RequestId};
use super::scope::Flow;
use crate::policy::{Work, WorkClass};
use crate::sampler::{LogprobsStage, LogprobsWanted, Sampler, SamplerWorkspace, TokenLogprobs};

/// All of a job but its keys and values: enough to compute those again.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    /// Tokens of the prompt that were reused when it started; `None` before that.
    pub(super) reused: Option<usize>,
    pub(super) preemptions: usize,
    pub(super) cancelled: bool,
    pub(super) flow: Flow,
    /// Origin of its keys and values when it starts, or starts again without its own.
    pub(super) origin: Origin,
    /// Rows it comes to have at most.
    rows_most: usize,
    /// Names of the full pages of `tokens`, as far as they were asked for.
    names: Vec<PageName>,
    pub(super) task: Task,
    /// Its keys and values so far, while it waits for its next turn.
    pub(super) parked: Option<Box<Parked>>,
    /// Provenance of the installed pages that it started from.
    pub(super) provenance: Provenance,
}

/// Goal of a job under way, with what is left of it.
#[derive(Debug)]
pub(super) enum Task {
    Generate(Generation),
    /// Pages to give out as they become complete.
    Export(Export),
    Audit(Comparison),
}

/// Sampler and limits of generated tokens.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) tokens_max: Option<usize>,
    pub(super) context: usize,
    pub(super) stop_tokens: Arc<[u32]>,
    pub(super) logprobs: Option<LogprobsWanted>,
    pub(super) sampler: Sampler,
}

/// Cache and marks of a sequence that gave up its place and keeps its pages.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) cache: SequenceCache,
    /// See [`Running::shared_pages`].
    pub(super) shared_pages: usize,
    /// See [`Running::landmark`].
    pub(super) landmark: Option<usize>,
}

/// A sequence that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) sequence: Sequence,
    pub(super) cache: SequenceCache,
    /// Index of its slot: the lowest that was free when it started.
    pub(super) slot: usize,
    /// Pages that it shared with other running sequences when it started.
    pub(super) shared_pages: usize,
    /// Rows at which a step must end, because the prefix up to there is worth keeping.
    pub(super) landmark: Option<usize>,
    /// Tokens that were generated when it got its place.
    pub(super) turn_began: usize,
    /// Its rows in the step under way, if it has any.
    pub(super) rows: Option<StepRows>,
    /// Token chosen in the step under way. It stands if the step is given up.
    pub(super) chosen: Option<Choice>,
}

/// A running sequence's rows in the step under way, and what came of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepRows {
    pub(super) class: WorkClass,
    pub(super) count: usize,
    pub(super) result: Result<(), ForwardError>,
}

/// A token chosen in the step under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) token: u32,
    pub(super) is_stop: bool,
}

/// A running sequence's part in the step under way, besides its cache.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) sequence: &'a Sequence,
    pub(super) rows: &'a mut StepRows,
    pub(super) chosen: &'a mut Option<Choice>,
}

impl Sequence {
    /// A job that has been checked, with its goal as a task and the rows that it comes to have at most.
    pub(super) fn new(id: RequestId, tokens: &[u32], origin: Origin, flow: Flow, task: Task, rows_most: usize) -> Self {
        Self {
            id,
            tokens: tokens.to_vec(),
            prompt: tokens.len(),
            reused: None,
            preemptions: 0,
            cancelled: false,
            flow,
            origin,
            rows_most,
            names: Vec::new(),
            task,
            parked: None,
            provenance: Provenance::default(),
        }
    }

    /// True for an audit.
    pub(super) fn is_audit(&self) -> bool {
        matches!(self.task, Task::Audit(_))
    }

    /// Has it compute everything here, and leave nothing to others: what it was to begin with, or has begun with, is not
    /// trusted.
    pub(super) fn distrust(&mut self) {
        (self.origin, self.parked, self.provenance) = (Origin::Empty, None, Provenance::default());
    }

    /// Tokens generated.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Makes room for all tokens it can come to have, so that no step allocates for them. Not before it runs: many may wait.
    pub(super) fn reserve(&mut self) {
        // The last token has no row.
        self.tokens.reserve_exact((self.rows_most + 1).saturating_sub(self.tokens.len()));
    }

    /// Rows it may come to hold soon: all tokens and a page more, so that it does not run out at once, but never more than
    /// it can have.
    pub(super) fn rows_soon(&self) -> usize {
        (self.tokens.len() + PAGE_ROWS).min(self.rows_most)
    }

    /// The names of the first `pages` full pages, which exist, within its realm; `model` is the model's identity. Without a
    /// realm no page is kept or found by name.
    pub(super) fn names(&mut self, model: &KvIdentity, pages: usize) -> &[PageName] {
        let identity = self.origin.realm().map_or(*model, |realm| realm.identity(model));
        let full = self.tokens.as_chunks::<PAGE_ROWS>().0;
        for tokens in &full[self.names.len().min(pages)..pages] {
            let name = PageName::of(&identity, self.names.last(), tokens);
            self.names.push(name);
        }
        &self.names[..pages]
    }

    /// True if another token is to be chosen once the keys and values of all tokens are computed.
    pub(super) fn wants_token(&self) -> bool {
        match &self.task {
            Task::Generate(generation) => generation.tokens_max.is_none_or(|more| self.generated() < more),
            Task::Export(_) | Task::Audit(_) => false,
        }
    }

    /// Adds a token, and says whether that ends the sequence.
    pub(super) fn push(&mut self, choice: Choice) -> Option<Finish> {
        self.tokens.push(choice.token);
        let is_full = matches!(&self.task, Task::Generate(generation) if self.tokens.len() >= generation.context);
        if choice.is_stop {
            Some(Finish::EndOfGeneration)
        } else if is_full {
            Some(Finish::ContextFull)
        } else if !self.wants_token() {
            Some(Finish::Limit)
        } else {
            None
        }
    }

    /// Final counts, with `finish` as the reason and `kv_bytes` held at the end.
    pub(super) fn outcome(&self, finish: Finish, kv_bytes: usize) -> Outcome {
        Outcome {
            generated: self.generated(),
            finish,
            kv_bytes,
            reused: self.reused.unwrap_or(0),
            preemptions: self.preemptions,
        }
    }

    /// The name of the first page, if names were asked for.
    pub(super) fn first_name(&self) -> Option<&PageName> {
        self.names.first()
    }
}

impl StepRows {
    pub(super) fn planned(Work { class, rows: count, .. }: Work) -> Self {
        Self { class, count, result: Ok(()) }
    }
}

impl Task {
    /// Pages to give out that are complete in `cache` and were not given out before.
    pub(super) fn ready_pages(&mut self, cache: &SequenceCache) -> Result<Vec<ReadyPage>, ExportError> {
        match self {
            Self::Export(export) => export.ready(cache),
            Self::Generate(_) | Self::Audit(_) => Ok(Vec::new()),
        }
    }

    /// End of a sequence that met a NaN or an infinity.
    pub(super) fn not_finite(&self, error: ForwardError) -> RequestEvent {
        match self {
            Self::Audit(_) => RequestEvent::Audited(Verdict::NotFinite(error)),
            Self::Generate(_) | Self::Export(_) => RequestEvent::Failed(error.into()),
        }
    }

    /// Result of an audit, once it is certain by the rows in `cache`.
    pub(super) fn verdict(&mut self, cache: &SequenceCache) -> Option<Verdict> {
        match self {
            Self::Audit(comparison) => comparison.compare(cache),
            Self::Generate(_) | Self::Export(_) => None,
        }
    }
}

impl Part<'_> {
    /// Chooses the token that follows, and tells of it. Logits that come again after a step that was given up are the same, and
    /// their token was told.
    pub(super) fn choose(&mut self, logits: &[f32], workspace: &mut SamplerWorkspace, on_event: &mut OnEvent<'_>) {
        let Sequence { id, ref tokens, ref task, .. } = *self.sequence;
        let (Task::Generate(generation), None) = (task, &self.chosen) else { return };
        let Generation { sampler, stop_tokens, logprobs, .. } = generation;
        if self.rows.class == WorkClass::Prefill {
            let total = tokens.len();
            on_event(id, RequestEvent::Progress { computed: total, total, pages: Vec::new() });
        }
        let token = sampler.choose(logits, tokens, workspace);
        let is_stop = stop_tokens.contains(&token);
        let logprobs = logprobs.map(|LogprobsWanted { count, stage }| match stage {
            LogprobsStage::Model => workspace.logprobs(sampler, logits, token, count),
            LogprobsStage::Draw => workspace.draw_logprobs(token, count),
        });
        let logprobs = logprobs.map(TokenLogprobs::from);
        on_event(id, RequestEvent::Token(ChosenToken { token, is_stop, logprobs }));
        *self.chosen = Some(Choice { token, is_stop });
    }
}

impl Running {
    /// Tokens whose keys and values are missing.
    pub(super) fn rows_missing(&self) -> usize {
        self.sequence.tokens.len() - self.cache.rows()
    }

    /// True if it decodes: only the row of the token that it generated last is missing.
    pub(super) fn decodes(&self) -> bool {
        self.sequence.generated() > 0 && self.rows_missing() == 1
    }

    /// Rows of prefill that it can use in one step.
    pub(super) fn prefill_rows(&self) -> usize {
        match self.landmark {
            Some(rows) if rows > self.cache.rows() => rows - self.cache.rows(),
            _ => self.rows_missing(),
        }
    }

    /// Pages to take for its rows in the step under way: a step adds pages and drops none before its end.
    pub(super) fn pages_to_take(&self) -> usize {
        let rows = self.rows.map_or(0, |rows| rows.count);
        let pages = |rows: usize| rows.div_ceil(PAGE_ROWS);
        let layers = self.cache.spec().layers().len();
        layers * (pages(self.cache.rows() + rows) - pages(self.cache.rows()))
    }
}
