//! Decode allocates nothing once the pool is reserved.

mod common;

use std::sync::Arc;

use allocation_counter::measure;
use common::{append, filled, spec};
use muser_kv::{PagePool, SequenceCache};

/// Rows the decode stays below.
const ROWS: usize = 4096;

#[test]
fn decode_with_a_reserved_pool_allocates_nothing() {
    let (spec, pool) = (spec(&[1, 100, 256], 8192), PagePool::new(1 << 30));
    pool.reserve(spec.layout().page_bytes(), spec.most_pages(ROWS, 512)).unwrap();
    let mut cache = SequenceCache::new(Arc::clone(&spec), pool.clone());
    append(&mut cache, 512, 0);
    let mut bytes_read = 0;
    let counted = measure(|| {
        for step in 0..2500 {
            // Single tokens, with a draft of 8 now and then of which 3 are accepted, and a rewind after some.
            let chunk = if step % 7 == 0 { 8 } else { 1 };
            cache.begin(chunk).unwrap();
            for layer in 0..4 {
                cache.pending_pages_mut(layer).for_each(|(_, bytes)| bytes[..2].copy_from_slice(&[1, 2]));
                bytes_read += cache.pages(layer).iter().map(<[u8]>::len).sum::<usize>();
            }
            match step % 21 {
                0 => cache.commit(3).unwrap(),
                7 => cache.abandon(),
                _ => cache.commit(chunk).unwrap(),
            }
            if step % 50 == 0 {
                cache.truncate(cache.rows() - 2).unwrap();
            }
        }
    });
    assert!((3000..ROWS - 8).contains(&cache.rows()) && bytes_read > 0, "{} rows", cache.rows());
    assert_eq!(counted.count_total, 0, "{counted:?}");
    // Nothing was given back to the system either: every page is live or listed.
    let held = pool.usage();
    assert_eq!(held.live_pages + held.free_pages, spec.most_pages(ROWS, 512));
}

#[test]
fn dropping_a_cache_allocates_nothing_even_from_a_pool_that_was_never_reserved() {
    let (spec, pool) = (spec(&[], 8192), PagePool::new(1 << 30));
    let cache = filled(&spec, &pool, 2000);
    assert_eq!(measure(|| drop(cache)).count_total, 0);
}

#[test]
fn a_reservation_leaves_room_for_the_pages_that_are_already_live() {
    let (spec, pool) = (spec(&[], 8192), PagePool::new(1 << 30));
    let cache = filled(&spec, &pool, 7 * 64);
    pool.reserve(spec.layout().page_bytes(), 8).unwrap();
    assert_eq!(measure(|| drop(cache)).count_total, 0);
}

#[test]
fn the_counter_sees_what_an_unreserved_pool_allocates() {
    let (spec, pool) = (spec(&[100], 8192), PagePool::new(1 << 30));
    let mut cache = SequenceCache::new(Arc::clone(&spec), pool);
    let counted = measure(|| append(&mut cache, 65, 0));
    assert!(counted.count_total >= 4, "{counted:?}");
}
