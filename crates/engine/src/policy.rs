//! Who computes how many rows in the next step. Pure arithmetic: it decides when a row is computed, never what.
//!
//! Decode comes first: every running sequence that waits for its next token gets its row in every step. What is left of the
//! step goes to prefill, first come, first served, in chunks that are short while somebody decodes, because everybody waits
//! for the whole step.

use std::num::NonZeroUsize;

/// The two kinds of work. A row's result does not depend on which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClass {
    /// One row, from which the sequence's next token is chosen.
    Decode,
    /// Rows of a prompt, or of tokens whose keys and values were given up and are computed again.
    Prefill,
}

/// How many rows of prefill a step may have. The settings of the book: 512, and 64 while a decoder waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRows {
    /// Rows when nobody decodes.
    pub alone: NonZeroUsize,
    /// Rows while somebody decodes; the same as `alone` means that prefill does not yield.
    pub while_decoding: NonZeroUsize,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Its index among the running sequences.
    pub(crate) sequence: usize,
    pub(crate) class: WorkClass,
    pub(crate) rows: usize,
}

/// The work of one step, as it is handed out.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub(crate) work: Vec<Work>,
    prefill_rows_left: usize,
}

impl ChunkRows {
    /// 512 rows, 64 while a decoder waits.
    pub const DEFAULT: Self =
        Self { alone: NonZeroUsize::new(512).unwrap(), while_decoding: NonZeroUsize::new(64).unwrap() };

    /// The most rows of prefill in a step of at most `rows_max` rows beside `decoders` decode rows.
    fn beside(&self, decoders: usize, rows_max: usize) -> usize {
        let chunk = if decoders > 0 { self.while_decoding } else { self.alone };
        chunk.get().min(rows_max - decoders)
    }
}

impl StepPlan {
    /// Starts a step with one decode row for each of `decoders`, which are at most `rows_max`.
    pub(crate) fn start(&mut self, decoders: impl Iterator<Item = usize>, chunk: ChunkRows, rows_max: usize) {
        self.work.clear();
        self.work.extend(decoders.map(|sequence| Work { sequence, class: WorkClass::Decode, rows: 1 }));
        self.prefill_rows_left = chunk.beside(self.work.len(), rows_max);
    }

    /// Gives `sequence` as many of the rows left as it `wants`.
    pub(crate) fn prefill(&mut self, sequence: usize, wants: usize) {
        let rows = wants.min(self.prefill_rows_left);
        if rows > 0 {
            self.work.push(Work { sequence, class: WorkClass::Prefill, rows });
            self.prefill_rows_left -= rows;
        }
    }

    /// Whether the step has room for more prefill.
    pub(crate) fn has_room(&self) -> bool {
        self.prefill_rows_left > 0
    }

    /// Takes away the work of a sequence that no longer runs.
    pub(crate) fn drop_sequence(&mut self, sequence: usize) {
        self.work.retain(|work| work.sequence != sequence);
    }

    /// Rows of one class.
    pub(crate) fn rows_of(&self, class: WorkClass) -> usize {
        self.work.iter().filter(|work| work.class == class).map(|work| work.rows).sum()
    }
}

/// Whether a sequence that may come to hold `wanted` pages can start beside sequences that may hold `promised` in all.
pub(crate) fn has_pages(promised: usize, wanted: usize, pages: usize) -> bool {
    promised.saturating_add(wanted) <= pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(decoders: usize, wants: &[usize], rows_max: usize) -> Vec<usize> {
        let mut plan = StepPlan::default();
        plan.start(0..decoders, ChunkRows::DEFAULT, rows_max);
        for (index, &rows) in wants.iter().enumerate() {
            plan.prefill(decoders + index, rows);
        }
        assert_eq!(plan.rows_of(WorkClass::Decode), decoders);
        plan.work.iter().filter(|work| work.class == WorkClass::Prefill).map(|work| work.rows).collect()
    }

    #[test]
    fn a_prompt_alone_gets_a_whole_chunk_and_a_short_one_beside_decoders() {
        assert_eq!(plan(0, &[4000], 1000), [512]);
        assert_eq!(plan(1, &[4000], 1000), [64]);
        assert_eq!(plan(30, &[4000], 1000), [64]);
    }

    #[test]
    fn the_rest_of_a_chunk_goes_to_the_next_in_line() {
        assert_eq!(plan(0, &[100, 300, 400, 9], 1000), [100, 300, 112]);
        assert_eq!(plan(2, &[64, 300], 1000), [64]);
    }

    #[test]
    fn a_step_never_exceeds_the_rows_it_may_have() {
        assert_eq!(plan(0, &[4000], 100), [100]);
        assert_eq!(plan(90, &[4000], 100), [10]);
        assert!(plan(100, &[4000], 100).is_empty());
    }
}
