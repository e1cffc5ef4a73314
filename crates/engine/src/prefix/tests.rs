//! The index by itself: which pages an entry keeps, what is forgotten first, and what is never given away.

use muser_kv::{KvIdentity, KvLayout, LayerSpec, PageLayout, names_of};

use super::*;

const IDENTITY: KvIdentity = KvIdentity::PROCESS_LOCAL;

/// Caches of one layer per window.
struct World {
    spec: Arc<CacheSpec>,
    pool: PagePool,
    index: PrefixIndex,
}

impl World {
    /// An index that keeps up to `pages` pages.
    fn new(windows: &[Option<u32>], pages: usize) -> Self {
        let layers = windows.iter().map(|&window| LayerSpec { window }).collect();
        let layout = PageLayout::new(KvLayout::Q8, 1, 8).unwrap();
        let spec = Arc::new(CacheSpec::new(layers, layout, 4096, 1).unwrap());
        let index = PrefixIndex::new(Arc::clone(&spec), pages * layout.page_bytes());
        Self { spec, pool: PagePool::new(1 << 30), index }
    }

    /// A cache of `rows` rows that was filled in chunks of 50.
    fn cache(&self, rows: usize) -> SequenceCache {
        let mut cache = SequenceCache::new(Arc::clone(&self.spec), self.pool.clone());
        while cache.rows() < rows {
            let chunk = 50.min(rows - cache.rows());
            cache.begin(chunk).unwrap();
            cache.commit(chunk).unwrap();
        }
        cache
    }

    /// Keeps all whole pages of a sequence of these tokens.
    fn keep(&mut self, tokens: &[u32]) {
        let cache = self.cache(tokens.len());
        self.index.keep(&names(tokens), &cache);
    }

    fn found(&self, tokens: &[u32]) -> (usize, usize) {
        let Match { resumable, known } = self.index.longest(&names(tokens));
        (resumable, known)
    }

    /// Pages kept; the pool holds no others, since no sequence runs.
    fn pages(&self) -> usize {
        assert_eq!(self.pool.usage().live_bytes, self.index.bytes());
        self.pool.usage().live_pages
    }
}

fn names(tokens: &[u32]) -> Vec<PageName> {
    names_of(&IDENTITY, tokens).collect()
}

/// Pages of tokens: each page is 64 times its letter.
fn text(letters: &str) -> Vec<u32> {
    letters.bytes().flat_map(|letter| [u32::from(letter); PAGE_ROWS]).collect()
}

#[test]
fn an_entry_keeps_what_resuming_needs_and_no_more() {
    let mut world = World::new(&[None, Some(100), Some(1)], 1000);
    world.keep(&text("abcdef"));
    // Six pages of the global layer. The query at 384 sees 285 and later in the window of 100, and in that of 1 itself.
    assert_eq!(world.pages(), 6 + 2);
    assert_eq!(world.found(&text("abcdef")), (6, 6));
    // Nothing can resume where a window is gone, but the tokens are known.
    assert_eq!(world.found(&text("abcde")), (0, 5));
    assert_eq!(world.found(&text("abcxyz")), (0, 3));
    assert_eq!(world.found(&text("xbcdef")), (0, 0));
}

#[test]
fn a_prompt_resumes_from_pages_of_different_entries() {
    let mut world = World::new(&[None, Some(64)], 1000);
    world.keep(&text("abc"));
    world.keep(&text("abcde"));
    for (tokens, found) in [("abcx", (3, 3)), ("abcdx", (3, 4)), ("abcdefg", (5, 5)), ("ab", (0, 2))] {
        assert_eq!(world.found(&text(tokens)), found, "{tokens}");
    }
    let pool = world.pool.clone();
    let resumed = world.index.resume(&names(&text("abc")), &pool);
    assert_eq!(resumed.rows(), 192);
    assert_eq!(resumed.bytes(), (3 + 1) * world.spec.layout().page_bytes());
    drop(resumed);
    // Five pages of the global layer; of the local one the third and the fifth.
    assert_eq!(world.pages(), 5 + 2);
}

#[test]
fn a_cache_that_has_gone_past_a_window_gives_nothing() {
    let mut world = World::new(&[None, Some(64)], 1000);
    let cache = world.cache(500);
    for cut in [1, 4, 5] {
        world.index.keep(&names(&text("abcdefg"))[..cut], &cache);
    }
    assert_eq!(world.index.bytes(), 0);
    // The page behind the window lets the cache go back this far.
    world.index.keep(&names(&text("abcdefg"))[..6], &cache);
    drop(cache);
    assert_eq!((world.pages(), world.found(&text("abcdefg"))), (6 + 1, (6, 6)));
}

#[test]
fn nothing_is_kept_of_less_than_a_page_or_of_rows_that_do_not_exist() {
    let mut world = World::new(&[None], 1000);
    world.keep(&text("a")[..63]);
    let cache = world.cache(100);
    world.index.keep(&names(&text("ab")), &cache);
    drop(cache);
    assert_eq!((world.pages(), world.found(&text("ab"))), (0, (0, 0)));
}

