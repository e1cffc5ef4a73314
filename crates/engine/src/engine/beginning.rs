//! Beginnings of a prompt in whole pages, shared with the installation that they are of.

use std::ops::Range;
use std::sync::Arc;

use muser_kv::{CacheSpec, DetachedCache, PAGE_ROWS, PagePool, PageSet, SealedPage, SequenceCache};

use super::scope::PrefixReuse;

/// Whole pages from the beginning of what came from elsewhere, shared with it: where an audit goes on from.
#[derive(Clone, Debug)]
pub struct Beginning {
    pub(super) spec: Arc<CacheSpec>,
    pub(super) tokens: Vec<u32>,
    /// Per layer, consecutive pages up to the end.
    pub(super) layers: Vec<Vec<SealedPage>>,
    pub(super) reuse: PrefixReuse,
}

impl Beginning {
    /// Pages from the beginning.
    pub fn pages(&self) -> usize {
        self.tokens.len() / PAGE_ROWS
    }

    /// The tokens of these pages.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The first layer and page that going on from here needs and that is not there. Local layers only hold the window of
    /// the last row that came.
    pub fn first_lacking(&self) -> Option<(usize, usize)> {
        (0..self.layers.len()).find_map(|layer| {
            let lacking = self.lacking(layer);
            (!lacking.is_empty()).then_some((layer, lacking.start))
        })
    }

    /// Pages before the first that is lacking: of these, everything that going on needs is there.
    pub(super) fn pages_held(&self) -> usize {
        let lacking = (0..self.layers.len()).map(|layer| self.lacking(layer)).filter(|lacking| !lacking.is_empty());
        lacking.map(|lacking| lacking.start).min().unwrap_or(self.pages())
    }

    /// The pages of `layer` that going on from here needs and that are not there.
    pub(super) fn lacking(&self, layer: usize) -> Range<usize> {
        let needed = self.spec.pages_at(layer, self.tokens.len(), PageSet::Window);
        needed.start..self.first(layer).max(needed.start)
    }

    /// The first page of `layer` that is there.
    fn first(&self, layer: usize) -> usize {
        self.pages() - self.layers[layer].len()
    }

    /// Puts the pages in `wanted` that are there into `detached`.
    pub(super) fn share_into(&self, detached: &mut DetachedCache, wanted: impl Fn(usize) -> bool) {
        for (layer, pages) in self.layers.iter().enumerate() {
            let expected = detached.expected_pages(layer);
            let there = pages.iter().zip(self.first(layer)..);
            for (sealed, page) in there.filter(|(_, page)| expected.contains(page) && wanted(*page)) {
                detached.install_shared(layer, page, sealed).expect("a full page, for a place that is empty");
            }
        }
    }

    /// Prefix reuse of the installation that it is the beginning of.
    pub(super) fn reuse(&self) -> PrefixReuse {
        self.reuse
    }

    /// The shape of the cache.
    pub(super) fn spec(&self) -> &Arc<CacheSpec> {
        &self.spec
    }

    /// Pages that `tokens` tokens take beside these at most.
    pub(super) fn pages_to_take(&self, tokens: usize) -> usize {
        self.layers.len() * (tokens.div_ceil(PAGE_ROWS) - self.pages())
    }

    /// A cache that goes on from these pages, of which none that this needs is lacking, and takes its own from `pool`.
    pub(super) fn cache(&self, pool: &PagePool) -> SequenceCache {
        let (spec, rows) = (Arc::clone(&self.spec), self.tokens.len());
        let proof = "the base fits the context and lacks nothing";
        let mut detached = DetachedCache::new(spec, pool.clone(), rows, PageSet::Window).expect(proof);
        self.share_into(&mut detached, |_| true);
        detached.finish().expect(proof)
    }
}
