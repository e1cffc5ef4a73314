//! One step: the forward pass, and what came of it for each sequence.

use std::mem;

use muser_kv::{PAGE_ROWS, SequenceCache};
use muser_model::{LogitsWanted, SequenceInput, StepError};

use super::audit::Verdict;
use super::error::{RequestError, StepRefused};
use super::event::{Finish, OnEvent, RequestEvent};
use super::sequence::{Part, Running, Sequence};
use super::{Engine, StepBuffers};
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
        let (decode_rows, prefill_rows) = (self.plan.rows_of(WorkClass::Decode), self.plan.rows_of(WorkClass::Prefill));
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

    /// Runs the planned rows; tokens are chosen, and told of, while their logits are there.
    pub(super) fn forward(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), StepError> {
        let Self { executor, running, plan, workspace, buffers, .. } = self;
        // The batch follows the running sequences. Where a row stands in it changes nothing.
        plan.work.sort_unstable_by_key(|work| work.sequence);
        let mut batch: Vec<SequenceInput<'_>> = emptied(mem::take(&mut buffers.batch));
        let mut parts: Vec<Part<'_>> = emptied(mem::take(&mut buffers.parts));
        let mut works = plan.work.iter().peekable();
        for (index, Running { sequence, cache, chosen, failure, .. }) in running.iter_mut().enumerate() {
            let Some(work) = works.next_if(|work| work.sequence == index) else { continue };
            let (start, end, total) = (cache.rows(), cache.rows() + work.rows, sequence.tokens.len());
            let wanted = if end == total && sequence.wants_token() { LogitsWanted::Last } else { LogitsWanted::None };
            batch.push(SequenceInput::new(cache, &sequence.tokens[start..end], wanted));
            let prefilled = (work.class == WorkClass::Prefill).then_some(total);
            parts.push(Part { sequence, prefilled, chosen, failure });
        }
        let ran = executor.forward(&mut batch, &mut |row, logits| {
            parts[row.sequence].choose(logits, workspace, on_event);
        });
        for (part, input) in parts.iter_mut().zip(&batch) {
            *part.failure = input.outcome.err().map(RequestError::from);
        }
        *buffers = StepBuffers { batch: emptied(batch), parts: emptied(parts) };
        ran
    }

    /// Adds what was chosen, keeps prefixes that are worth it, and ends what has ended.
    fn settle(&mut self, on_event: &mut OnEvent<'_>) {
        let mut ended = 0;
        for at in 0..self.plan.work.len() {
            let work = self.plan.work[at];
            let index = work.sequence - ended;
            let Running { sequence, cache, landmark, chosen, failure, .. } = &mut self.running[index];
            let (id, rows, total) = (sequence.id, cache.rows(), sequence.tokens.len());
            let is_audit = sequence.is_audit();
            if let Some(error) = failure.take() {
                self.remove(index);
                ended += 1;
                let event = match error {
                    RequestError::NotFinite(error) if is_audit => RequestEvent::Audited(Verdict::NotFinite(error)),
                    error => RequestEvent::Failed(error),
                };
                on_event(id, event);
                continue;
            }
            if work.class == WorkClass::Prefill && chosen.is_none() {
                match sequence.task.ready_pages(cache) {
                    Ok(pages) => on_event(id, RequestEvent::Progress { computed: rows, total, pages }),
                    Err(error) => {
                        self.remove(index);
                        ended += 1;
                        on_event(id, RequestEvent::Failed(error.into()));
                        continue;
                    }
                }
            }
            if let Some(verdict) = sequence.task.verdict(cache) {
                self.remove(index);
                ended += 1;
                on_event(id, RequestEvent::Audited(verdict));
                continue;
            }
            let reached = landmark.take_if(|landmark| *landmark <= rows).is_some();
            if reached {
                Self::keep_prefix(&mut self.prefixes, &self.settings.identity, sequence, cache, rows);
            }
            if work.class == WorkClass::Prefill && rows == total {
                // Not the end of the last token's page, so that the same prompt again finds what it may reuse.
                Self::keep_prefix(&mut self.prefixes, &self.settings.identity, sequence, cache, rows - 1);
            }
            let finish = match chosen.take() {
                Some(choice) => sequence.push(choice),
                // Everything is computed and nothing was to be chosen.
                None => (rows == total).then_some(Finish::Limit),
            };
            if let Some(finish) = finish {
                self.finish(index, finish, on_event);
                ended += 1;
            }
        }
    }

    /// Ends a running sequence; its pages stay as far as they are kept for reuse.
    fn finish(&mut self, index: usize, finish: Finish, on_event: &mut OnEvent<'_>) {
        let Running { mut sequence, cache, .. } = self.remove(index);
        let rows = cache.rows();
        Self::keep_prefix(&mut self.prefixes, &self.settings.identity, &mut sequence, &cache, rows);
        on_event(sequence.id, RequestEvent::Finished(sequence.outcome(finish, cache.bytes())));
    }

    /// Keeps the full pages of the first `rows` rows of a sequence that shares what it computes.
    pub(super) fn keep_prefix(
        prefixes: &mut PrefixIndex,
        identity: &[u8; 32],
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
