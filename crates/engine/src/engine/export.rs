//! Export of pages to another machine, each as soon as its last row is written.

use std::ops::Range;

use muser_kv::{CacheSpec, ExportError, PAGE_ROWS, SealedPage, SequenceCache};

/// The pages of a sequence that a receiver lacks, and those among them that are still to be given out.
///
/// Pages are given out in the order in which they are computed; a page that is not full only when all rows are there.
#[derive(Clone, Debug)]
pub(super) struct Export {
    rows: usize,
    /// Per layer, the pages that are still to be given out, by absolute index.
    left: Vec<Range<usize>>,
}

/// A page that will not change any more.
#[derive(Clone, Debug)]
pub struct ReadyPage {
    /// Its layer.
    pub layer: usize,
    /// Its absolute index.
    pub page: usize,
    /// Its bytes.
    pub bytes: PageBytes,
}

/// A page's bytes in canonical form. They outlive the sequence.
#[derive(Clone, Debug)]
pub enum PageBytes {
    /// A share in a full page.
    Sealed(SealedPage),
    /// A copy of the last page, which is not full.
    Partial(Vec<u8>),
}

impl Export {
    /// The pages missing to go on after `rows` rows, for a receiver that holds the first `held_pages` pages.
    pub(super) fn new(spec: &CacheSpec, rows: usize, held_pages: usize) -> Self {
        let missing = |layer| spec.pages_to_ship(layer, rows, held_pages * PAGE_ROWS);
        Self { rows, left: (0..spec.layers().len()).map(missing).collect() }
    }

    /// The pages that are complete in `cache` and were not given out before: by page, then by layer.
    ///
    /// # Errors
    /// If the cache does not hold one of them.
    pub(super) fn ready(&mut self, cache: &SequenceCache) -> Result<Vec<ReadyPage>, ExportError> {
        let computed = cache.rows();
        let whole = if computed >= self.rows { self.rows.div_ceil(PAGE_ROWS) } else { computed / PAGE_ROWS };
        let mut ready = Vec::new();
        for (layer, left) in self.left.iter_mut().enumerate() {
            while left.start < left.end.min(whole) {
                let page = left.start;
                let is_full = (page + 1) * PAGE_ROWS <= self.rows;
                let bytes = if is_full {
                    PageBytes::Sealed(cache.sealed_page(layer, page)?)
                } else {
                    PageBytes::Partial(cache.export_page(layer, page)?.bytes.to_vec())
                };
                ready.push(ReadyPage { layer, page, bytes });
                left.start += 1;
            }
        }
        ready.sort_by_key(|ready| (ready.page, ready.layer));
        Ok(ready)
    }
}

impl AsRef<[u8]> for PageBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Sealed(page) => page.bytes(),
            Self::Partial(bytes) => bytes,
        }
    }
}
