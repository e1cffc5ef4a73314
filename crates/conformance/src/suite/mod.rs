//! One token stream has one set of logits: the same bits for every way of computing it, on every device.
//!
//! Whole prompt or chunks of any size, any variant of a backend, alone or in company, straight ahead or after a rewind, with
//! pages of its own or carried ones: all logits, and the pages' bytes, are compared with one pass of the baseline over the
//! whole prompt. [`ways`] goes through any model; [`cases`] are random and tiny models that between them use every weight
//! type, architecture and option, and the borders of windows, pages and segments.
//!
//! - `run` computes and compares; `cover` goes through a covering array of models and chunks.
//! - `borders`: windows, pages and segments of attention; `rewinds`: as far back as a cache allows.
//! - `overflows`: a value that is not finite concerns its own sequence alone.

mod borders;
mod cover;
mod overflows;
mod rewinds;
mod run;
pub mod ways;

pub use run::{LAYOUTS, Run, Snapshot, Way, compare_pages, step};

use crate::backend::{Backend, CaseError, Comparison};
use crate::tally::BitTally;

/// One case of the suite.
pub struct Case<B: Backend> {
    /// A sentence about what holds, with underscores.
    pub name: &'static str,
    /// Computes and compares.
    pub run: fn(&Comparison<B>, &mut BitTally) -> Result<(), CaseError>,
}

/// Every case.
pub fn cases<B: Backend>() -> Vec<Case<B>> {
    macro_rules! cases {
        ($($module:ident::$name:ident,)*) => { vec![$(Case { name: stringify!($name), run: $module::$name },)*] };
    }
    cases![
        cover::muse_glimmer_has_the_same_bits_however_it_is_computed,
        cover::llama_with_tied_head_and_rotary_factors_has_the_same_bits_however_it_is_computed,
        cover::llama_with_biases_has_the_same_bits_however_it_is_computed,
        cover::qwen2_has_the_same_bits_however_it_is_computed,
        cover::qwen3_has_the_same_bits_however_it_is_computed,
        cover::a_windowed_model_has_the_same_bits_in_every_way,
        cover::a_model_of_all_weight_types_has_the_same_bits_in_every_way,
        borders::a_prompt_cut_at_page_and_window_borders_has_the_bits_of_the_whole,
        borders::a_window_of_2048_and_segments_of_1024_give_the_bits_of_the_whole,
        rewinds::after_a_rewind_another_continuation_has_the_bits_of_a_fresh_run,
        overflows::an_overflow_fails_its_own_sequence_and_names_layer_and_position,
        overflows::an_overflow_in_the_head_fails_from_its_row_on,
        overflows::logits_that_nobody_wants_fail_nothing,
        overflows::a_key_beyond_f16_fails_where_pages_are_f16_and_only_there,
        overflows::an_error_of_an_earlier_range_of_layers_stands,
    ]
}
