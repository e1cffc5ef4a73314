//! Attention at the borders of what it reads: pages of 64, the edge of the window, segments of 1024 positions.

use muser_kv::KvLayout;

use super::run::{LAYOUTS, Run, Way};
use crate::backend::{Backend, CaseError, Comparison, Subject};
use crate::models::{MIXES, generated, glimmer_spec, tokens};
use crate::tally::BitTally;

/// Computes `tokens` with steps that end at `borders`, each followed by a step of one token.
fn run_split<B: Backend>(
    subject: &Subject<'_, B>,
    layout: KvLayout,
    way: Way,
    tokens: &[u32],
    borders: &[usize],
) -> Result<Run, CaseError> {
    let mut executor = subject.executor(way.variant, way.chunk)?;
    let mut run = Run::begin(&executor, layout)?;
    for &border in borders {
        let start = run.cache.rows();
        run.extend(&mut executor, &tokens[start..border], way.chunk)?;
        run.extend(&mut executor, &tokens[border..border + 1], 1)?;
    }
    let start = run.cache.rows();
    run.extend(&mut executor, &tokens[start..], way.chunk)?;
    Ok(run)
}

pub(super) fn a_prompt_cut_at_page_and_window_borders_has_the_bits_of_the_whole<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    for window in [32, 100] {
        let edge = window as usize;
        let borders = [1, 31, 32, 33, 63, 64, 65, edge - 1, edge, edge + 1, 2 * edge, 4 * edge - 1, 4 * edge];
        let prompt = tokens(4 * edge + 3, 2);
        let file = generated(&glimmer_spec(&MIXES[1], window, &[true, true, false], 1024), &MIXES[1]);
        let subject = on.load_bytes(format!("window {window}"), file)?;
        for layout in LAYOUTS {
            let base = subject.truth(layout, &prompt)?;
            for (index, border) in borders.into_iter().enumerate() {
                let way = Way { variant: index % on.backend.variants(), chunk: 512 };
                let got = run_split(&subject, layout, way, &prompt, &[border])?;
                let what = subject.describe(way.variant);
                got.compare(&base, &format_args!("{what}, {layout:?} cache, cut at {border}"), tally);
            }
        }
    }
    Ok(())
}

pub(super) fn a_window_of_2048_and_segments_of_1024_give_the_bits_of_the_whole<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let prompt = tokens(2100, 3);
    let file = generated(&glimmer_spec(&MIXES[1], 2048, &[true, false], 4096), &MIXES[1]);
    let subject = on.load_bytes("window 2048", file)?;
    for layout in LAYOUTS {
        let base = subject.truth(layout, &prompt)?;
        for borders in [&[1023, 1025, 2047, 2049][..], &[1024, 2046, 2048]] {
            let way = Way { variant: subject.fastest(), chunk: 600 };
            let got = run_split(&subject, layout, way, &prompt, borders)?;
            let what = subject.describe(way.variant);
            got.compare(&base, &format_args!("{what}, {layout:?} cache, cut at {borders:?}"), tally);
        }
    }
    Ok(())
}
