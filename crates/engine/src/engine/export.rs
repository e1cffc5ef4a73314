//! Export of pages to another machine, each as soon as its last row is written.

use std::ops::Range;

use muser_kv::{CacheSpec, ExportError, PAGE_ROWS, SealedPage};

use super::request::ComputedPages;

/// The pages of a sequence that a receiver lacks, and those among them that are still to be given out.
///
/// Pages are given out in the order in which they are computed; a page that is not full only when all rows are there.
#[derive(Clone, Debug)]
pub struct Export {
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
    pub fn new(spec: &CacheSpec, rows: usize, held_pages: usize) -> Self {
        let missing = |layer| spec.pages_to_ship(layer, rows, held_pages * PAGE_ROWS);
        Self { rows, left: (0..spec.layers().len()).map(missing).collect() }
    }

    /// True if every page was given out.
    pub fn is_done(&self) -> bool {
        self.left.iter().all(Range::is_empty)
    }

    /// The pages that `computed` rows complete and that were not given out before: by page, then by layer.
    ///
    /// # Errors
    /// If the sequence does not hold one of them.
    pub fn ready(&mut self, computed: usize, pages: ComputedPages<'_>) -> Result<Vec<ReadyPage>, ExportError> {
        let whole = if computed >= self.rows { self.rows.div_ceil(PAGE_ROWS) } else { computed / PAGE_ROWS };
        let mut ready = Vec::new();
        for (layer, left) in self.left.iter_mut().enumerate() {
            while left.start < left.end.min(whole) {
                let page = left.start;
                let is_full = (page + 1) * PAGE_ROWS <= self.rows;
                let bytes = if is_full {
                    PageBytes::Sealed(pages.sealed(layer, page)?)
                } else {
                    PageBytes::Partial(pages.exported(layer, page)?.bytes.to_vec())
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
