//! A step in stages: embedding, ranges of layers, captured residual streams, and which logits are asked for.

use muser_kv::SequenceCache;
use muser_model::{Executor, LogitsWanted, Model, SequenceInput};
use std::sync::Arc;

use crate::models::{FLOATS, MIXES, glimmer, tokens};
use crate::runs::{LAYOUTS, Way, assert_same_pages, fastest, kernels, new_cache, run, snapshot};

const LAYERS: [bool; 4] = [true, false, true, false];

/// The residual streams after every layer, and the cache.
fn captured(model: &Arc<Model>, executor: &mut Executor, cache: &mut SequenceCache, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut streams = Vec::new();
    let mut batch = [SequenceInput::new(cache, tokens, LogitsWanted::Last)];
    let all: Vec<usize> = (0..model.config().layers.len()).collect();
    let mut keep = |layer: usize, rows: &[f32]| {
        assert_eq!(layer, streams.len());
        assert_eq!(rows.len(), tokens.len() * model.config().hidden);
        streams.push(rows.to_vec());
    };
    executor.forward_capturing(&mut batch, &all, &mut keep, &mut |_, _| {}).unwrap();
    batch[0].outcome.unwrap();
    streams
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn layers_in_ranges_give_the_residual_streams_that_a_whole_step_passes() {
    let model = glimmer(&MIXES[1], 100, &LAYERS, 512);
    let prompt = tokens(150, 30);
    for (index, kernels) in kernels().into_iter().enumerate() {
        for layout in LAYOUTS {
            let way = Way { kernels, threads: index % 2 + 1, chunk: 75 };
            let mut executor = way.executor(&model);
            for middle in [1, 2, 3] {
                let (mut whole, mut parts) = (new_cache(&model, layout), new_cache(&model, layout));
                for tokens in prompt.chunks(75) {
                    let streams = captured(&model, &mut executor, &mut whole, tokens);
                    let mut stream = executor.embed(tokens).unwrap();
                    for range in [0..middle, middle..LAYERS.len()] {
                        let mut batch = [SequenceInput::new(&mut parts, tokens, LogitsWanted::None)];
                        let end = range.end;
                        executor.run_layers(&mut batch, range, &mut stream).unwrap();
                        batch[0].outcome.unwrap();
                        assert_eq!(bits(&stream), bits(&streams[end - 1]), "{layout:?} cache, layers 0..{end}, {way}");
                    }
                    parts.commit(tokens.len()).unwrap();
                }
                assert_same_pages(&parts, &whole, &format!("{layout:?} cache, cut before layer {middle}, {way}"));
            }
        }
    }
}

#[test]
fn capturing_changes_neither_logits_nor_pages() {
    let model = glimmer(&MIXES[1], 100, &LAYERS, 512);
    let prompt = tokens(100, 31);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 2, chunk: 100 };
        let base = run(&model, layout, &way, &prompt);
        let mut cache = new_cache(&model, layout);
        let mut executor = way.executor(&model);
        let mut batch = [SequenceInput::new(&mut cache, &prompt, LogitsWanted::All)];
        let (mut layers, mut logits) = (Vec::new(), Vec::new());
        let mut seen = |layer, _: &[f32]| layers.push(layer);
        executor.forward_capturing(&mut batch, &[3, 0, 2], &mut seen, &mut |_, z| logits.extend_from_slice(z)).unwrap();
        assert_eq!(layers, [0, 2, 3], "in the order of the graph");
        assert_eq!(bits(&logits), bits(&base.logits));
        assert!(snapshot(&cache) == snapshot(&base.cache));
    }
}

#[test]
fn the_last_row_asked_for_alone_is_the_last_of_all_rows() {
    for (mix, window) in [(&MIXES[1], 100), (&FLOATS, 32)] {
        let model = glimmer(mix, window, &[true, false], 512);
        let prompt = tokens(140, 32);
        for layout in LAYOUTS {
            let way = Way { kernels: fastest(), threads: 2, chunk: 140 };
            let base = run(&model, layout, &Way::plain(140), &prompt);
            let mut executor = way.executor(&model);
            for rows in [1, 2, 33, 140] {
                let mut cache = new_cache(&model, layout);
                let mut batch = [SequenceInput::new(&mut cache, &prompt[..rows], LogitsWanted::Last)];
                let mut last = Vec::new();
                let mut take = |row: muser_model::LogitsRow, z: &[f32]| {
                    assert_eq!((row.sequence, row.position as usize), (0, rows - 1));
                    last.extend_from_slice(z);
                };
                executor.forward(&mut batch, &mut take).unwrap();
                let want = &base.logits[(rows - 1) * base.vocab..rows * base.vocab];
                assert_eq!(bits(&last), bits(want), "{}, {layout:?} cache, {rows} rows", mix.name);
            }
        }
    }
}

#[test]
fn rows_that_only_fill_the_cache_leave_the_same_pages() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 512);
    let prompt = tokens(130, 33);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 1, chunk: 130 };
        let base = run(&model, layout, &way, &prompt);
        let mut cache = new_cache(&model, layout);
        let mut batch = [SequenceInput::new(&mut cache, &prompt, LogitsWanted::None)];
        way.executor(&model).forward(&mut batch, &mut |row, _| panic!("{row:?} was not asked for")).unwrap();
        assert!(snapshot(&cache) == snapshot(&base.cache), "{layout:?} cache");
    }
}
