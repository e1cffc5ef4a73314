//! Appending, taking back and forking, as the scheduler and speculative decoding use them.

mod common;

use std::sync::Arc;

use common::{append, filled, same, spec, write_pending};
use muser_kv::{AppendError, PagePool, RewindError, SequenceCache};

#[test]
fn a_rewind_within_the_extra_page_always_succeeds() {
    let (spec, pool) = (spec(&[100, 256], 4096), PagePool::new(1 << 30));
    for rows in [64, 65, 500, 700, 1023, 1024, 1025, 2000] {
        for back in 0..=64 {
            let mut cache = filled(&spec, &pool, rows);
            assert!(cache.oldest_rewind() + 64 <= rows || cache.oldest_rewind() == 0);
            assert_eq!(cache.truncate(rows - back), Ok(()), "{rows} rows, {back} back");
            assert_eq!(cache.rows(), rows - back);
        }
    }
}

#[test]
fn a_rewound_sequence_continues_as_one_that_never_had_the_rejected_rows() {
    let (spec, pool) = (spec(&[100, 256], 4096), PagePool::new(1 << 30));
    let mut straight = filled(&spec, &pool, 1000);
    let mut detour = filled(&spec, &pool, 1000);
    append(&mut detour, 40, 1);
    detour.truncate(1000).unwrap();
    append(&mut detour, 300, 2);
    append(&mut straight, 300, 2);
    assert!(same(&straight, &detour));
}

#[test]
fn a_cache_keeps_its_lineage_while_it_grows_and_takes_another_when_rows_are_taken_back() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let mut cache = filled(&spec, &pool, 100);
    let grown = cache.lineage();
    append(&mut cache, 500, 0);
    assert_eq!(cache.lineage(), grown, "growth, and pages dropped behind the window");
    let mut seen = vec![grown, filled(&spec, &pool, 100).lineage(), cache.fork(576).unwrap().lineage()];
    cache.truncate(590).unwrap();
    seen.push(cache.lineage());
    cache.truncate(576).unwrap();
    seen.push(cache.lineage());
    cache.begin(10).unwrap();
    cache.abandon();
    seen.push(cache.lineage());
    cache.begin(10).unwrap();
    cache.commit(3).unwrap();
    seen.push(cache.lineage());
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 7);
}

#[test]
fn a_rewind_to_a_window_no_longer_held_is_refused_and_names_the_limit() {
    let (spec, pool) = (spec(&[256, 100], 4096), PagePool::new(1 << 30));
    let mut cache = filled(&spec, &pool, 1000);
    // The query at 1000 sees 901 ..= 1000 through the window of 100; page 14 starts at 896 and page 13 is the extra one.
    // The window of 256 starts at 745 in page 11, so page 10 is held, and 640 + 255 is the first query that needs no more.
    assert_eq!(cache.oldest_rewind(), 13 * 64 + 99);
    let refused = RewindError::WindowGone { layer: 2, wanted_rows: 930, oldest_possible: 931 };
    assert_eq!(cache.truncate(930), Err(refused));
    let refused = RewindError::WindowGone { layer: 1, wanted_rows: 894, oldest_possible: 931 };
    assert_eq!(cache.truncate(894), Err(refused));
    assert!(same(&cache, &filled(&spec, &pool, 1000)));
    assert_eq!(cache.truncate(931), Ok(()));
    assert_eq!(cache.truncate(932), Err(RewindError::BeyondRows { wanted_rows: 932, rows: 931 }));
}

#[test]
fn a_global_cache_rewinds_to_anywhere() {
    let (spec, pool) = (spec(&[], 4096), PagePool::new(1 << 30));
    let mut cache = filled(&spec, &pool, 1000);
    assert_eq!(cache.oldest_rewind(), 0);
    cache.truncate(1).unwrap();
    cache.truncate(0).unwrap();
    assert_eq!(cache.bytes(), 0);
}

#[test]
fn accepting_part_of_a_draft_leaves_the_bytes_of_the_accepted_part_alone() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    for accepted in [0, 1, 23, 24, 25, 40] {
        let (mut whole, mut part) = (filled(&spec, &pool, 1000), filled(&spec, &pool, 1000));
        part.begin(40).unwrap();
        write_pending(&mut part, 3);
        part.commit(accepted).unwrap();
        append(&mut whole, accepted, 3);
        assert!(same(&whole, &part), "{accepted} accepted");
    }
}

