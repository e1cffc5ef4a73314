//! Row budget of the next step, shared out among sequences. Pure arithmetic: it decides when a row is computed, never its
//! value.
//!
//! Decode comes first: every running sequence that waits for its next token gets its row in every step. Prefill gets a
//! chunk of rows, which is short while a sequence decodes, because every sequence waits for the whole step. Prompts share
//! the chunk: the oldest has half of it, so that none starves and none takes more than twice as many rows' time as alone;
//! the rest goes to the others, the one with the fewest missing rows first, so that a short prompt is done within a few
//! steps whatever runs beside it.

use std::num::NonZeroUsize;

/// The two kinds of work. A row's result does not depend on which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClass {
    /// One row, from which the sequence's next token is chosen.
    Decode,
    /// Rows of a prompt, or of tokens whose keys and values were given up and are computed again.
    Prefill,
}

/// Prefill rows of a step at most. [`ChunkRows::DEFAULT`] has 512, and 64 beside a decoding sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRows {
    /// Rows when no sequence decodes.
    pub alone: NonZeroUsize,
    /// Rows while a sequence decodes, and beside prompts that lack no more than these; the same as `alone` means that
    /// prefill does not yield.
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
}

impl ChunkRows {
    /// 512 rows, 64 while a decoder waits.
    pub const DEFAULT: Self =
        Self { alone: NonZeroUsize::new(512).unwrap(), while_decoding: NonZeroUsize::new(64).unwrap() };

    /// Rows of prefill in a step of at most `rows_max` rows beside `decoders` decode rows, for prompts that lack so many. A
    /// prompt that can end in this step waits for all of it as a decoder does: the others then get a short chunk.
    fn beside(&self, decoders: usize, prompts: &[Work], rows_max: usize) -> usize {
        let short = self.while_decoding.get();
        let ending: usize = prompts.iter().map(|prompt| prompt.rows).filter(|rows| *rows <= short).sum();
        let chunk = match (decoders, ending, prompts.len()) {
            (0, 0, _) | (0, _, 1) => self.alone.get(),
            (0, ..) => self.alone.get().min(ending + short),
            _ => short,
        };
        chunk.min(rows_max - decoders)
    }
}

impl StepPlan {
    /// Plans a step of at most `rows_max` rows: one for each of `decoders`, of which there are no more, and a chunk for
    /// `prompts`, which are sequences with the rows that each could use, the oldest first.
    pub(crate) fn share_out(
        &mut self,
        decoders: impl Iterator<Item = usize>,
        prompts: impl Iterator<Item = (usize, usize)>,
        chunk: ChunkRows,
        rows_max: usize,
    ) {
        self.work.clear();
        self.work.extend(decoders.map(|sequence| Work { sequence, class: WorkClass::Decode, rows: 1 }));
        let decode_rows = self.work.len();
        self.work.extend(prompts.map(|(sequence, rows)| Work { sequence, class: WorkClass::Prefill, rows }));
        let prompts = &mut self.work[decode_rows..];
        let mut left = chunk.beside(decode_rows, prompts, rows_max);
        let Some(&Work { sequence: oldest, rows, .. }) = prompts.first() else { return };
        let mut reserved = rows.min(left.div_ceil(2));
        prompts.sort_unstable_by_key(|work| (work.rows, work.sequence));
        for work in prompts {
            if work.sequence == oldest {
                reserved = 0;
            }
            work.rows = work.rows.min(left - reserved);
            left -= work.rows;
        }
        self.work.retain(|work| work.rows > 0);
    }
}

/// True if a sequence that may come to hold `wanted` pages can start beside sequences that may hold `promised` in all, out
/// of `pages`.
pub(crate) fn has_pages(promised: usize, wanted: usize, pages: usize) -> bool {
    promised.saturating_add(wanted) <= pages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that each of the prompts gets, which lack so many.
    fn plan(decoders: usize, missing: &[usize], rows_max: usize) -> Vec<usize> {
        let mut plan = StepPlan::default();
        let prompts = missing.iter().enumerate().map(|(index, rows)| (decoders + index, *rows));
        plan.share_out(0..decoders, prompts, ChunkRows::DEFAULT, rows_max);
        assert_eq!(plan.work.iter().filter(|work| work.class == WorkClass::Decode).count(), decoders);
        assert!(plan.work.iter().all(|work| work.rows > 0));
        let of = |sequence| plan.work.iter().filter(move |work| work.sequence == sequence).map(|work| work.rows).sum();
        (decoders..decoders + missing.len()).map(of).collect()
    }

    #[test]
    fn a_prompt_alone_gets_a_whole_chunk_and_a_short_one_beside_decoders() {
        assert_eq!(plan(0, &[4000], 1000), [512]);
        assert_eq!(plan(1, &[4000], 1000), [64]);
        assert_eq!(plan(30, &[4000], 1000), [64]);
    }

    #[test]
    fn the_oldest_prompt_has_half_of_the_chunk_and_the_rest_goes_to_the_shortest_first() {
        assert_eq!(plan(0, &[4000, 3000], 1000), [256, 256]);
        assert_eq!(plan(0, &[4000, 3000, 200], 1000), [256, 56, 200]);
        assert_eq!(plan(0, &[4000, 200, 200, 200], 1000), [256, 200, 56, 0]);
        assert_eq!(plan(2, &[4000, 3000, 2000], 1000), [32, 0, 32]);
    }

    #[test]
    fn rows_that_the_others_do_not_need_go_to_the_oldest_and_the_other_way_round() {
        assert_eq!(plan(0, &[4000, 100], 1000), [412, 100]);
        assert_eq!(plan(0, &[100, 4000], 1000), [100, 412]);
        assert_eq!(plan(1, &[4000, 20], 1000), [44, 20]);
        assert_eq!(plan(2, &[64, 300], 1000), [64, 0]);
        assert_eq!(plan(2, &[40, 40], 1000), [40, 24]);
        assert_eq!(plan(0, &[100, 90], 1000), [100, 90]);
    }

    #[test]
    fn prompts_that_can_end_in_this_step_do_not_wait_for_a_long_chunk_of_another() {
        assert_eq!(plan(0, &[4000, 20], 1000), [64, 20]);
        assert_eq!(plan(0, &[4000, 40, 10], 1000), [64, 40, 10]);
        assert_eq!(plan(0, &[20, 4000], 1000), [20, 64]);
        assert_eq!(plan(0, &[20, 30], 1000), [20, 30]);
        assert_eq!(plan(0, &[20], 1000), [20]);
        assert_eq!(plan(0, &[4000, 65], 1000), [447, 65]);
    }

    #[test]
    fn a_step_never_exceeds_the_rows_it_may_have() {
        assert_eq!(plan(0, &[4000], 100), [100]);
        assert_eq!(plan(90, &[4000], 100), [10]);
        assert_eq!(plan(99, &[4000, 20], 100), [1, 0]);
        assert_eq!(plan(100, &[4000, 20], 100), [0, 0]);
    }
}
