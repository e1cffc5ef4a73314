//! Pages leaving one cache and becoming another, whole or not at all.

mod common;

use std::sync::Arc;

use common::{append, filled, same, spec, write_pending};
use muser_kv::{DetachedCache, ExportError, InstallError, PagePool, PageSet, SequenceCache};

const SETS: [PageSet; 2] = [PageSet::Window, PageSet::Held];

/// Every (layer, page) that `detached` expects.
fn expected(detached: &DetachedCache, layers: usize) -> Vec<(usize, usize)> {
    (0..layers).flat_map(|layer| detached.expected_pages(layer).map(move |page| (layer, page))).collect()
}

#[test]
fn a_cache_rebuilt_from_its_exported_pages_in_any_order_is_the_same_cache_and_goes_on_alike() {
    let (spec, pool) = (spec(&[100, 256], 4096), PagePool::new(1 << 30));
    let mut random = fastrand::Rng::with_seed(5);
    for rows in [0, 1, 63, 64, 65, 700, 1000, 1024] {
        let original = filled(&spec, &pool, rows);
        let mut detached = DetachedCache::new(Arc::clone(&spec), pool.clone(), rows, PageSet::Held).unwrap();
        let mut pages = expected(&detached, 3);
        random.shuffle(&mut pages);
        for (layer, page) in pages {
            let exported = original.export_page(layer, page).unwrap();
            assert_eq!(exported.rows, (rows - page * 64).min(64));
            detached.install_page(layer, page, exported.bytes).unwrap();
        }
        let mut rebuilt = detached.finish().unwrap();
        assert!(same(&original, &rebuilt));
        assert_eq!(rebuilt.bytes(), spec.predicted_bytes(rows));
        let mut original = original;
        append(&mut original, 77, 1);
        append(&mut rebuilt, 77, 1);
        assert!(same(&original, &rebuilt));
    }
}

#[test]
fn the_window_alone_is_enough_to_go_on() {
    let (spec, pool) = (spec(&[100, 256], 4096), PagePool::new(1 << 30));
    let mut original = filled(&spec, &pool, 1000);
    let mut detached = DetachedCache::new(Arc::clone(&spec), pool.clone(), 1000, PageSet::Window).unwrap();
    for (layer, page) in expected(&detached, 3) {
        detached.install_page(layer, page, original.export_page(layer, page).unwrap().bytes).unwrap();
    }
    let mut rebuilt = detached.finish().unwrap();
    assert_eq!(original.bytes() - rebuilt.bytes(), 2 * spec.layout().page_bytes());
    append(&mut original, 300, 1);
    append(&mut rebuilt, 300, 1);
    assert!(same(&original, &rebuilt));
}

#[test]
fn held_prefix_pages_are_shared_and_only_the_missing_ones_copied() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let sender = filled(&spec, &pool, 1000);
    let receiver = filled(&spec, &pool, 640);
    let live = pool.usage().live_pages;
    let mut detached = DetachedCache::new(Arc::clone(&spec), pool.clone(), 1000, PageSet::Window).unwrap();
    for (layer, page) in expected(&detached, 2) {
        if page < 10 {
            let sealed = receiver.sealed_page(layer, page).unwrap();
            detached.install_shared(layer, page, &sealed).unwrap();
        } else {
            detached.install_page(layer, page, sender.export_page(layer, page).unwrap().bytes).unwrap();
        }
    }
    let copied: usize = (0..2).map(|layer| spec.pages_to_ship(layer, 1000, 640).len()).sum();
    assert_eq!(pool.usage().live_pages, live + copied);
    drop(receiver);
    let rebuilt = detached.finish().unwrap();
    assert!(rebuilt.pages(0).iter().eq(sender.pages(0).iter()));
}

#[test]
fn a_set_that_lacks_any_one_page_is_refused_whole_and_leaves_no_page_behind() {
    let spec = spec(&[100], 4096);
    let original = filled(&spec, &PagePool::new(1 << 30), 500);
    for set in SETS {
        let pool = PagePool::new(1 << 30);
        let empty = || DetachedCache::new(Arc::clone(&spec), pool.clone(), 500, set).unwrap();
        let pages = expected(&empty(), 2);
        for &(layer, page) in &pages {
            let mut detached = empty();
            for &(other_layer, other) in pages.iter().filter(|&&at| at != (layer, page)) {
                let bytes = original.export_page(other_layer, other).unwrap().bytes;
                detached.install_page(other_layer, other, bytes).unwrap();
            }
            assert_eq!(detached.finish().unwrap_err(), InstallError::Missing { layer, page, missing: 1 });
            assert_eq!(pool.usage().live_pages, 0);
        }
        let (layer, page) = pages[0];
        assert_eq!(empty().finish().unwrap_err(), InstallError::Missing { layer, page, missing: pages.len() });
    }
}