#[test]
fn a_prefix_without_windows_is_forgotten_from_its_end_page_by_page() {
    let mut world = World::new(&[None, None], 1000);
    world.keep(&text("abcd"));
    for left in (0..4).rev() {
        assert!(world.index.evict_one());
        assert_eq!((world.pages(), world.found(&text("abcd"))), (2 * left, (left, left)));
    }
    assert!(!world.index.evict_one());
}

#[test]
fn a_prefix_whose_shorter_cuts_no_longer_have_their_window_is_forgotten_whole() {
    let mut world = World::new(&[None, Some(64)], 1000);
    world.keep(&text("abcd"));
    assert!(world.index.evict_one());
    assert_eq!((world.pages(), world.index.evict_one()), (0, false));
    // Where another entry keeps the window of the shorter cut, it is not.
    world.keep(&text("abc"));
    world.keep(&text("abcd"));
    world.index.keep(&names(&text("abc")), &world.cache(200));
    // The oldest is that of four pages; its shorter cut is an entry already.
    assert!(world.index.evict_one());
    assert_eq!((world.pages(), world.found(&text("abcd"))), (3 + 1, (3, 3)));
    assert!(world.index.evict_one());
    assert_eq!((world.pages(), world.index.evict_one()), (0, false));
}

#[test]
fn what_is_forgotten_takes_no_page_from_what_shares_it() {
    let mut world = World::new(&[None, Some(64)], 1000);
    world.keep(&text("abcd"));
    world.keep(&text("abcde"));
    world.keep(&text("abcx"));
    let all = world.pages();
    assert!(world.index.evict_one());
    // Only the window's page of the first entry was its alone.
    assert_eq!(world.pages(), all - 1);
    assert_eq!((world.found(&text("abcde")), world.found(&text("abcx"))), ((5, 5), (4, 4)));
    assert!(world.index.evict_one());
    assert_eq!((world.found(&text("abcde")), world.found(&text("abcx"))), ((0, 3), (4, 4)));
    assert_eq!(world.pages(), 4 + 1);
    while world.index.evict_one() {}
    assert_eq!(world.pages(), 0);
}

#[test]
fn the_budget_forgets_the_least_recently_used_and_even_the_newest_if_it_alone_is_too_large() {
    let mut world = World::new(&[None], 7);
    world.keep(&text("abc"));
    world.keep(&text("xyz"));
    world.keep(&text("abc"));
    world.keep(&text("mn"));
    assert_eq!(world.pages(), 7);
    assert_eq!(["abc", "xyz", "mn"].map(|letters| world.found(&text(letters)).0), [3, 2, 2]);
    world.keep(&text("ABCDEFGHI"));
    assert_eq!((world.pages(), world.found(&text("ABCDEFGHI"))), (7, (7, 7)));
    let mut local = World::new(&[None, Some(64)], 4);
    local.keep(&text("abcd"));
    assert_eq!(local.pages(), 0);
}

#[test]
fn pages_in_use_are_those_that_a_running_sequence_holds_too() {
    let mut world = World::new(&[None, Some(64)], 1000);
    let abc = names(&text("abc"));
    world.keep(&text("abc"));
    assert_eq!(world.index.pages_in_use(&abc), 0);
    let pool = world.pool.clone();
    let running = world.index.resume(&abc, &pool);
    assert_eq!(world.index.pages_in_use(&abc), 3 + 1);
    assert_eq!(world.index.pages_in_use(&abc[..2]), 2);
    drop(running);
    assert_eq!(world.index.pages_in_use(&abc), 0);
}

#[test]
fn what_comes_before_a_page_that_is_taken_back_can_still_be_resumed_from() {
    let cheat = Maker([7; 32]);
    for (windows, resumable) in [(&[None][..], 4), (&[None, Some(1)], 4), (&[None, Some(100)], 0)] {
        let mut world = World::new(windows, 1000);
        let (text, other) = (text("abcdef"), text("abcxyz"));
        let ours = world.cache(4 * PAGE_ROWS);
        // Pages of four letters are ours, and two came.
        let (spec, pool) = (Arc::clone(&world.spec), world.pool.clone());
        let mut came = DetachedCache::new(spec, pool, text.len(), PageSet::Window).unwrap();
        came.set_makers(cheat.into());
        let page_bytes = world.spec.layout().page_bytes();
        for layer in 0..windows.len() {
            for page in came.expected_pages(layer) {
                match ours.sealed_page(layer, page) {
                    Ok(sealed) => came.install_shared(layer, page, &sealed).unwrap(),
                    Err(_) => came.install_page(layer, page, &vec![0; page_bytes]).unwrap(),
                }
            }
        }
        world.index.keep(&names(&text), &came.finish().unwrap());
        drop(ours);
        world.keep(&other);
        assert_eq!(world.found(&text).0, 6);
        world.index.take_back(&Maker([8; 32]));
        assert_eq!(world.found(&text).0, 6);
        world.index.take_back(&cheat);
        assert_eq!(world.found(&text).0, resumable, "{windows:?}");
        assert_eq!(world.found(&other).0, 6, "{windows:?}");
        // All else goes with its entries, and nothing is counted that is not there.
        while world.index.evict_one() {}
        assert_eq!((world.pages(), world.index.bytes()), (0, 0));
    }
}
