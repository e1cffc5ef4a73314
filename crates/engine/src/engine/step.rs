//! One step: the forward pass, and what came of it for each sequence.

use std::mem;

use muser_kv::{KvIdentity, PAGE_ROWS, SequenceCache};
use muser_model::{DeviceError, LogitsWanted, SequenceInput, StepError};

use super::error::StepRefused;
use super::event::{Finish, OnEvent, RequestEvent};
use super::sequence::{Part, Running, Sequence, StepRows};
use super::{Engine, EngineSettings, StepBuffers};
use crate::policy::WorkClass;
use crate::prefix::PrefixIndex;

/// Rows computed by a step, and sequences after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Rows from which next tokens were chosen, one per decoding sequence.
    pub decode_rows: usize,
    /// Rows of prompts, and of tokens computed again.
    pub prefill_rows: usize,
    /// Sequences that run after the step.
    pub running: usize,
    /// Requests that wait after the step.
    pub waiting: usize,
}

/// Next state of a running sequence.
enum Transition {
    Runs,
    /// It has what it was to compute.
    Finishes(Finish),
    /// It leaves nothing to others, and this is its last event.
    Ends(RequestEvent),
}

impl Engine {
    /// Runs one forward pass over the next rows of the running sequences, having started as many of the waiting ones as
    /// there is room for, and tells `on_event` what happens as it happens. Without work it does nothing.
    ///
    /// # Errors
    /// [`StepRefused`] if the pass could not be run. After [`StepRefused::DeviceFailed`] there are no requests any more.
    pub fn step(&mut self, on_event: &mut OnEvent<'_>) -> Result<StepReport, StepRefused> {
        self.end_cancelled(on_event);
        self.hand_out_rows(on_event);
        self.make_room(on_event);
        self.compute(on_event)?;
        let rows_of = |class| {
            let rows = self.running.iter().filter_map(|running| running.rows);
            rows.filter(|rows| rows.class == class).map(|rows| rows.count).sum()
        };
        let (decode_rows, prefill_rows) = (rows_of(WorkClass::Decode), rows_of(WorkClass::Prefill));
        self.settle(on_event);
        Ok(StepReport { decode_rows, prefill_rows, running: self.running.len(), waiting: self.waiting.len() })
    }

    fn end_cancelled(&mut self, on_event: &mut OnEvent<'_>) {
        while let Some(index) = self.running.iter().position(|running| running.sequence.cancelled) {
            self.finish(index, Finish::Stopped, on_event);
        }
        self.waiting.retain(|sequence| {
            if sequence.cancelled {
                on_event(sequence.id, RequestEvent::Finished(sequence.outcome(Finish::Stopped, 0)));
            }
            !sequence.cancelled
        });
    }

    /// Runs the planned rows, or those of fewer sequences where the device has no room for all.
    fn compute(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), StepRefused> {
        loop {
            match self.forward(on_event) {
                Ok(()) => return Ok(()),
                Err(StepError::Device(error @ DeviceError::OutOfMemory { .. })) => self.shrink_step(error, on_event),
                Err(StepError::Device(error)) => {
                    self.fail_all(&error, on_event);
                    return Err(StepRefused::DeviceFailed(error));
                }
                Err(refused) => return Err(StepRefused::Planned(refused)),
            }
        }
    }

    /// Runs the planned rows, which stay pending; tokens are chosen, and told of, while their logits are there.
    fn forward(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), StepError> {
        let Self { executor, running, workspace, buffers, .. } = self;
        let mut batch: Vec<SequenceInput<'_>> = emptied(mem::take(&mut buffers.batch));
        let mut parts: Vec<Part<'_>> = emptied(mem::take(&mut buffers.parts));
        for Running { sequence, cache, rows, chosen, .. } in running {
            let Some(rows) = rows else { continue };
            let (start, end) = (cache.rows(), cache.rows() + rows.count);
            let is_whole = end == sequence.tokens.len();
            let wanted = if is_whole && sequence.wants_token() { LogitsWanted::Last } else { LogitsWanted::None };
            batch.push(SequenceInput::new(cache, &sequence.tokens[start..end], wanted));
            parts.push(Part { sequence, rows, chosen });
        }
        let ran = executor.forward_pending(&mut batch, &mut |row, logits| {
            parts[row.sequence].choose(logits, workspace, on_event);
        });
        for (part, input) in parts.iter_mut().zip(&batch) {
            part.rows.result = input.outcome;
        }
        *buffers = StepBuffers { batch: emptied(batch), parts: emptied(parts) };
        ran
    }

