//! Semantics of the attention window: positions that see a token, and pages that a cache holds.

use muser_conformance::models::{ARCHITECTURES, FLOATS, MIXES, file_of_architecture, tokens};
use muser_conformance::suite::LAYOUTS;
use muser_kv::{KvLayout, PAGE_ROWS};
use muser_model::LogitsWanted;

use crate::runs::{Way, fastest, glimmer, load, new_cache, run};

/// With one local layer and nothing that hides a difference, a token shows in the logits of exactly the positions whose
/// window holds it. Cuts change nothing about that.
#[test]
fn a_token_is_seen_for_exactly_as_many_positions_as_the_window_has() {
    for (window, count) in [(32, 140), (100, 330), (2048, 2080)] {
        let edge = window as usize;
        let model = glimmer(&FLOATS, window, &[true], 4096);
        let mut changed = tokens(count, 4);
        let prompt = changed.clone();
        let at = 5;
        changed[at] = (changed[at] + 1) % 256;
        for layout in LAYOUTS {
            let way = Way { kernels: fastest(), threads: 2, chunk: 64 };
            let (one, other) = (run(&model, layout, &way, &prompt), run(&model, layout, &way, &changed));
            let rows = one.logits.chunks_exact(one.vocab).zip(other.logits.chunks_exact(one.vocab));
            let differing: Vec<usize> = rows.enumerate().filter(|(_, (a, b))| a != b).map(|(row, _)| row).collect();
            let (first, last) = (differing[0], differing[differing.len() - 1]);
            assert_eq!((first, last), (at, at + edge - 1), "window {window}, {layout:?} cache");
        }
    }
}

#[test]
fn a_global_layer_sees_the_first_token_from_anywhere_and_a_later_one_never() {
    let model = glimmer(&FLOATS, 32, &[false], 1024);
    let prompt = tokens(300, 5);
    let (mut first, mut last) = (prompt.clone(), prompt.clone());
    first[0] = (first[0] + 1) % 256;
    last[299] = (last[299] + 1) % 256;
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 1, chunk: 300 };
        let [base, first, last] = [&prompt, &first, &last].map(|tokens| run(&model, layout, &way, tokens).logits);
        let end = 299 * model.config().vocab;
        assert_ne!(base[end..], first[end..], "{layout:?} cache");
        assert!(base[..end].iter().zip(&last).all(|(a, b)| a.to_bits() == b.to_bits()), "{layout:?} cache");
        assert_ne!(base[end..], last[end..], "{layout:?} cache");
    }
}

#[test]
fn a_local_layer_holds_its_window_and_a_page_however_long_the_prompt() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 4096);
    let mut executor = Way { kernels: fastest(), threads: 2, chunk: 64 }.executor(&model);
    let mut cache = new_cache(&model, KvLayout::Q8);
    let mut most = 0;
    for tokens in tokens(1000, 6).chunks(33) {
        let mut batch = [muser_model::SequenceInput::new(&mut cache, tokens, LogitsWanted::None)];
        executor.forward(&mut batch, &mut |row, _| panic!("logits of {row:?} were not asked for")).unwrap();
        batch[0].outcome.unwrap();
        most = most.max(cache.pages(0).as_slice().len());
    }
    // 99 older rows are in three pages at most, one more is kept for rewinds, and the row to come may begin the last.
    assert!(most * PAGE_ROWS <= 4 * PAGE_ROWS && most > 2, "{most} pages");
    assert_eq!(cache.pages(1).as_slice().len(), 1000_usize.div_ceil(PAGE_ROWS));
}

/// Equal bits would mean little if a model said the same everywhere, or nothing but the soft cap's limits.
#[test]
fn every_model_says_something_else_at_every_position() {
    let prompt = vec![5; 40];
    for (architecture, name) in ARCHITECTURES.into_iter().enumerate() {
        for mix in MIXES.iter().chain([&FLOATS]) {
            let model = load(file_of_architecture(architecture, mix, 64));
            let way = Way { kernels: fastest(), threads: 1, chunk: 40 };
            let run = run(&model, KvLayout::Q8, &way, &prompt);
            let size = (run.logits.iter().map(|z| z * z).sum::<f32>() / run.logits.len() as f32).sqrt();
            assert!((0.3..8.0).contains(&size), "{name}, {}: {size}", mix.name);
            // The same token again and again: only its place in the sequence can make a difference.
            let rows: Vec<&[f32]> = run.logits.chunks_exact(run.vocab).collect();
            assert!(rows.windows(2).all(|two| two[0] != two[1]), "{name}, {}", mix.name);
        }
    }
}
