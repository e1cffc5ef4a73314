//! Truncation after a rejected draft, and forks that share a prefix.

use std::sync::Arc;

use crate::cache::SequenceCache;
use crate::layout::PAGE_ROWS;
use crate::page::Page;
use crate::pool::OutOfPages;
use crate::spec::pages_over;

/// Error of truncating or forking a cache. Its content is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewindError {
    /// A local layer no longer holds the whole window that a query at `wanted_rows` sees. The caller recomputes.
    #[error(
        "layer {layer} no longer holds the window of position {wanted_rows}; the oldest possible is {oldest_possible}"
    )]
    WindowGone {
        /// The first such layer.
        layer: usize,
        /// Rows to go back to.
        wanted_rows: usize,
        /// [`SequenceCache::oldest_rewind`].
        oldest_possible: usize,
    },
    /// The cache has fewer rows.
    #[error("cannot go back to {wanted_rows} rows: the cache has {rows}")]
    BeyondRows {
        /// Rows to go back to.
        wanted_rows: usize,
        /// Rows committed.
        rows: usize,
    },
    /// Rows are pending: commit or abandon them first.
    #[error("{pending} rows are still pending")]
    RowsPending {
        /// Rows begun.
        pending: usize,
    },
    /// Only whole pages are shared.
    #[error("a fork shares whole pages, and {wanted_rows} rows are not a multiple of {PAGE_ROWS}")]
    NotWholePages {
        /// Rows to fork at.
        wanted_rows: usize,
    },
    /// The last page is shared, must be copied to be cut, and the copy does not fit the budget.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
}

impl SequenceCache {
    /// The fewest rows that [`Self::truncate`] can go back to now; every count from there to [`Self::rows`] works.
    pub fn oldest_rewind(&self) -> usize {
        (0..self.layers.len()).map(|layer| self.oldest_rewind_of(layer)).max().unwrap_or(0)
    }

    /// Forgets the rows from position `rows` on: later pages are dropped and the rest of the last page is zeroed. A last
    /// page that is shared is copied first.
    ///
    /// # Errors
    /// Any [`RewindError`] but [`RewindError::NotWholePages`].
    pub fn truncate(&mut self, rows: usize) -> Result<(), RewindError> {
        if self.pending > 0 {
            return Err(RewindError::RowsPending { pending: self.pending });
        }
        self.check_rewind(rows)?;
        if rows == self.rows {
            return Ok(());
        }
        if !rows.is_multiple_of(PAGE_ROWS) {
            // Every copy is made before anything is cut, so that a refusal leaves the content as it is.
            for run in &mut self.layers {
                let last = pages_over(rows) - 1 - run.first;
                run.pages[last].make_mut()?;
            }
        }
        self.cut(rows);
        self.rows = rows;
        Ok(())
    }

    /// A cache of the first `rows` rows that shares this one's pages; nothing is copied.
    ///
    /// Both caches go on independently. On local layers the fork holds the window and as many of the extra pages as this
    /// cache still has. Pending rows are not shared.
    ///
    /// # Errors
    /// [`RewindError::NotWholePages`], [`RewindError::BeyondRows`] or [`RewindError::WindowGone`].
    pub fn fork(&self, rows: usize) -> Result<Self, RewindError> {
        if !rows.is_multiple_of(PAGE_ROWS) {
            return Err(RewindError::NotWholePages { wanted_rows: rows });
        }
        self.check_rewind(rows)?;
        let mut fork = Self::new(Arc::clone(&self.spec), self.pool.clone());
        for (ours, theirs) in self.layers.iter().zip(&mut fork.layers) {
            theirs.first = ours.first;
            theirs.pages.extend(ours.pages[..rows / PAGE_ROWS - ours.first].iter().map(Page::share));
        }
        (fork.rows, fork.makers) = (rows, self.makers.clone());
        Ok(fork)
    }

    fn check_rewind(&self, rows: usize) -> Result<(), RewindError> {
        if rows > self.rows {
            return Err(RewindError::BeyondRows { wanted_rows: rows, rows: self.rows });
        }
        match (0..self.layers.len()).find(|&layer| rows < self.oldest_rewind_of(layer)) {
            None => Ok(()),
            Some(layer) => {
                Err(RewindError::WindowGone { layer, wanted_rows: rows, oldest_possible: self.oldest_rewind() })
            }
        }
    }

    /// The fewest rows after which the next query's window starts in a page that `layer` still holds.
    fn oldest_rewind_of(&self, layer: usize) -> usize {
        match (self.spec.layers()[layer].window, self.layers[layer].first) {
            (None, _) | (_, 0) => 0,
            (Some(window), first) => first * PAGE_ROWS + window as usize - 1,
        }
    }
}
