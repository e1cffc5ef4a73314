//! One sequence's cache: append in three steps, read, forget behind the window.
//!
//! A reader never sees a half-updated window. `begin` adds pages for a chunk and drops none; the graph writes the
//! chunk's rows and attention reads them together with the committed ones; `commit` then advances the row count and
//! drops what the next query no longer sees. Until `commit`, `abandon` takes everything back.

use std::ops::Range;
use std::sync::Arc;

use crate::layout::PAGE_ROWS;
use crate::makers::Makers;
use crate::page::{Page, next_stamp};
use crate::pool::{OutOfPages, PagePool};
use crate::spec::{CacheSpec, PageSet, pages_over};

/// The pages of one sequence, for every layer.
///
/// Unused rows of the last page are zero whenever no rows are pending, so every page is in canonical form. Dropping the
/// cache returns its pages to the pool.
#[derive(Debug)]
pub struct SequenceCache {
    pub(crate) spec: Arc<CacheSpec>,
    pub(crate) pool: PagePool,
    pub(crate) layers: Vec<PageRun>,
    pub(crate) rows: usize,
    pub(crate) pending: usize,
    lineage: u64,
    /// Makers of all pages that it began with; pages that it adds depend on them too.
    pub(crate) makers: Makers,
}

/// One layer's pages as a reader sees them: consecutive, pending rows included.
#[derive(Clone, Copy, Debug)]
pub struct LayerPages<'cache> {
    first_page: usize,
    pages: &'cache [Page],
}

/// Error of an append step. The cache is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The budget has no room for the chunk's pages.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// The chunk would pass the end of the context.
    #[error("{chunk} more rows do not fit: {rows} of {context} positions are used")]
    ContextFull {
        /// Rows committed.
        rows: usize,
        /// Rows to append.
        chunk: usize,
        /// Positions the cache can hold.
        context: usize,
    },
    /// The previous chunk is neither committed nor abandoned.
    #[error("{pending} rows are still pending")]
    AlreadyPending {
        /// Rows of the previous chunk.
        pending: usize,
    },
    /// More rows to commit than were begun.
    #[error("cannot commit {wanted} rows: {pending} are pending")]
    CommitBeyondPending {
        /// Rows to commit.
        wanted: usize,
        /// Rows begun.
        pending: usize,
    },
}

impl SequenceCache {
    /// An empty cache whose pages will come from `pool`.
    pub fn new(spec: Arc<CacheSpec>, pool: PagePool) -> Self {
        // Page lists get the room that growth in steps of up to a page needs, so that decode never reallocates them.
        let room = |layer| spec.most_pages_of(layer, spec.context(), PAGE_ROWS) + 1;
        let layers = (0..spec.layers().len())
            .map(|layer| PageRun { first: 0, pages: Vec::with_capacity(room(layer)) })
            .collect();
        Self { spec, pool, layers, rows: 0, pending: 0, lineage: next_stamp(), makers: Makers::default() }
    }

    /// The cache's shape.
    pub fn spec(&self) -> &Arc<CacheSpec> {
        &self.spec
    }

    /// Number of the cache's history, unique in this process. As long as it is the same, a page that the cache held and still
    /// holds is the same page in the same place, and has changed by rows appended to it at most.
    pub fn lineage(&self) -> u64 {
        self.lineage
    }

    /// The other machines that any of its pages may depend on, those behind the window included.
    pub fn makers(&self) -> &Makers {
        &self.makers
    }

    /// Rows committed: positions `0 .. rows` have been computed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows begun and not yet committed: positions `rows .. rows + pending_rows`.
    pub fn pending_rows(&self) -> usize {
        self.pending
    }

