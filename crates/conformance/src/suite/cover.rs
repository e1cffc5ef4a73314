//! Chunk sizes, variants of the backend, KV layouts, architectures and weight types, every pair of them together; and two
//! models in every way.

use muser_kv::KvLayout;
use muser_synthetic::small::LlamaOptions;

use super::run::{LAYOUTS, Run, Way};
use super::ways::{Effort, compare_model};
use crate::backend::{Backend, CaseError, Comparison};
use crate::models::{ARCHITECTURES, MIXES, file_of_architecture, generated, glimmer_spec, llama_spec, tokens};
use crate::pairwise::cover;
use crate::tally::BitTally;

/// Rows of a step at most; the last stands for the whole prompt.
const CHUNKS: [usize; 7] = [1, 7, 32, 33, 64, 512, PROMPT];
/// Tokens of the prompt: more than 512, and no multiple of a chunk but 1.
const PROMPT: usize = 531;
/// Tokens of the prompt with chunks below 32: past two windows of the covered muse-glimmer.
const SHORT: usize = 231;

struct Combination {
    way: Way,
    layout: KvLayout,
    mix: usize,
}

fn levels(variants: usize) -> [usize; 5] {
    [CHUNKS.len(), variants, LAYOUTS.len(), ARCHITECTURES.len(), MIXES.len()]
}

/// The combinations of one architecture, those of one model and layout side by side.
fn combinations(architecture: usize, variants: usize) -> Vec<Combination> {
    let rows = cover(&levels(variants)).into_iter().filter(|row| row[3] == architecture);
    let mut combinations: Vec<Combination> = rows
        .map(|row| Combination {
            way: Way { chunk: CHUNKS[row[0]], variant: row[1] },
            layout: LAYOUTS[row[2]],
            mix: row[4],
        })
        .collect();
    combinations.sort_by_key(|combination| (combination.mix, combination.layout == KvLayout::F16));
    combinations
}

fn check<B: Backend>(architecture: usize, on: &Comparison<B>, tally: &mut BitTally) -> Result<(), CaseError> {
    let prompt = tokens(PROMPT, 1);
    let mut base: Option<(usize, KvLayout, Run)> = None;
    for Combination { way, layout, mix } in combinations(architecture, on.backend.variants()) {
        let name = format!("{}, {}", ARCHITECTURES[architecture], MIXES[mix].name);
        let subject = on.load_bytes(name, file_of_architecture(architecture, &MIXES[mix], 1024))?;
        let known = base.take().filter(|(of, in_layout, _)| (*of, *in_layout) == (mix, layout));
        let known = match known {
            Some(known) => known,
            None => (mix, layout, subject.truth(layout, &prompt)?),
        };
        let (.., want) = base.insert(known);
        let length = if way.chunk < 32 { SHORT } else { PROMPT };
        let got = subject.run(layout, way, &prompt[..length])?;
        let what = subject.describe(way.variant);
        got.compare(want, &format_args!("{what}, {layout:?} cache, chunks of {}", way.chunk), tally);
    }
    Ok(())
}

pub(super) fn muse_glimmer_has_the_same_bits_however_it_is_computed<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    check(0, on, tally)
}

pub(super) fn llama_with_tied_head_and_rotary_factors_has_the_same_bits_however_it_is_computed<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    check(1, on, tally)
}

pub(super) fn llama_with_biases_has_the_same_bits_however_it_is_computed<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    check(2, on, tally)
}

pub(super) fn qwen2_has_the_same_bits_however_it_is_computed<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    check(3, on, tally)
}

pub(super) fn qwen3_has_the_same_bits_however_it_is_computed<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    check(4, on, tally)
}

/// Prompt and repetitions of the models that go every way.
const EFFORT: Effort = Effort { tokens: 231, rounds: 1 };

pub(super) fn a_windowed_model_has_the_same_bits_in_every_way<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let file = generated(&glimmer_spec(&MIXES[1], 100, &[true, false, true, false], 512), &MIXES[1]);
    compare_model(&on.load_bytes("windows of 100", file)?, EFFORT, tally)
}

pub(super) fn a_model_of_all_weight_types_has_the_same_bits_in_every_way<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
    let file = generated(&llama_spec(&MIXES[7], options, 2, 512), &MIXES[7]);
    compare_model(&on.load_bytes("all types", file)?, EFFORT, tally)
}

#[test]
fn the_combinations_hold_every_pair() {
    for variants in [1, 2, 9] {
        let rows = cover(&levels(variants));
        assert_eq!(crate::pairwise::uncovered(&levels(variants), &rows), 0);
        let checked: usize = (0..ARCHITECTURES.len()).map(|of| combinations(of, variants).len()).sum();
        assert_eq!(checked, rows.len());
    }
}
