//! The engine: many sequences, one forward pass a step, and no sequence's result changed by another.
//!
//! The caller drives it. [`Engine::submit`] queues a job, [`Engine::step`] runs one forward pass over rows of all
//! running sequences and tells what happened; there is no thread, no clock and no lock here. What makes sharing sound is the
//! arithmetic below: a row's result depends on its own sequence alone, so scheduling decides when a row is computed, never
//! what it is.
//!
//! **Memory.** All pages come from one budget. A request that could exceed it on its own is refused when it is submitted. A
//! request starts when its tokens so far, and a page more per layer, fit beside what running sequences may need; what it
//! will generate is not reserved. If running sequences then outgrow the budget, kept prefixes are given up first, the least
//! recently used first, then the pages of those that wait for their turn; then the sequence that started last gives up its
//! pages and waits at the head of its queue, with its tokens, to be computed again. The one that started first is never
//! interrupted, and alone it always fits: so every request ends, with the tokens it would have had on an empty machine.
//!
//! Pages with a holder outside the engine (an installation that shares kept ones, an audit's base, exported pages on their
//! way) may outlive what they were made for. They count as in use; but the oldest sequence alone goes on even if it and
//! they together exceed the budget, by no more than what is shared.
//!
//! **The device.** A device may keep copies of the pages that a step sees, and have less memory than the host. Where it has no
//! room for a step, the step is run without the sequence that started last; that one gives up its place, keeps its pages and
//! waits until one that runs has ended. A sequence whose step alone does not fit fails, and no other. If the device itself
//! fails, all requests do.
//!
//! - `job` is the jobs as they are submitted, `scope` their clients and realms, `event` and `error` what comes of them.
//! - `sequence` is one job under way.
//! - `install` is keys and values that come from elsewhere, `export` those that go there.
//! - `provenance` asks if they may be used, and takes back those of a machine that sent wrong ones.
//! - `audit` computes again what came from elsewhere, from a `beginning` on, and compares.
//! - `admission` is before the pass: sequences to start, rows of the step, room for their pages.
//! - `turns` is fairness between clients: the next one to start, and the sequence that it displaces.
//! - `step` is the pass and its results; `device` handles a device that has no room for it, or fails.

mod admission;
mod audit;
mod beginning;
mod device;
mod error;
mod event;
mod export;
mod install;
mod job;
mod provenance;
mod scope;
mod sequence;
mod step;
mod turns;

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kv::{CacheSpec, KvIdentity, KvLayout, PagePool, PoolUse, TakenBack};
use muser_model::{Forward, SequenceInput};

use crate::policy::{ChunkRows, StepPlan};
use crate::prefix::PrefixIndex;
use crate::sampler::{Sampler, SamplerWorkspace, SamplingError};
pub use audit::{Audit, Mismatch, NotAuditable, Verdict};
pub use beginning::Beginning;
pub use error::{EngineError, RequestError, StepRefused, SubmitError};
pub use event::{ChosenToken, Finish, OnEvent, Outcome, RequestEvent};
use export::Export;
pub use export::{PageBytes, ReadyPage};
pub use install::{Installation, Installed, NotInstallable};
use job::Goal;
pub use job::{Generate, Job, RequestId};
pub use scope::{Flow, PrefixReuse};
use sequence::{Generation, Part, Running, Sequence, Task};
pub use step::StepReport;
use turns::Rotation;

/// Capacity, identity and scheduling settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Positions of a sequence at most; no more than the model has.
    pub context: usize,
    /// Storage format of keys and values in caches.
    pub kv: KvLayout,
    /// Identity that page names start from (`muser_model::Identity::kv`).
    pub identity: KvIdentity,
    /// Bytes of all pages, in use and kept.
    pub budget_bytes: usize,
    /// Bytes of pages kept for reuse at most, within `budget_bytes`; 0 keeps none. Pages in use count where a kept prefix
    /// needs them.
    pub prefix_bytes_max: usize,
    /// Bytes of pages that come from elsewhere, beside the others: while they arrive, and as long as they have a holder; 0
    /// takes none.
    pub installed_bytes_max: usize,
    /// Sequences that run at once.
    pub running_max: NonZeroUsize,
    /// Requests that wait at most.
    pub waiting_max: usize,
    /// Prefill rows per step.
    pub chunk: ChunkRows,
}

/// Runs jobs: generation, prefill for export, audits. One under way is a request.
#[derive(Debug)]
pub struct Engine {
    executor: Box<dyn Forward>,
    settings: EngineSettings,
    spec: Arc<CacheSpec>,
    pool: PagePool,
    /// Pool of pages that arrive from other machines: they take no room that a running sequence counts on.
    installs: PagePool,
    prefixes: PrefixIndex,
    taken_back: TakenBack,
    /// Waiting sequences, of each group in the order in which they are to start: the interrupted ones, and then those that
    /// never ran.
    waiting: VecDeque<Sequence>,
    /// In the order in which they started.
    running: Vec<Running>,
    /// Sequences that may run at once now: fewer than `running_max` while the device has no room for more.
    places: usize,
    clients: Rotation<u64>,
    groups: Rotation<Flow>,
    next_id: u64,
    plan: StepPlan,
    workspace: SamplerWorkspace,
    buffers: StepBuffers,
}

/// Lists of a step, empty between steps: only their memory is kept.
#[derive(Debug, Default)]
struct StepBuffers {
    batch: Vec<SequenceInput<'static>>,
    parts: Vec<Part<'static>>,
}