#[test]
fn a_chunk_that_does_not_fit_the_budget_leaves_the_cache_as_it_was() {
    let spec = spec(&[100], 4096);
    let pool = PagePool::new(10 * spec.layout().page_bytes());
    let mut cache = filled(&spec, &pool, 200);
    assert_eq!(cache.bytes(), 8 * spec.layout().page_bytes());
    let page_bytes = spec.layout().page_bytes();
    assert!(matches!(cache.begin(256), Err(AppendError::OutOfPages(refused)) if refused.wanted_bytes == page_bytes));
    assert_eq!((cache.pending_rows(), cache.bytes()), (0, 8 * page_bytes));
    assert_eq!(pool.usage().live_pages, 8);
    assert!(same(&cache, &filled(&spec, &PagePool::new(1 << 30), 200)));
    cache.begin(120).unwrap();
}

#[test]
fn misuse_of_the_append_steps_is_refused_by_type() {
    let (spec, pool) = (spec(&[100], 1000), PagePool::new(1 << 30));
    let mut cache = filled(&spec, &pool, 900);
    assert_eq!(cache.begin(101), Err(AppendError::ContextFull { rows: 900, chunk: 101, context: 1000 }));
    assert_eq!(cache.begin(usize::MAX), Err(AppendError::ContextFull { rows: 900, chunk: usize::MAX, context: 1000 }));
    assert_eq!(cache.commit(1), Err(AppendError::CommitBeyondPending { wanted: 1, pending: 0 }));
    assert_eq!(cache.pending_pages_mut(0).len(), 0);
    cache.begin(100).unwrap();
    assert_eq!(cache.begin(1), Err(AppendError::AlreadyPending { pending: 100 }));
    assert_eq!(cache.truncate(890), Err(RewindError::RowsPending { pending: 100 }));
    assert_eq!(cache.pending_pages_mut(1).map(|(page, _)| page).collect::<Vec<_>>(), [14, 15]);
}

#[test]
fn a_fork_shares_its_pages_and_costs_nothing_until_it_grows() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let original = filled(&spec, &pool, 1000);
    let live = pool.usage().live_pages;
    let mut fork = original.fork(960).unwrap();
    assert_eq!(pool.usage().live_pages, live);
    assert_eq!(fork.rows(), 960);
    append(&mut fork, 40, 0);
    // Both now hold 1000 rows of the same content, the fork's last page being its own.
    assert!(same(&original, &fork));
    append(&mut fork, 500, 9);
    assert!(same(&original, &filled(&spec, &pool, 1000)));
    assert!(matches!(original.fork(961), Err(RewindError::NotWholePages { wanted_rows: 961 })));
    assert!(matches!(original.fork(1024), Err(RewindError::BeyondRows { .. })));
    assert!(matches!(original.fork(896), Err(RewindError::WindowGone { layer: 1, .. })));
}

#[test]
fn cutting_a_shared_page_copies_it_and_the_other_cache_keeps_its_rows() {
    let spec = spec(&[100], 4096);
    let page_bytes = spec.layout().page_bytes();
    let tight = PagePool::new(34 * page_bytes);
    let original = filled(&spec, &tight, 960);
    let mut fork = original.fork(960).unwrap();
    let live = tight.usage().live_pages;
    fork.truncate(930).unwrap();
    assert_eq!(tight.usage().live_pages, live + 2);
    assert!(same(&original, &filled(&spec, &PagePool::new(1 << 30), 960)));
    let mut expected = filled(&spec, &PagePool::new(1 << 30), 960);
    expected.truncate(930).unwrap();
    assert!(same(&fork, &expected));
}

#[test]
fn a_cut_that_cannot_copy_a_shared_page_is_refused_and_changes_nothing() {
    let spec = spec(&[100, 100], 4096);
    let roomy = PagePool::new(1 << 30);
    // After 256 rows 10 pages are held: room for two of the three copies.
    let pool = PagePool::new(12 * spec.layout().page_bytes());
    let mut original = SequenceCache::new(Arc::clone(&spec), pool.clone());
    for _ in 0..4 {
        append(&mut original, 64, 0);
    }
    assert_eq!(pool.usage().live_pages, 10);
    let fork = original.fork(256).unwrap();
    assert!(matches!(original.truncate(250), Err(RewindError::OutOfPages(_))));
    for cache in [&original, &fork] {
        assert!(same(cache, &filled(&spec, &roomy, 256)));
    }
    drop(fork);
    assert_eq!(original.truncate(250), Ok(()));
}
