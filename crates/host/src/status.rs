//! Engine status for `/slots`, `/metrics` and placement: counts and sizes only, never a text or a token.

use muser_engine::Engine;
use muser_kv::PoolUse;

/// The engine after its last step.
#[derive(Clone, Debug)]
pub struct EngineStatus {
    /// One entry per sequence that may run at once.
    pub slots: Vec<Slot>,
    /// Requests that wait.
    pub waiting: usize,
    /// Memory of all pages.
    pub memory: PoolUse,
    /// Bytes of pages kept for reuse.
    pub prefix_bytes: usize,
    /// Sums since the start.
    pub totals: Totals,
    /// Reason for which the engine has ended; `None` while it runs.
    pub failure: Option<String>,
}

/// Slot of one running sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Its request; `None` while it is idle.
    pub task: Option<Task>,
}

/// A running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its number, counted from the start of the server.
    pub number: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens that have their keys and values.
    pub computed_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were reused.
    pub reused_tokens: u64,
    /// Seconds between the start of requests and their first token.
    pub prompt_seconds: f64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Seconds between the first and the last token of requests.
    pub generated_seconds: f64,
    /// Steps of the engine.
    pub steps: u64,
    /// Running sequences, added up over all steps.
    pub running_over_steps: u64,
    /// Most tokens of one sequence so far, prompt and answer together.
    pub tokens_max: usize,
    /// Requests that ended.
    pub ended: u64,
    /// Requests that ended after their [`Answer`](crate::Answer) was dropped.
    pub cancelled: u64,
    /// Preemptions: times that a sequence's pages were evicted for others, to be computed again.
    pub preemptions: u64,
}

impl EngineStatus {
    /// The status of an engine that has done nothing.
    pub(super) fn of(engine: &Engine) -> Self {
        Self {
            slots: vec![Slot::default(); engine.settings().running_max.get()],
            waiting: engine.waiting(),
            memory: engine.memory(),
            prefix_bytes: engine.prefix_bytes(),
            totals: Totals::default(),
            failure: None,
        }
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        self.slots.iter().filter(|slot| slot.task.is_some()).count()
    }
}
