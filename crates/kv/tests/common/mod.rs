//! A small cache and a writer whose bytes are a function of (salt, layer, position), for the scenario tests.

#![allow(dead_code, reason = "each test file uses some of these")]

use std::sync::Arc;

use muser_kv::{CacheSpec, KvLayout, LayerSpec, PAGE_ROWS, PageLayout, PagePool, SequenceCache};

/// A cache shape with a global layer and one local layer per window.
pub fn spec(windows: &[u32], context: usize) -> Arc<CacheSpec> {
    let local = windows.iter().map(|&window| LayerSpec::local(window));
    let layers = std::iter::once(LayerSpec::GLOBAL).chain(local).collect();
    let layout = PageLayout::new(KvLayout::Q8, 2, 32).unwrap();
    Arc::new(CacheSpec::new(layers, layout, context, CacheSpec::EXTRA_PAGES_DEFAULT).unwrap())
}

/// A cache of `rows` rows, filled in one chunk.
pub fn filled(spec: &Arc<CacheSpec>, pool: &PagePool, rows: usize) -> SequenceCache {
    let mut cache = SequenceCache::new(Arc::clone(spec), pool.clone());
    append(&mut cache, rows, 0);
    cache
}

/// Appends `chunk` rows and commits them.
pub fn append(cache: &mut SequenceCache, chunk: usize, salt: u8) {
    cache.begin(chunk).unwrap();
    write_pending(cache, salt);
    cache.commit(chunk).unwrap();
}

/// Writes every pending row, no byte of it zero.
pub fn write_pending(cache: &mut SequenceCache, salt: u8) {
    let layout = cache.spec().layout();
    let positions = cache.rows()..cache.rows() + cache.pending_rows();
    for layer in 0..cache.spec().layers().len() {
        for (page, bytes) in cache.pending_pages_mut(layer) {
            for position in positions.clone().filter(|position| position / PAGE_ROWS == page) {
                let row = position % PAGE_ROWS..position % PAGE_ROWS + 1;
                let byte = u8::try_from((position * 7 + layer * 31 + usize::from(salt) * 101) % 255 + 1).unwrap();
                for head in 0..layout.kv_heads() {
                    for range in [
                        layout.k_rows(head, row.clone()),
                        layout.v_rows(head, row.clone()),
                        layout.k_scales(head, row.clone()),
                        layout.v_scales(head, row.clone()),
                    ] {
                        bytes[range].fill(byte);
                    }
                }
            }
        }
    }
}

/// True if two caches have the same rows, in the same pages with the same bytes.
pub fn same(ours: &SequenceCache, theirs: &SequenceCache) -> bool {
    ours.rows() == theirs.rows()
        && (0..ours.spec().layers().len()).all(|layer| {
            let (a, b) = (ours.pages(layer), theirs.pages(layer));
            a.first_page() == b.first_page() && a.iter().eq(b.iter())
        })
}
