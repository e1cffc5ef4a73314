//! Rewinds that are refused.

use muser_conformance::models::{MIXES, tokens};
use muser_conformance::suite::{LAYOUTS, Snapshot};
use muser_kv::{PAGE_ROWS, RewindError};

use crate::runs::{Way, assert_same, fastest, glimmer, run};

const WINDOW: usize = 100;

#[test]
fn a_refused_rewind_changes_nothing() {
    let model = glimmer(&MIXES[1], 100, &[true, false], 1024);
    let prompt = tokens(600, 14);
    for layout in LAYOUTS {
        let way = Way { kernels: fastest(), threads: 1, chunk: 64 };
        let mut got = run(&model, layout, &way, &prompt[..500]);
        let before = Snapshot::of(&got.cache);
        let oldest = got.cache.oldest_rewind();
        assert!((500 - PAGE_ROWS - WINDOW..500).contains(&oldest), "{oldest}");
        let refused = RewindError::WindowGone { layer: 0, wanted_rows: oldest - 1, oldest_possible: oldest };
        assert_eq!(got.cache.truncate(oldest - 1), Err(refused));
        assert_eq!(got.cache.truncate(501), Err(RewindError::BeyondRows { wanted_rows: 501, rows: 500 }));
        assert!(Snapshot::of(&got.cache) == before);
        got.extend(&mut way.executor(&model), &prompt[500..], 64).unwrap();
        assert_same(&got, &run(&model, layout, &Way::plain(600), &prompt), &format!("{layout:?} cache"));
    }
}
