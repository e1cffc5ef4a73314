//! Index of the prefixes kept for reuse: their pages by content-derived name, and the longest match of a new prompt.
//!
//! Pages are found by name, a digest of the model's identity and of all tokens up to the page's end, so a hit is right for
//! any machine and any request that computed the page. An *entry* is a row count, always whole pages, at which a sequence
//! ended or a prompt did: it keeps exactly the pages that going on from there needs, all pages of global layers and the
//! window's pages of local ones. Pages that several entries need are kept and counted once. A prompt resumes at the longest
//! cut for which every page is there, whichever entries they belong to.
//!
//! When room is needed, the entry used longest ago is cut by a page where the shorter cut is still resumable, and
//! forgotten where it is not: pages that nothing can resume from are not kept.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use muser_kv::{CacheSpec, DetachedCache, Maker, PAGE_ROWS, PageName, PagePool, PageSet, SealedPage, SequenceCache};

/// Pages kept for reuse.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    spec: Arc<CacheSpec>,
    bytes_max: usize,
    /// Per page name, what each layer keeps of it.
    pages: HashMap<PageName, Box<[Option<Kept>]>>,
    /// By the name of their last page, which says all that comes before.
    entries: HashMap<PageName, Entry>,
    kept_pages: usize,
    clock: u64,
}

/// Longest prefix of a prompt that the index has, in full pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// Pages after which a sequence can resume.
    pub(crate) resumable: usize,
    /// Another sequence had the same tokens up to here; at least `resumable`. Where the two differ, local layers no longer
    /// hold the window, and this is a place worth keeping once it is computed again.
    pub(crate) known: usize,
}

/// One layer's page.
#[derive(Debug)]
struct Kept {
    page: SealedPage,
    /// Entries that need it.
    entries: usize,
}

#[derive(Debug)]
struct Entry {
    /// Names of all pages up to the cut.
    names: Vec<PageName>,
    last_used: u64,
}

/// Entries kept at most, because an entry costs memory of its own even where it shares all its pages.
const ENTRIES_MAX: usize = 4096;

impl PrefixIndex {
    /// Keeps up to `bytes_max` bytes of pages of caches shaped by `spec`.
    pub(crate) fn new(spec: Arc<CacheSpec>, bytes_max: usize) -> Self {
        Self { spec, bytes_max, pages: HashMap::new(), entries: HashMap::new(), kept_pages: 0, clock: 0 }
    }

    /// Bytes of the pages kept, each counted once.
    pub(crate) fn bytes(&self) -> usize {
        self.kept_pages * self.spec.layout().page_bytes()
    }

    /// Longest match of a sequence whose full pages have these names, first to last.
    pub(crate) fn longest(&self, names: &[PageName]) -> Match {
        let layers = self.spec.layers();
        // Per layer, how many consecutive pages up to here are kept.
        let mut runs = vec![0; layers.len()];
        let mut found = Match::default();
        for (index, name) in names.iter().enumerate() {
            let cut = index + 1;
            let kept = self.pages.get(name);
            for (layer, run) in runs.iter_mut().enumerate() {
                *run = if kept.is_some_and(|kept| kept[layer].is_some()) { *run + 1 } else { 0 };
            }
            let whole = |layer: usize| runs[layer] >= self.needed(layer, cut).len();
            if (0..layers.len()).any(|layer| layers[layer].window.is_none() && !whole(layer)) {
                break;
            }
            if kept.is_some() {
                found.known = cut;
                if (0..layers.len()).all(whole) {
                    found.resumable = cut;
                }
            }
        }
        found
    }

    /// Pages needed to resume after `names` that are kept and that running sequences hold too.
    pub(crate) fn pages_in_use(&self, names: &[PageName]) -> usize {
        let shared = |layer: usize, page: usize| self.kept(layer, &names[page]).is_some_and(|k| k.page.is_shared());
        let of_layer = |layer| self.needed(layer, names.len()).filter(|&page| shared(layer, page)).count();
        (0..self.spec.layers().len()).map(of_layer).sum()
    }

    /// A cache that resumes after `names`, of which [`Self::longest`] said that it can, and nothing is copied. That cut
    /// becomes an entry, used now.
    pub(crate) fn resume(&mut self, names: &[PageName], pool: &PagePool) -> SequenceCache {
        let rows = names.len() * PAGE_ROWS;
        // `longest` found every page of this set, and the names are of a sequence that fits the context.
        let proof = "the pages of a resumable cut are kept";
        let spec = Arc::clone(&self.spec);
        let mut detached = DetachedCache::new(spec, pool.clone(), rows, PageSet::Window).expect(proof);
        for layer in 0..self.spec.layers().len() {
            for page in self.needed(layer, names.len()) {
                let kept = self.kept(layer, &names[page]).expect(proof);
                detached.install_shared(layer, page, &kept.page).expect(proof);
            }
        }
        let cache = detached.finish().expect(proof);
        self.keep(names, &cache);
        cache
    }

    /// Keeps what resuming after `names` needs, as `cache` holds it; a cache that has gone past the window of that cut
    /// cannot give it, and nothing happens. Then forgets what exceeds the budget.
    pub(crate) fn keep(&mut self, names: &[PageName], cache: &SequenceCache) {
        let rows = names.len() * PAGE_ROWS;
        let Some(last) = names.last() else { return };
        if rows > cache.rows() || rows < cache.oldest_rewind() {
            return;
        }
        self.clock += 1;
        let clock = self.clock;
        match self.entries.get_mut(last) {
            Some(entry) => entry.last_used = clock,
            None => {
                for layer in 0..self.spec.layers().len() {
                    for page in self.needed(layer, names.len()) {
                        // The cache can be rewound to this cut, so it holds the window's pages, and whole pages are full.
                        let share = || cache.sealed_page(layer, page).expect("the cache holds the window of this cut");
                        self.hold(layer, &names[page], share);
                    }
                }
                self.entries.insert(*last, Entry { names: names.to_vec(), last_used: clock });
            }
        }
        while self.bytes() > self.bytes_max || self.entries.len() > ENTRIES_MAX {
            self.evict_one();
        }
    }

