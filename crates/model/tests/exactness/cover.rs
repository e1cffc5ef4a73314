//! Chunk sizes, threads, kernels, KV layouts, architectures and weight types, every pair of them together.

use muser_kv::KvLayout;

use crate::models::{ARCHITECTURES, MIXES, of_architecture, tokens};
use crate::pairwise::{cover, uncovered};
use crate::runs::{LAYOUTS, Run, Way, kernels, run};

/// The last stands for the whole prompt.
const CHUNKS: [usize; 7] = [1, 7, 32, 33, 64, 512, PROMPT];
const THREADS: [usize; 3] = [1, 2, 3];

/// More than 512, no multiple of anything.
const PROMPT: usize = 531;
/// What small chunks get through: past two windows of the covered muse-glimmer.
const SHORT: usize = 231;

struct Combination {
    way: Way,
    layout: KvLayout,
    mix: usize,
}

fn levels() -> [usize; 6] {
    [CHUNKS.len(), THREADS.len(), kernels().len(), LAYOUTS.len(), ARCHITECTURES.len(), MIXES.len()]
}

/// The combinations of one architecture, those of one model and layout side by side.
fn combinations(architecture: usize) -> Vec<Combination> {
    let kernels = kernels();
    let rows = cover(&levels()).into_iter().filter(|row| row[4] == architecture);
    let mut combinations: Vec<Combination> = rows
        .map(|row| Combination {
            way: Way { chunk: CHUNKS[row[0]], threads: THREADS[row[1]], kernels: kernels[row[2]] },
            layout: LAYOUTS[row[3]],
            mix: row[5],
        })
        .collect();
    combinations.sort_by_key(|combination| (combination.mix, combination.layout == KvLayout::F16));
    combinations
}

fn check(architecture: usize) {
    let prompt = tokens(PROMPT, 1);
    let mut base: Option<(usize, KvLayout, Run)> = None;
    for Combination { way, layout, mix } in combinations(architecture) {
        let model = of_architecture(architecture, &MIXES[mix], 1024);
        let known = base.take().filter(|(of, in_layout, _)| (*of, *in_layout) == (mix, layout));
        let (.., want) =
            base.insert(known.unwrap_or_else(|| (mix, layout, run(&model, layout, &Way::plain(PROMPT), &prompt))));
        let length = if way.chunk < 32 { SHORT } else { PROMPT };
        let got = run(&model, layout, &way, &prompt[..length]);
        let what = format!("{}, {}, {layout:?} cache, {way}", ARCHITECTURES[architecture], MIXES[mix].name);
        got.assert_same_as(want, &what);
    }
}

#[test]
fn muse_glimmer_has_the_same_bits_however_it_is_computed() {
    check(0);
}

#[test]
fn llama_with_tied_head_and_rotary_factors_has_the_same_bits_however_it_is_computed() {
    check(1);
}

#[test]
fn llama_with_biases_has_the_same_bits_however_it_is_computed() {
    check(2);
}

#[test]
fn the_combinations_hold_every_pair() {
    let rows = cover(&levels());
    assert_eq!(uncovered(&levels(), &rows), 0);
    let checked: usize = (0..ARCHITECTURES.len()).map(|architecture| combinations(architecture).len()).sum();
    assert_eq!(checked, rows.len());
}
