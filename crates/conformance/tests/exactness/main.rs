//! The exactness suite of `muser_conformance::suite`, mounted on the CPU and on the deferred CPU, and what else holds of steps
//! and caches on the CPU.
//!
//! - `runs`: small helpers on the CPU.
//! - `windows`, `rewinds`, `stages`: what a window means, refused rewinds, which logits are asked for.
//! - `refusals`: what is refused changes nothing.
//! - `deferred`: when the deferred CPU executes, and how it finds pages again.

mod deferred;
mod refusals;
mod rewinds;
mod runs;
mod stages;
mod windows;

use muser_conformance::backend::{Backend, Comparison, CpuBackend};
use muser_conformance::deferred::DeferredBackend;
use muser_conformance::suite;
use muser_conformance::tally::BitTally;

/// Runs one case of the suite.
#[track_caller]
fn check<B: Backend>(backend: B, name: &str) {
    let cases = suite::cases::<B>();
    let case = cases.iter().find(|case| case.name == name).expect("a case of the suite");
    let mut tally = BitTally::default();
    (case.run)(&Comparison::with_plain(backend), &mut tally).unwrap();
    tally.assert_clean();
}

/// One test for each case and backend.
macro_rules! mount {
    ($($name:ident,)*) => {
        /// Names of the cases that are mounted.
        const MOUNTED: &[&str] = &[$(stringify!($name)),*];

        mod on_the_cpu {
            use super::*;

            $(#[test]
            fn $name() {
                check(super::cpu_for(stringify!($name)), stringify!($name));
            })*
        }

        mod on_the_deferred_cpu {
            use super::*;

            $(#[test]
            fn $name() {
                check(DeferredBackend::both_ways_of_keeping_copies(), stringify!($name));
            })*
        }
    };
}

/// Cases of a covering array go through every combination of kernels and threads; the others through each implementation.
fn cpu_for(name: &str) -> CpuBackend {
    if name.ends_with("however_it_is_computed") {
        CpuBackend::every_combination()
    } else {
        CpuBackend::each_implementation()
    }
}

mount![
    muse_glimmer_has_the_same_bits_however_it_is_computed,
    llama_with_tied_head_and_rotary_factors_has_the_same_bits_however_it_is_computed,
    llama_with_biases_has_the_same_bits_however_it_is_computed,
    qwen2_has_the_same_bits_however_it_is_computed,
    qwen3_has_the_same_bits_however_it_is_computed,
    a_windowed_model_has_the_same_bits_in_every_way,
    a_model_of_all_weight_types_has_the_same_bits_in_every_way,
    a_prompt_cut_at_page_and_window_borders_has_the_bits_of_the_whole,
    a_window_of_2048_and_segments_of_1024_give_the_bits_of_the_whole,
    after_a_rewind_another_continuation_has_the_bits_of_a_fresh_run,
    an_overflow_fails_its_own_sequence_and_names_layer_and_position,
    an_overflow_in_the_head_fails_from_its_row_on,
    logits_that_nobody_wants_fail_nothing,
    a_key_beyond_f16_fails_where_pages_are_f16_and_only_there,
    an_error_of_an_earlier_range_of_layers_stands,
];

#[test]
fn every_case_of_the_suite_is_mounted() {
    let names: Vec<&str> = suite::cases::<CpuBackend>().iter().map(|case| case.name).collect();
    assert_eq!(names, MOUNTED);
}
