//! Export of pages, and construction of a cache from received pages.
//!
//! Received pages are collected in a [`DetachedCache`]. It turns into a cache only once every page is present and checked,
//! so nothing partial is ever visible; dropped before that, it returns its pages to the pool.

use std::ops::Range;
use std::sync::Arc;

use crate::cache::SequenceCache;
use crate::layout::PAGE_ROWS;
use crate::makers::Makers;
use crate::page::{Page, SealedPage};
use crate::pool::{OutOfPages, PagePool};
use crate::spec::{CacheSpec, PageSet};

/// A page as it is digested, stored and shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedPage<'cache> {
    /// The page in canonical form: unused rows are zero.
    pub bytes: &'cache [u8],
    /// Rows in use: 64, or fewer on the last page of a sequence.
    pub rows: usize,
}

/// Error of exporting or sharing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Behind the window, not yet computed, or no such layer.
    #[error("page {page} of layer {layer} is not held")]
    NotHeld {
        /// The layer asked for.
        layer: usize,
        /// The absolute page index asked for.
        page: usize,
    },
    /// The page is still being written.
    #[error("page {page} of layer {layer} has pending rows")]
    RowsPending {
        /// The layer asked for.
        layer: usize,
        /// The absolute page index asked for.
        page: usize,
    },
    /// Only full pages are shared.
    #[error("page {page} of layer {layer} has {rows} rows and cannot be shared before it is full")]
    NotFull {
        /// The layer asked for.
        layer: usize,
        /// The absolute page index asked for.
        page: usize,
        /// Rows in use.
        rows: usize,
    },
}

/// Error of installing an arriving page, or of completing the set. Refused pages change nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The budget has no room.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// More rows announced than the cache can hold.
    #[error("{rows} rows exceed the context of {context} positions")]
    TooManyRows {
        /// Rows announced.
        rows: usize,
        /// Positions the cache can hold.
        context: usize,
    },
    /// A layer that the cache does not have.
    #[error("page {page} is for layer {layer}; the cache has {layers} layers")]
    NoSuchLayer {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// A page that a cache of that many rows does not hold.
    #[error("page {page} of layer {layer} is not one of the expected {expected:?}")]
    UnexpectedPage {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
        /// The pages expected of this layer.
        expected: Range<usize>,
    },
    /// The same page twice.
    #[error("page {page} of layer {layer} is already installed")]
    Duplicate {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
    },
    /// A page of the wrong size.
    #[error("page {page} of layer {layer} has {got} bytes, not {expected}")]
    PageLength {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
        /// Bytes given.
        got: usize,
        /// Bytes of a page.
        expected: usize,
    },
    /// The last page is not canonical: a row behind the announced ones is not zero.
    #[error("page {page} of layer {layer} is not zero behind its {rows} rows")]
    DirtyPadding {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
        /// Rows in use.
        rows: usize,
    },
    /// A sealed page was offered for a position that has fewer rows.
    #[error("page {page} of layer {layer} has {rows} rows; a shared page has {PAGE_ROWS}")]
    NotFull {
        /// The page's layer.
        layer: usize,
        /// The page's absolute index.
        page: usize,
        /// Rows in use.
        rows: usize,
    },
    /// The set is not complete.
    #[error("{missing} pages are missing, the first is page {page} of layer {layer}")]
    Missing {
        /// Layer of the first missing page.
        layer: usize,
        /// Its absolute index.
        page: usize,
        /// Pages missing over all layers.
        missing: usize,
    },
}

/// A cache under construction from pages that arrive in any order.
#[derive(Debug)]
pub struct DetachedCache {
    spec: Arc<CacheSpec>,
    pool: PagePool,
    rows: usize,
    layers: Vec<Arrivals>,
    /// Makers of the pages that are copied into place.
    makers: Makers,
}

/// Pages expected of one layer, and those received.
#[derive(Debug)]
struct Arrivals {
    expected: Range<usize>,
    pages: Vec<Option<Page>>,
}

impl SequenceCache {
    /// Page `page` (an absolute index) of `layer` in canonical form, with the rows in use.
    ///
    /// # Errors
    /// [`ExportError::NotHeld`] or [`ExportError::RowsPending`].
    pub fn export_page(&self, layer: usize, page: usize) -> Result<ExportedPage<'_>, ExportError> {
        let (held, rows) = self.committed_page(layer, page)?;
        Ok(ExportedPage { bytes: held.bytes(), rows })
    }

    /// A share in the full page `page` (an absolute index) of `layer`. It stays valid after the cache drops the page.
    ///
    /// # Errors
    /// Any [`ExportError`].
    pub fn sealed_page(&self, layer: usize, page: usize) -> Result<SealedPage, ExportError> {
        match self.committed_page(layer, page)? {
            (held, PAGE_ROWS) => Ok(SealedPage::of(held)),
            (_, rows) => Err(ExportError::NotFull { layer, page, rows }),
        }
    }

    fn committed_page(&self, layer: usize, page: usize) -> Result<(&Page, usize), ExportError> {
        if self.pending_pages().contains(&page) {
            return Err(ExportError::RowsPending { layer, page });
        }
        let held = self.layers.get(layer).and_then(|run| run.pages.get(page.checked_sub(run.first)?));
        let held = held.ok_or(ExportError::NotHeld { layer, page })?;
        Ok((held, rows_in_page(self.rows, page)))
    }
}