    /// Bytes of the pages this cache holds, shared ones included.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|run| run.pages.len()).sum::<usize>() * self.spec.layout().page_bytes()
    }

    /// Makes the next `chunk` rows writable in every layer. Nothing is dropped yet. The caller writes a row before it
    /// commits it: a page that pending rows fill holds unspecified bytes until then, and the rest of the last page holds
    /// zeroes.
    ///
    /// # Errors
    /// [`AppendError::AlreadyPending`], [`AppendError::ContextFull`] or [`AppendError::OutOfPages`].
    pub fn begin(&mut self, chunk: usize) -> Result<(), AppendError> {
        if self.pending > 0 {
            return Err(AppendError::AlreadyPending { pending: self.pending });
        }
        let context = self.spec.context();
        if chunk > context - self.rows {
            return Err(AppendError::ContextFull { rows: self.rows, chunk, context });
        }
        if let Err(refused) = self.grow(self.rows + chunk) {
            let end = pages_over(self.rows);
            self.layers.iter_mut().for_each(|run| run.drop_from(end));
            return Err(refused.into());
        }
        self.pending = chunk;
        Ok(())
    }

    /// The absolute indices of the pages that pending rows lie in: empty when nothing is pending.
    pub fn pending_pages(&self) -> Range<usize> {
        if self.pending == 0 {
            return self.rows / PAGE_ROWS..self.rows / PAGE_ROWS;
        }
        self.rows / PAGE_ROWS..pages_over(self.rows + self.pending)
    }

    /// All pending pages of `layer` at once, as (absolute page index, bytes), for writers that share the work. Committed rows
    /// in them must stay as they are.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn pending_pages_mut(&mut self, layer: usize) -> impl ExactSizeIterator<Item = (usize, &mut [u8])> {
        let pending = self.pending_pages();
        let run = &mut self.layers[layer];
        // With nothing pending the range is empty, but may start behind the last page.
        let start = (pending.start - run.first).min(run.pages.len());
        let pages = &mut run.pages[start..][..pending.len()];
        // A page with pending rows is not full, and only full pages are ever shared.
        pages.iter_mut().enumerate().map(move |(index, page)| (pending.start + index, page.unshared_mut()))
    }

    /// The pages of `layer`, pending rows included.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn pages(&self, layer: usize) -> LayerPages<'_> {
        let run = &self.layers[layer];
        LayerPages { first_page: run.first, pages: &run.pages }
    }

    /// Makes the first `accepted` pending rows part of the sequence, discards the other pending rows, and drops the
    /// pages of local layers that lie wholly behind the window and its extra pages.
    ///
    /// # Errors
    /// [`AppendError::CommitBeyondPending`].
    pub fn commit(&mut self, accepted: usize) -> Result<(), AppendError> {
        if accepted > self.pending {
            return Err(AppendError::CommitBeyondPending { wanted: accepted, pending: self.pending });
        }
        if accepted < self.pending {
            self.cut(self.rows + accepted);
        }
        self.rows += accepted;
        self.pending = 0;
        for (layer, run) in self.layers.iter_mut().enumerate() {
            run.drop_before(self.spec.pages_at(layer, self.rows, PageSet::Held).start);
        }
        Ok(())
    }

    /// Discards all pending rows. The cache is as it was before [`Self::begin`].
    pub fn abandon(&mut self) {
        if self.pending > 0 {
            self.cut(self.rows);
            self.pending = 0;
        }
    }

    /// Drops the pages behind `rows` and zeroes the unused rows of the last page, which must not be shared.
    pub(crate) fn cut(&mut self, rows: usize) {
        self.lineage = next_stamp();
        let (layout, end) = (self.spec.layout(), pages_over(rows));
        for run in &mut self.layers {
            run.drop_from(end);
            if !rows.is_multiple_of(PAGE_ROWS)
                && let Some(last) = run.pages.last_mut()
            {
                layout.clear_rows_from(last.unshared_mut(), rows % PAGE_ROWS);
            }
        }
    }

    /// Takes pages up to row `rows`. Those that the rows fill are not zeroed first: over a long chunk that takes longer than
    /// a GPU needs for a layer, and it would wait.
    fn grow(&mut self, rows: usize) -> Result<(), OutOfPages> {
        let page_bytes = self.spec.layout().page_bytes();
        for run in &mut self.layers {
            while run.end() < pages_over(rows) {
                let is_filled = run.end() < rows / PAGE_ROWS;
                let taken = if is_filled { self.pool.take_unspecified(page_bytes) } else { self.pool.take(page_bytes) };
                let mut page = taken?;
                page.set_makers(self.makers.clone());
                run.pages.push(page);
            }
        }
        Ok(())
    }
}

impl<'cache> LayerPages<'cache> {
    /// Absolute index of the first page: it starts at position 64 times this.
    pub fn first_page(&self) -> usize {
        self.first_page
    }

    /// The pages in ascending order; each gives its bytes by `AsRef<[u8]>`.
    pub fn as_slice(&self) -> &'cache [Page] {
        self.pages
    }

    /// The bytes of the page with absolute index `page`, if it is held.
    pub fn get(&self, page: usize) -> Option<&'cache [u8]> {
        page.checked_sub(self.first_page).and_then(|index| self.pages.get(index)).map(Page::bytes)
    }

    /// The other machines that the page with absolute index `page` depends on, if it is held.
    pub fn makers(&self, page: usize) -> Option<&'cache Makers> {
        page.checked_sub(self.first_page).and_then(|index| self.pages.get(index)).map(Page::makers)
    }

    /// The pages' bytes in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'cache [u8]> {
        self.pages.iter().map(Page::bytes)
    }
}

/// Consecutive pages of one layer.
#[derive(Debug)]
pub(crate) struct PageRun {
    /// Absolute index of the first page held, or of the next one to come where none is.
    pub(crate) first: usize,
    pub(crate) pages: Vec<Page>,
}

impl PageRun {
    pub(crate) fn end(&self) -> usize {
        self.first + self.pages.len()
    }

    /// Drops the pages from absolute index `end` on.
    pub(crate) fn drop_from(&mut self, end: usize) {
        self.pages.truncate(end.saturating_sub(self.first));
    }

    /// Drops the pages before absolute index `first`.
    pub(crate) fn drop_before(&mut self, first: usize) {
        let gone = first.saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(..gone);
        self.first += gone;
    }
}