    /// Takes each sequence of the step to its next state.
    fn settle(&mut self, on_event: &mut OnEvent<'_>) {
        let mut index = 0;
        while index < self.running.len() {
            let transition = match self.running[index].rows.take() {
                Some(rows) => self.transition(index, rows, on_event),
                None => Transition::Runs,
            };
            match transition {
                Transition::Runs => index += 1,
                Transition::Finishes(finish) => self.finish(index, finish, on_event),
                Transition::Ends(event) => on_event(self.remove(index).sequence.id, event),
            }
        }
    }

    /// Next state of a sequence by the result of its rows; tells of progress, and keeps prefixes that are worth it.
    fn transition(&mut self, index: usize, step: StepRows, on_event: &mut OnEvent<'_>) -> Transition {
        let Self { running, prefixes, settings: EngineSettings { identity, .. }, .. } = self;
        let Running { sequence, cache, landmark, chosen, .. } = &mut running[index];
        if let Err(error) = step.result {
            return Transition::Ends(sequence.task.not_finite(error));
        }
        // Each was computed from tokens that stand.
        cache.commit(step.count).expect("exactly these rows are pending");
        let (computed, total, is_prefill) = (cache.rows(), sequence.tokens.len(), step.class == WorkClass::Prefill);
        if is_prefill && chosen.is_none() {
            match sequence.task.ready_pages(cache) {
                Ok(pages) => on_event(sequence.id, RequestEvent::Progress { computed, total, pages }),
                Err(error) => return Transition::Ends(RequestEvent::Failed(error.into())),
            }
        }
        if let Some(verdict) = sequence.task.verdict(cache) {
            return Transition::Ends(RequestEvent::Audited(verdict));
        }
        if landmark.take_if(|landmark| *landmark <= computed).is_some() {
            Self::keep_prefix(prefixes, identity, sequence, cache, computed);
        }
        if is_prefill && computed == total {
            // Not the end of the last token's page, so that the same prompt again finds what it may reuse.
            Self::keep_prefix(prefixes, identity, sequence, cache, computed - 1);
        }
        let finish = match chosen.take() {
            Some(choice) => sequence.push(choice),
            // Everything is computed and nothing was to be chosen.
            None => (computed == total).then_some(Finish::Limit),
        };
        finish.map_or(Transition::Runs, Transition::Finishes)
    }

    /// Ends a running sequence; its pages stay as far as they are kept for reuse.
    fn finish(&mut self, index: usize, finish: Finish, on_event: &mut OnEvent<'_>) {
        let Running { mut sequence, cache, .. } = self.remove(index);
        let rows = cache.rows();
        Self::keep_prefix(&mut self.prefixes, &self.settings.identity, &mut sequence, &cache, rows);
        on_event(sequence.id, RequestEvent::Finished(sequence.outcome(finish, cache.bytes())));
    }

    /// Takes away a running sequence that has ended: what the device had no room for may find some now.
    pub(super) fn remove(&mut self, index: usize) -> Running {
        self.places = self.settings.running_max.get();
        self.running.remove(index)
    }

    /// Keeps the full pages of the first `rows` rows of a sequence that shares what it computes.
    pub(super) fn keep_prefix(
        prefixes: &mut PrefixIndex,
        identity: &KvIdentity,
        sequence: &mut Sequence,
        cache: &SequenceCache,
        rows: usize,
    ) {
        if sequence.origin.realm().is_some() && sequence.provenance.is_vouched_for() {
            prefixes.keep(sequence.names(identity, rows / PAGE_ROWS), cache);
        }
    }
}

/// The memory of `list`, without its content. The types differ in lifetimes only, and the standard library then collects in
/// place: a step does not allocate.
fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