    /// Gives up a little of what was used longest ago. False if there is nothing left to give up.
    pub(crate) fn evict_one(&mut self) -> bool {
        // Uses are numbered, so there is one oldest, whatever order the map has.
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_used).map(|(name, _)| *name);
        let Some(Entry { mut names, last_used }) = oldest.and_then(|name| self.entries.remove(&name)) else {
            return false;
        };
        let cut = names.len();
        if self.is_resumable_shorter(&names) {
            for layer in 0..self.spec.layers().len() {
                let (old, new) = (self.needed(layer, cut), self.needed(layer, cut - 1));
                for name in &names[new.start..old.start.min(new.end)] {
                    self.hold(layer, name, || unreachable!("checked to be kept"));
                }
                self.release(layer, &names, new.end.max(old.start)..old.end);
            }
            names.pop();
            if let Some(last) = names.last() {
                self.entries.insert(*last, Entry { names, last_used });
            }
        } else {
            for layer in 0..self.spec.layers().len() {
                self.release(layer, &names, self.needed(layer, cut));
            }
        }
        true
    }

    /// Gives up every page that depends on `maker`. What comes before the first such page of an entry becomes an entry, if
    /// all that resuming there needs is kept.
    pub(crate) fn take_back(&mut self, maker: &Maker) {
        let depends = |index: &Self, layer: usize, name: &PageName| {
            index.kept(layer, name).is_some_and(|kept| kept.page.makers().contain(maker))
        };
        let layers = self.spec.layers().len();
        let first = |entry: &Entry| {
            let of_layer = |layer: usize| {
                let mut needed = self.needed(layer, entry.names.len());
                needed.find(|page| depends(self, layer, &entry.names[*page]))
            };
            (0..layers).filter_map(of_layer).min()
        };
        let found: Vec<_> = self.entries.iter().filter_map(|(last, entry)| Some((*last, first(entry)?))).collect();
        for (last, clean) in found {
            let Some(Entry { mut names, last_used }) = self.entries.remove(&last) else { continue };
            let cut = names.len();
            let usable =
                |layer: usize, name: &PageName| self.kept(layer, name).is_some() && !depends(self, layer, name);
            let is_whole = (0..layers).all(|layer| self.needed(layer, clean).all(|page| usable(layer, &names[page])));
            let is_new = clean > 0 && !self.entries.contains_key(&names[clean - 1]);
            if is_new && is_whole {
                for layer in 0..layers {
                    for name in &names[self.needed(layer, clean)] {
                        self.hold(layer, name, || unreachable!("checked to be kept"));
                    }
                }
            }
            for layer in 0..layers {
                self.release(layer, &names, self.needed(layer, cut));
            }
            if is_new && is_whole {
                names.truncate(clean);
                self.entries.insert(names[clean - 1], Entry { names, last_used });
            }
        }
    }

    /// True if the cut before the last page of the entry of `names` is no entry yet and every page it needs is kept. Pages
    /// that both cuts need are kept for the longer one.
    fn is_resumable_shorter(&self, names: &[PageName]) -> bool {
        let Some((_, [.., last])) = names.split_last() else { return false };
        let cut = names.len();
        let more = |layer| self.needed(layer, cut - 1).start..self.needed(layer, cut).start.min(cut - 1);
        let kept = |layer| more(layer).all(|page| self.kept(layer, &names[page]).is_some());
        !self.entries.contains_key(last) && (0..self.spec.layers().len()).all(kept)
    }

    /// The pages of `layer` that resuming after `cut` pages needs.
    fn needed(&self, layer: usize, cut: usize) -> Range<usize> {
        self.spec.pages_at(layer, cut * PAGE_ROWS, PageSet::Window)
    }

    /// A page that is kept.
    pub(crate) fn kept_page(&self, layer: usize, name: &PageName) -> Option<&SealedPage> {
        self.kept(layer, name).map(|kept| &kept.page)
    }

    fn kept(&self, layer: usize, name: &PageName) -> Option<&Kept> {
        self.pages.get(name)?[layer].as_ref()
    }

    /// One more entry needs a page; `share` gives it if it is not kept yet.
    fn hold(&mut self, layer: usize, name: &PageName, share: impl FnOnce() -> SealedPage) {
        let layers = self.spec.layers().len();
        let slots = self.pages.entry(*name).or_insert_with(|| (0..layers).map(|_| None).collect());
        match &mut slots[layer] {
            Some(kept) => kept.entries += 1,
            empty => {
                *empty = Some(Kept { page: share(), entries: 1 });
                self.kept_pages += 1;
            }
        }
    }

    /// One entry less needs these pages of `layer`.
    fn release(&mut self, layer: usize, names: &[PageName], pages: Range<usize>) {
        for name in &names[pages] {
            let Some(slots) = self.pages.get_mut(name) else { continue };
            let Some(kept) = &mut slots[layer] else { continue };
            kept.entries -= 1;
            if kept.entries == 0 {
                slots[layer] = None;
                self.kept_pages -= 1;
                if slots.iter().all(Option::is_none) {
                    self.pages.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
