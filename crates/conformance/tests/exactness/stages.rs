//! A step in stages: captured residual streams, and which logits are asked for.

use muser_conformance::models::{FLOATS, MIXES, tokens};
use muser_conformance::suite::{LAYOUTS, Snapshot};
use muser_model::{LogitsWanted, SequenceInput};

use crate::runs::{Way, fastest, glimmer, new_cache, run};

const LAYERS: [bool; 4] = [true, false, true, false];

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
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
        assert!(Snapshot::of(&cache) == Snapshot::of(&base.cache));
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
        assert!(Snapshot::of(&cache) == Snapshot::of(&base.cache), "{layout:?} cache");
    }
}