impl DetachedCache {
    /// Expects the pages in `set` of a cache of `rows` rows, neither more nor fewer. Nothing is allocated for them yet.
    ///
    /// # Errors
    /// [`InstallError::TooManyRows`].
    pub fn new(spec: Arc<CacheSpec>, pool: PagePool, rows: usize, set: PageSet) -> Result<Self, InstallError> {
        if rows > spec.context() {
            return Err(InstallError::TooManyRows { rows, context: spec.context() });
        }
        let layers = (0..spec.layers().len())
            .map(|layer| spec.pages_at(layer, rows, set))
            .map(|expected| Arrivals { pages: expected.clone().map(|_| None).collect(), expected })
            .collect();
        Ok(Self { spec, pool, rows, layers, makers: Makers::default() })
    }

    /// The pages of `layer` that make the set complete, by absolute index.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn expected_pages(&self, layer: usize) -> Range<usize> {
        self.layers[layer].expected.clone()
    }

    /// Sets the makers of pages copied into place from now on. Shared pages keep their own makers.
    pub fn set_makers(&mut self, makers: Makers) {
        self.makers = makers;
    }

    /// Copies `bytes`, a page in canonical form, into place.
    ///
    /// # Errors
    /// Any [`InstallError`] but [`InstallError::TooManyRows`], [`InstallError::NotFull`] and [`InstallError::Missing`].
    pub fn install_page(&mut self, layer: usize, page: usize, bytes: &[u8]) -> Result<(), InstallError> {
        let rows = rows_in_page(self.rows, page);
        let (layout, makers) = (self.spec.layout(), self.makers.clone());
        let (slot, pool) = self.slot(layer, page, bytes.len())?;
        if !layout.is_clear_from(bytes, rows) {
            return Err(InstallError::DirtyPadding { layer, page, rows });
        }
        let mut installed = pool.take_unspecified(bytes.len())?;
        installed.unshared_mut().copy_from_slice(bytes);
        installed.set_makers(makers);
        *slot = Some(installed);
        Ok(())
    }

    /// Puts a page that is held already into place, sharing its bytes.
    ///
    /// # Errors
    /// Any [`InstallError`] but [`InstallError::TooManyRows`], [`InstallError::OutOfPages`],
    /// [`InstallError::DirtyPadding`] and [`InstallError::Missing`].
    pub fn install_shared(&mut self, layer: usize, page: usize, sealed: &SealedPage) -> Result<(), InstallError> {
        let rows = rows_in_page(self.rows, page);
        let (slot, _) = self.slot(layer, page, sealed.bytes().len())?;
        if rows < PAGE_ROWS {
            return Err(InstallError::NotFull { layer, page, rows });
        }
        *slot = Some(sealed.share());
        Ok(())
    }

    /// The finished cache, if every expected page is present. Otherwise all received pages are dropped.
    ///
    /// # Errors
    /// [`InstallError::Missing`].
    pub fn finish(self) -> Result<SequenceCache, InstallError> {
        let pool = self.pool.clone();
        self.finish_into(pool)
    }

    /// As [`Self::finish`], for a cache that takes its later pages from `pool`. Received pages stay with their own pool.
    ///
    /// # Errors
    /// [`InstallError::Missing`].
    pub fn finish_into(self, pool: PagePool) -> Result<SequenceCache, InstallError> {
        if let Some(incomplete) = self.first_missing() {
            return Err(incomplete);
        }
        let mut cache = SequenceCache::new(self.spec, pool);
        for (run, arrivals) in cache.layers.iter_mut().zip(self.layers) {
            run.first = arrivals.expected.start;
            run.pages.extend(arrivals.pages.into_iter().flatten());
            run.pages.iter().for_each(|page| cache.makers.add(page.makers()));
        }
        cache.rows = self.rows;
        Ok(cache)
    }

    /// The empty place for a page, after every check that does not look at its bytes.
    fn slot(&mut self, layer: usize, page: usize, got: usize) -> Result<(&mut Option<Page>, &PagePool), InstallError> {
        let layers = self.layers.len();
        let arrivals = self.layers.get_mut(layer).ok_or(InstallError::NoSuchLayer { layer, page, layers })?;
        if !arrivals.expected.contains(&page) {
            return Err(InstallError::UnexpectedPage { layer, page, expected: arrivals.expected.clone() });
        }
        let expected = self.spec.layout().page_bytes();
        if got != expected {
            return Err(InstallError::PageLength { layer, page, got, expected });
        }
        let slot = &mut arrivals.pages[page - arrivals.expected.start];
        if slot.is_some() {
            return Err(InstallError::Duplicate { layer, page });
        }
        Ok((slot, &self.pool))
    }

    fn first_missing(&self) -> Option<InstallError> {
        let gaps = |arrivals: &Arrivals| arrivals.pages.iter().filter(|slot| slot.is_none()).count();
        let missing = self.layers.iter().map(gaps).sum();
        self.layers.iter().enumerate().find_map(|(layer, arrivals)| {
            let index = arrivals.pages.iter().position(Option::is_none)?;
            Some(InstallError::Missing { layer, page: arrivals.expected.start + index, missing })
        })
    }
}

/// Rows in use of page `page` of a sequence of `rows` rows.
fn rows_in_page(rows: usize, page: usize) -> usize {
    rows.saturating_sub(page.saturating_mul(PAGE_ROWS)).min(PAGE_ROWS)
}