#[test]
fn every_malformed_page_is_refused_by_type_and_changes_nothing() {
    let spec = spec(&[100], 4096);
    let page_bytes = spec.layout().page_bytes();
    let pool = PagePool::new(3 * page_bytes);
    let new = |rows| DetachedCache::new(Arc::clone(&spec), pool.clone(), rows, PageSet::Held);
    assert_eq!(new(4097).unwrap_err(), InstallError::TooManyRows { rows: 4097, context: 4096 });
    let mut detached = new(500).unwrap();
    let full = vec![1; page_bytes];
    let refused = InstallError::NoSuchLayer { layer: 2, page: 7, layers: 2 };
    assert_eq!(detached.install_page(2, 7, &full), Err(refused));
    for (layer, page, expected) in [(0, 8, 0..8), (1, 4, 5..8), (1, 8, 5..8), (1, usize::MAX, 5..8)] {
        let refused = InstallError::UnexpectedPage { layer, page, expected };
        assert_eq!(detached.install_page(layer, page, &full), Err(refused));
    }
    for got in [0, page_bytes - 1] {
        let refused = InstallError::PageLength { layer: 0, page: 0, got, expected: page_bytes };
        assert_eq!(detached.install_page(0, 0, &full[..got]), Err(refused));
    }
    // Page 7 holds 500 - 448 = 52 rows: a single byte behind them is not canonical.
    for range in [spec.layout().k_rows(0, 52..53), spec.layout().v_scales(1, 63..64)] {
        let mut page = vec![0; page_bytes];
        page[range.start] = 1;
        let refused = InstallError::DirtyPadding { layer: 0, page: 7, rows: 52 };
        assert_eq!(detached.install_page(0, 7, &page), Err(refused));
    }
    detached.install_page(0, 0, &full).unwrap();
    assert_eq!(detached.install_page(0, 0, &full), Err(InstallError::Duplicate { layer: 0, page: 0 }));
    detached.install_page(0, 1, &full).unwrap();
    detached.install_page(0, 2, &full).unwrap();
    assert!(matches!(detached.install_page(0, 3, &full), Err(InstallError::OutOfPages(_))));
    assert_eq!(detached.finish().unwrap_err(), InstallError::Missing { layer: 0, page: 3, missing: 8 });
}

#[test]
fn only_sealed_rows_leave_the_cache() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let mut cache = filled(&spec, &pool, 500);
    assert_eq!(cache.export_page(1, 4), Err(ExportError::NotHeld { layer: 1, page: 4 }));
    assert_eq!(cache.export_page(0, 8), Err(ExportError::NotHeld { layer: 0, page: 8 }));
    assert_eq!(cache.export_page(2, 0), Err(ExportError::NotHeld { layer: 2, page: 0 }));
    assert_eq!(cache.sealed_page(0, 7).unwrap_err(), ExportError::NotFull { layer: 0, page: 7, rows: 52 });
    let sealed = cache.sealed_page(1, 5).unwrap();
    let before = sealed.bytes().to_vec();
    cache.begin(300).unwrap();
    write_pending(&mut cache, 1);
    assert_eq!(cache.export_page(0, 7), Err(ExportError::RowsPending { layer: 0, page: 7 }));
    assert_eq!(cache.export_page(0, 9), Err(ExportError::RowsPending { layer: 0, page: 9 }));
    assert_eq!(cache.export_page(0, 6).unwrap().rows, 64);
    cache.commit(300).unwrap();
    // The cache has dropped the page behind its window; the sender still has it.
    assert_eq!(cache.export_page(1, 5), Err(ExportError::NotHeld { layer: 1, page: 5 }));
    assert_eq!(sealed.clone().bytes(), before);
}

#[test]
fn a_share_knows_whether_it_is_the_last_one() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let cache = filled(&spec, &pool, 512);
    let sealed = cache.sealed_page(0, 3).unwrap();
    assert!(sealed.is_shared());
    drop(cache);
    assert!(!sealed.is_shared());
    let other = sealed.clone();
    assert!(sealed.is_shared() && other.is_shared());
    drop(other);
    assert!(!sealed.is_shared());
    assert_eq!(pool.usage().live_pages, 1);
}

#[test]
fn a_sealed_page_is_refused_where_the_sequence_has_no_full_page() {
    let (spec, pool) = (spec(&[100], 4096), PagePool::new(1 << 30));
    let cache: SequenceCache = filled(&spec, &pool, 512);
    let sealed = cache.sealed_page(0, 7).unwrap();
    let mut detached = DetachedCache::new(Arc::clone(&spec), pool, 500, PageSet::Held).unwrap();
    let refused = InstallError::NotFull { layer: 0, page: 7, rows: 52 };
    assert_eq!(detached.install_shared(0, 7, &sealed), Err(refused));
}
