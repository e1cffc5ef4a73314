//! Where attention changes what it reads: pages of 64, the edge of the window, segments of 1024 positions.

use muser_kv::{KvLayout, PAGE_ROWS};
use muser_model::LogitsWanted;

use crate::models::{FLOATS, MIXES, glimmer, tokens};
use crate::runs::{LAYOUTS, Run, Way, extend, fastest, kernels, new_cache, run};

/// Computes `tokens` with steps that end at `borders`, each followed by a step of one token.
fn run_split(
    model: &std::sync::Arc<muser_model::Model>,
    layout: KvLayout,
    way: &Way,
    parts: (&[u32], &[usize]),
) -> Run {
    let (tokens, borders) = parts;
    let mut run = Run { logits: Vec::new(), vocab: model.config().vocab, cache: new_cache(model, layout) };
    let mut executor = way.executor(model);
    for &border in borders {
        let start = run.cache.rows();
        extend(&mut executor, &mut run, &tokens[start..border], way.chunk);
        extend(&mut executor, &mut run, &tokens[border..border + 1], 1);
    }
    let start = run.cache.rows();
    extend(&mut executor, &mut run, &tokens[start..], way.chunk);
    run
}

#[test]
fn a_prompt_cut_at_page_and_window_borders_has_the_bits_of_the_whole() {
    let kernels = kernels();
    for window in [32, 100] {
        let edge = window as usize;
        let borders = [1, 31, 32, 33, 63, 64, 65, edge - 1, edge, edge + 1, 2 * edge, 4 * edge - 1, 4 * edge];
        let prompt = tokens(4 * edge + 3, 2);
        let model = glimmer(&MIXES[1], window, &[true, true, false], 1024);
        for layout in LAYOUTS {
            let base = run(&model, layout, &Way::plain(prompt.len()), &prompt);
            for (index, border) in borders.into_iter().enumerate() {
                let way = Way { kernels: kernels[index % kernels.len()], threads: index % 3 + 1, chunk: 512 };
                let got = run_split(&model, layout, &way, (&prompt, &[border]));
                got.assert_same_as(&base, &format!("window {window}, {layout:?} cache, cut at {border}, {way}"));
            }
        }
    }
}

#[test]
fn a_window_of_2048_and_segments_of_1024_give_the_bits_of_the_whole() {
    let prompt = tokens(2100, 3);
    let model = glimmer(&MIXES[1], 2048, &[true, false], 4096);
    for layout in LAYOUTS {
        let base = run(&model, layout, &Way::plain(prompt.len()), &prompt);
        for (threads, borders) in [(2, &[1023, 1025, 2047, 2049][..]), (1, &[1024, 2046, 2048])] {
            let way = Way { kernels: fastest(), threads, chunk: 600 };
            let got = run_split(&model, layout, &way, (&prompt, borders));
            got.assert_same_as(&base, &format!("{layout:?} cache, cut at {borders:?}, {way}"));
        }
    }
}

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
