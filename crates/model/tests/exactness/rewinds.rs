//! Going back, and going on differently: the bits are those of a run that never took the wrong turn.

use muser_kv::{PAGE_ROWS, RewindError};

use crate::models::{MIXES, glimmer, tokens};
use crate::runs::{LAYOUTS, Run, Way, extend, fastest, kernels, run, snapshot};

const WINDOW: usize = 100;

#[test]
fn after_a_rewind_another_continuation_has_the_bits_of_a_fresh_run() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 1024);
    let (prompt, other) = (tokens(331, 10), tokens(90, 11));
    for layout in LAYOUTS {
        // Inside the last page, at page borders, and as far back as the extra page allows.
        for rows in [330, 321, 320, 319, 256, 255, 0] {
            let length = if rows == 0 { 90 } else { 331 };
            let probe = Way { kernels: fastest(), threads: 1, chunk: 48 };
            let kept = rows.max(run(&model, layout, &probe, &prompt[..length]).cache.oldest_rewind());
            let straight = [&prompt[..kept], &other].concat();
            let want = run(&model, layout, &Way::plain(straight.len()), &straight);
            for (index, kernels) in kernels().into_iter().enumerate() {
                let way = Way { kernels, threads: index % 2 + 1, chunk: 48 };
                let mut got = run(&model, layout, &way, &prompt[..length]);
                got.truncate(kept);
                extend(&mut way.executor(&model), &mut got, &other, way.chunk);
                got.assert_same_as(&want, &format!("{layout:?} cache, back to {kept}, {way}"));
                assert_eq!(got.logits.len(), want.logits.len());
            }
        }
    }
}

#[test]
fn drafts_taken_back_token_by_token_leave_no_trace() {
    let model = glimmer(&MIXES[0], 100, &[true, false], 1024);
    let prompt = tokens(200, 12);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 2, chunk: 16 };
        let mut executor = way.executor(&model);
        let mut got = run(&model, layout, &way, &prompt[..120]);
        let mut drafted = fastrand::Rng::with_seed(13);
        while got.cache.rows() < prompt.len() {
            // A draft of up to 16 tokens of which a few are right.
            let start = got.cache.rows();
            let right = drafted.usize(1..=4).min(prompt.len() - start);
            let mut draft = tokens(right + drafted.usize(0..12), drafted.u64(..));
            draft[..right].copy_from_slice(&prompt[start..start + right]);
            extend(&mut executor, &mut got, &draft, draft.len());
            got.truncate(start + right);
        }
        let want = run(&model, layout, &Way::plain(prompt.len()), &prompt);
        got.assert_same_as(&want, &format!("{layout:?} cache, {way}"));
    }
}

#[test]
fn a_refused_rewind_changes_nothing() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 1024);
    let prompt = tokens(600, 14);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 1, chunk: 64 };
        let mut got = run(&model, layout, &way, &prompt[..500]);
        let before = snapshot(&got.cache);
        let oldest = got.cache.oldest_rewind();
        assert!((500 - PAGE_ROWS - WINDOW..500).contains(&oldest), "{oldest}");
        let refused = RewindError::WindowGone { layer: 0, wanted_rows: oldest - 1, oldest_possible: oldest };
        assert_eq!(got.cache.truncate(oldest - 1), Err(refused));
        assert_eq!(got.cache.truncate(501), Err(RewindError::BeyondRows { wanted_rows: 501, rows: 500 }));
        assert!(snapshot(&got.cache) == before);
        extend(&mut way.executor(&model), &mut got, &prompt[500..], 64);
        got.assert_same_as(&run(&model, layout, &Way::plain(600), &prompt), &format!("{layout:?} cache, {way}"));
    }
}

#[test]
fn forks_of_one_prefix_go_their_own_ways() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 1024);
    let (prefix, ends) = (tokens(192, 15), [tokens(70, 16), tokens(33, 17)]);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 2, chunk: 64 };
        let mut trunk = run(&model, layout, &way, &prefix);
        let mut executor = way.executor(&model);
        let (mut fork, copied) = (trunk.cache.fork(192).unwrap(), trunk.logits.clone());
        std::mem::swap(&mut fork, &mut trunk.cache);
        let mut branches = [trunk, Run { logits: copied, vocab: model.config().vocab, cache: fork }];
        // By turns, so that each would see what the other writes into a page they share.
        for from in (0..70).step_by(10) {
            for (branch, end) in branches.iter_mut().zip(&ends) {
                let part = from.min(end.len())..(from + 10).min(end.len());
                extend(&mut executor, branch, &end[part], 10);
            }
        }
        for (branch, end) in branches.iter().zip(&ends) {
            let straight = [&prefix[..], end].concat();
            let want = run(&model, layout, &Way::plain(straight.len()), &straight);
            branch.assert_same_as(&want, &format!("{layout:?} cache, {way}"));
        }
    }
}