impl Engine {
    /// An engine that runs steps of up to `executor.rows_max()` rows.
    ///
    /// # Errors
    /// [`EngineError`] if the settings do not fit the model or the executor.
    pub fn new(executor: impl Forward + 'static, settings: EngineSettings) -> Result<Self, EngineError> {
        let config = executor.spec().config();
        let (trained, vocab) = (config.context, config.vocab);
        if settings.context > trained {
            return Err(EngineError::ContextTooLong { wanted: settings.context, trained });
        }
        let (running_max, rows_max) = (settings.running_max.get(), executor.rows_max());
        if running_max > rows_max {
            return Err(EngineError::TooManyRunning { running_max, rows_max });
        }
        let spec = executor.spec().cache_spec(settings.kv, settings.context)?;
        Ok(Self {
            // The budget is kept by `make_room`, which knows when it may be exceeded.
            pool: PagePool::new(usize::MAX),
            installs: PagePool::new(settings.installed_bytes_max),
            prefixes: PrefixIndex::new(Arc::clone(&spec), settings.prefix_bytes_max),
            spec,
            taken_back: TakenBack::default(),
            waiting: VecDeque::new(),
            running: Vec::with_capacity(running_max),
            places: running_max,
            clients: Rotation::new(),
            groups: Rotation::new(),
            next_id: 0,
            plan: StepPlan::default(),
            workspace: SamplerWorkspace::new(vocab),
            buffers: StepBuffers::default(),
            executor: Box::new(executor),
            settings,
        })
    }

    /// Queues a job.
    ///
    /// # Errors
    /// [`SubmitError`] says why it was refused; nothing has changed then.
    pub fn submit(&mut self, job: Job) -> Result<RequestId, SubmitError> {
        let rows_most = self.check(&job)?;
        let is_trusted = job.installed().is_none_or(|installed| self.trusts(installed).is_ok());
        let Job { tokens, origin, goal, flow } = job;
        let task = self.task(goal, tokens.len())?;
        self.check_queue(flow)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let mut sequence = Sequence::new(id, &tokens, origin, flow, task, rows_most);
        if !is_trusted {
            sequence.distrust();
        }
        self.queue(sequence);
        Ok(id)
    }

    /// Ends a request at the beginning of the next step, which tells of it: no row of it is computed any more, and if it
    /// waits, it never starts. False if there is no such request, or no longer.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let running = self.running.iter_mut().map(|running| &mut running.sequence);
        match running.chain(&mut self.waiting).find(|sequence| sequence.id == id) {
            Some(sequence) => {
                sequence.cancelled = true;
                true
            }
            None => false,
        }
    }

    /// True if any request runs or waits, so that another step has work.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || !self.waiting.is_empty()
    }

    /// Sequences that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Memory of all pages, kept ones included.
    pub fn memory(&self) -> PoolUse {
        PoolUse { budget_bytes: self.settings.budget_bytes, ..self.pool.usage() }
    }

    /// Memory of pages that came from elsewhere, or are on their way.
    pub fn installed_memory(&self) -> PoolUse {
        self.installs.usage()
    }

    /// Bytes of pages kept for reuse, each counted once; some may be in use as well.
    pub fn prefix_bytes(&self) -> usize {
        self.prefixes.bytes()
    }

    /// The model on its device.
    pub fn executor(&self) -> &dyn Forward {
        &*self.executor
    }

    /// The settings.
    pub fn settings(&self) -> &EngineSettings {
        &self.settings
    }

    /// Checks a job but for its sampler and the queue, and gives the rows that it comes to have at most.
    fn check(&self, job: &Job) -> Result<usize, SubmitError> {
        let (vocab, max) = (self.executor.spec().config().vocab, self.settings.context);
        let (prompt, context) = (job.tokens.len(), job.context(max));
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if let Some(&token) = job.tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        if context > max {
            return Err(SubmitError::ContextTooLong { wanted: context, max });
        }
        if prompt >= context && job.tokens_max() != Some(0) || prompt > context {
            return Err(SubmitError::PromptTooLong { prompt, context });
        }
        let rows_most = job.rows_most(context);
        let needed_bytes = self.spec.most_pages(rows_most, self.chunk_max()) * self.spec.layout().page_bytes();
        if needed_bytes > self.settings.budget_bytes {
            return Err(SubmitError::NeverFits { needed_bytes, budget_bytes: self.settings.budget_bytes });
        }
        Ok(rows_most)
    }

    fn task(&self, goal: Goal, rows: usize) -> Result<Task, SamplingError> {
        let config = self.executor.spec().config();
        Ok(match goal {
            Goal::Generate(Generate { tokens_max, context, stop_tokens, sampling, logprobs }) => {
                let sampler = Sampler::suppressing(sampling, config.vocab, Arc::clone(&config.suppressed_tokens))?;
                Task::Generate(Generation { tokens_max, context, stop_tokens, logprobs, sampler })
            }
            Goal::Export { held_pages } => Task::Export(Export::new(&self.spec, rows, held_pages)),
            Goal::Audit(comparison) => Task::Audit(comparison),
        })
    }

    /// Rows of a sequence in one step at most.
    fn chunk_max(&self) -> usize {
        let ChunkRows { alone, while_decoding } = self.settings.chunk;
        alone.max(while_decoding).get().min(self.executor.rows_max())
    }
}
