//! Several sequences in one step: each has the bits it has alone.

use muser_kv::{KvLayout, SequenceCache};
use muser_model::{LogitsWanted, Model, SequenceInput};
use std::sync::Arc;

use crate::models::{MIXES, WeightMix, glimmer, llama, tokens};
use crate::runs::{LAYOUTS, Run, Way, kernels, new_cache, run};
use muser_weights::testing::LlamaOptions;

/// Rows of each of three sequences in the steps of a schedule, repeated until all are used up: prefills beside decodes,
/// blocks of one row, borders of pages and of the 16 rows of an attention job at odd places.
const STEPS: [[usize; 3]; 6] = [[40, 1, 17], [1, 1, 1], [0, 64, 31], [16, 15, 0], [63, 0, 2], [1, 33, 1]];

fn run_together(model: &Arc<Model>, layout: KvLayout, way: &Way, prompts: &[Vec<u32>; 3]) -> [Run; 3] {
    let mut executor = way.executor(model);
    let vocab = model.config().vocab;
    let mut caches: Vec<SequenceCache> = prompts.iter().map(|_| new_cache(model, layout)).collect();
    let mut logits: [Vec<f32>; 3] = Default::default();
    for (step, rows) in STEPS.iter().cycle().enumerate() {
        let mut batch = Vec::new();
        let mut members = Vec::new();
        for (number, cache) in caches.iter_mut().enumerate() {
            let start = cache.rows();
            let end = (start + rows[number]).min(prompts[number].len());
            if end > start {
                members.push(number);
                batch.push(SequenceInput::new(cache, &prompts[number][start..end], LogitsWanted::All));
            }
        }
        if step % 2 == 1 {
            batch.reverse();
            members.reverse();
        }
        if batch.is_empty() {
            if caches.iter().zip(prompts).all(|(cache, prompt)| cache.rows() == prompt.len()) {
                break;
            }
            continue;
        }
        let mut take = |row: muser_model::LogitsRow, z: &[f32]| {
            let own = &mut logits[members[row.sequence]];
            assert_eq!(own.len(), row.position as usize * vocab, "rows come in order");
            own.extend_from_slice(z);
        };
        executor.forward(&mut batch, &mut take).unwrap();
        batch.iter().for_each(|input| input.outcome.unwrap());
    }
    let mut caches = caches.into_iter();
    logits.map(|logits| Run { logits, vocab, cache: caches.next().unwrap() })
}

fn check(model: &Arc<Model>, mix: &WeightMix) {
    let prompts = [tokens(230, 20), tokens(171, 21), tokens(84, 22)];
    for layout in LAYOUTS {
        let base = [0, 1, 2].map(|number: usize| {
            let prompt = &prompts[number];
            run(model, layout, &Way::plain(prompt.len()), prompt)
        });
        for (index, kernels) in kernels().into_iter().enumerate() {
            for threads in [1, 3 - index % 2] {
                let way = Way { kernels, threads, chunk: 128 };
                for (number, got) in run_together(model, layout, &way, &prompts).iter().enumerate() {
                    let what = format!("{}, {layout:?} cache, sequence {number} of a batch, {way}", mix.name);
                    assert_eq!(got.logits.len(), base[number].logits.len(), "{what}");
                    got.assert_same_as(&base[number], &what);
                }
            }
        }
    }
}

#[test]
fn a_windowed_sequence_has_the_same_bits_in_a_batch_as_alone() {
    check(&glimmer(&MIXES[1], 32, &[true, false], 512), &MIXES[1]);
}

#[test]
fn a_sequence_of_all_weight_types_has_the_same_bits_in_a_batch_as_alone() {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
    check(&llama(&MIXES[7], options, 2, 512), &MIXES[7]);
}
