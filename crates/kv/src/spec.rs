//! The pure arithmetic of a cache: which pages it holds after how many rows, and their bytes.
//!
//! A query at position `p` sees the keys `p - window + 1 ..= p` on a local layer and `0 ..= p` on a global one. After
//! `rows` rows the next query is at position `rows`; a local layer holds the pages that this query sees, and a few more
//! behind them, so that taking back the last rows needs no recomputation.

use std::ops::Range;

use crate::layout::{PAGE_ROWS, PageLayout};

/// Attention span of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// Keys a query sees, its own included; `None` on a global layer, which sees all.
    pub window: Option<u32>,
}

/// The shape of one sequence's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    layers: Vec<LayerSpec>,
    layout: PageLayout,
    context: usize,
    extra_pages: usize,
}

/// Subset of a local layer's pages. The two differ by the extra pages behind the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSet {
    /// The pages that the next query sees: enough to continue.
    Window,
    /// Those and the extra pages behind them: the pages of a cache that was filled by appending.
    Held,
}

/// Error of a cache shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// A cache without layers.
    #[error("a cache needs at least one layer")]
    NoLayers,
    /// A layer with a window of no keys.
    #[error("the window of layer {layer} is 0; a query sees at least its own position")]
    EmptyWindow {
        /// The first such layer.
        layer: usize,
    },
    /// A context that is empty, or longer than positions can count.
    #[error("a context of {context} positions is outside 1 ..= {max}")]
    Context {
        /// Positions asked for.
        context: usize,
        /// [`CacheSpec::CONTEXT_MAX`].
        max: usize,
    },
    /// A full cache could not be addressed.
    #[error("a full cache of {layers} layers and {context} positions has more bytes than can be addressed")]
    TooLarge {
        /// Layers asked for.
        layers: usize,
        /// Positions asked for.
        context: usize,
    },
}

impl LayerSpec {
    /// A layer that sees every earlier position.
    pub const GLOBAL: Self = Self { window: None };

    /// A layer whose queries see `window` keys, their own included.
    pub fn local(window: u32) -> Self {
        Self { window: Some(window) }
    }

    /// The oldest position that a query at `position` sees.
    pub fn oldest_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window as usize))
    }
}

impl CacheSpec {
    /// Extra pages behind the window that suit speculative decoding: a rewind of up to 64 rows always succeeds.
    pub const EXTRA_PAGES_DEFAULT: usize = 1;
    /// Longest context, in positions: a position is a `u32`.
    pub const CONTEXT_MAX: usize = u32::MAX as usize;

    /// A cache of one page layout for `layers`, holding up to `context` positions.
    ///
    /// `extra_pages` pages wholly behind the window are kept per local layer (see [`Self::EXTRA_PAGES_DEFAULT`]); each
    /// lets a rewind go 64 rows further and costs [`PageLayout::page_bytes`] per layer.
    ///
    /// # Errors
    /// A [`SpecError`] for a shape that can hold nothing or could not be addressed.
    pub fn new(
        layers: Vec<LayerSpec>,
        layout: PageLayout,
        context: usize,
        extra_pages: usize,
    ) -> Result<Self, SpecError> {
        if layers.is_empty() {
            return Err(SpecError::NoLayers);
        }
        if let Some(layer) = layers.iter().position(|spec| spec.window == Some(0)) {
            return Err(SpecError::EmptyWindow { layer });
        }
        if context == 0 || context > Self::CONTEXT_MAX {
            return Err(SpecError::Context { context, max: Self::CONTEXT_MAX });
        }
        // Every byte count below is a number of pages that exist at most times the page size, so it cannot overflow.
        let pages = pages_over(context).checked_mul(layers.len());
        if pages.and_then(|pages| pages.checked_mul(layout.page_bytes())).is_none() {
            return Err(SpecError::TooLarge { layers: layers.len(), context });
        }
        Ok(Self { layers, layout, context, extra_pages })
    }

    /// The layers, first to last.
    pub fn layers(&self) -> &[LayerSpec] {
        &self.layers
    }

    /// The shape of every page.
    pub fn layout(&self) -> PageLayout {
        self.layout
    }

    /// Positions the cache can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Pages kept behind the window of a local layer.
    pub fn extra_pages(&self) -> usize {
        self.extra_pages
    }

    /// The pages of `layer`, by absolute index, after `rows` rows.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn pages_at(&self, layer: usize, rows: usize, set: PageSet) -> Range<usize> {
        let visible = self.layers[layer].oldest_visible(rows) / PAGE_ROWS;
        match set {
            PageSet::Window => visible..pages_over(rows),
            PageSet::Held => visible.saturating_sub(self.extra_pages)..pages_over(rows),
        }
    }

    /// Bytes a cache holds after any history of appends that ends at `rows` rows.
    ///
    /// Rows past the context count as the context.
    pub fn predicted_bytes(&self, rows: usize) -> usize {
        self.peak_bytes(rows, 0)
    }

    /// Bytes a cache holds while `chunk` rows are pending behind `rows` committed ones.
    ///
    /// Until the chunk is committed a local layer keeps every page that the chunk's first query sees and has every page
    /// of the chunk's last one. Rows past the context count as the context.
    pub fn peak_bytes(&self, rows: usize, chunk: usize) -> usize {
        let rows = rows.min(self.context);
        let end = pages_over(rows + chunk.min(self.context - rows));
        let layers = 0..self.layers.len();
        let pages: usize = layers.map(|layer| end - self.pages_at(layer, rows, PageSet::Held).start).sum();
        pages * self.layout.page_bytes()
    }

    /// The most pages, over all layers, that a cache holds at any moment while it grows to `rows` rows in appends of at
    /// most `chunk` rows: what to reserve so that the growth allocates nothing.
    pub fn most_pages(&self, rows: usize, chunk: usize) -> usize {
        (0..self.layers.len()).map(|layer| self.most_pages_of(layer, rows, chunk)).sum()
    }

    /// [`Self::most_pages`] of one layer.
    pub(crate) fn most_pages_of(&self, layer: usize, rows: usize, chunk: usize) -> usize {
        let rows = rows.min(self.context);
        let all = pages_over(rows);
        let Some(window) = self.layers[layer].window else {
            return all;
        };
        // The first query sees window - 1 older rows; a run of n rows touches at most ceil((n - 1) / 64) + 1 pages.
        let run = (window as usize - 1).saturating_add(chunk.clamp(1, rows.max(1)));
        all.min(((run - 1).div_ceil(PAGE_ROWS) + 1).saturating_add(self.extra_pages))
    }
}

/// Pages that `rows` rows from position 0 touch.
pub(crate) fn pages_over(rows: usize) -> usize {
    rows.div_ceil(PAGE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::KvLayout;

    fn spec(windows: &[Option<u32>], context: usize, extra_pages: usize) -> CacheSpec {
        let layers = windows.iter().map(|&window| LayerSpec { window }).collect();
        CacheSpec::new(layers, PageLayout::new(KvLayout::Q8, 1, 32).unwrap(), context, extra_pages).unwrap()
    }

    #[test]
    fn a_query_sees_its_own_position_and_the_window_before_it() {
        assert_eq!(LayerSpec::local(1).oldest_visible(7), 7);
        assert_eq!(LayerSpec::local(8).oldest_visible(7), 0);
        assert_eq!(LayerSpec::local(2048).oldest_visible(2048), 1);
        assert_eq!(LayerSpec::GLOBAL.oldest_visible(1 << 20), 0);
    }

    #[test]
    fn a_local_layer_holds_its_window_and_the_extra_page() {
        let spec = spec(&[Some(64), None], 1 << 16, 1);
        assert_eq!(spec.pages_at(0, 0, PageSet::Held), 0..0);
        assert_eq!(spec.pages_at(0, 64, PageSet::Held), 0..1);
        // The query at 127 sees 64 ..= 127, the one at 126 still sees 63.
        assert_eq!(spec.pages_at(0, 126, PageSet::Window), 0..2);
        assert_eq!(spec.pages_at(0, 127, PageSet::Window), 1..2);
        assert_eq!(spec.pages_at(0, 127, PageSet::Held), 0..2);
        assert_eq!(spec.pages_at(0, 191, PageSet::Held), 1..3);
        assert_eq!(spec.pages_at(1, 191, PageSet::Held), 0..3);
        assert_eq!(spec.predicted_bytes(191), 5 * spec.layout().page_bytes());
    }

    #[test]
    fn a_pending_chunk_keeps_what_its_first_query_sees() {
        let spec = spec(&[Some(64)], 1 << 16, 0);
        assert_eq!(spec.peak_bytes(1000, 512), (24 - 14) * spec.layout().page_bytes());
        assert_eq!(spec.predicted_bytes(1512), (24 - 22) * spec.layout().page_bytes());
    }

    #[test]
    fn most_pages_is_reached_and_never_exceeded() {
        for window in [1, 2, 63, 64, 65, 100, 256] {
            for chunk in [1, 2, 63, 64, 65, 200] {
                for extra in [0, 1, 3] {
                    let spec = spec(&[Some(window)], 2000, extra);
                    let page_bytes = spec.layout().page_bytes();
                    let peak = (0..=2000 - chunk).map(|rows| spec.peak_bytes(rows, chunk) / page_bytes).max();
                    assert_eq!(peak, Some(spec.most_pages(2000, chunk)), "window {window}, chunk {chunk}, {extra}");
                }
            }
        }
    }

    #[test]
    fn shapes_that_hold_nothing_or_too_much_are_refused() {
        let layout = PageLayout::new(KvLayout::F16, 512, 4096).unwrap();
        let new = |layers: Vec<LayerSpec>, context| CacheSpec::new(layers, layout, context, 1);
        assert_eq!(new(vec![], 1), Err(SpecError::NoLayers));
        assert_eq!(new(vec![LayerSpec::GLOBAL, LayerSpec::local(0)], 1), Err(SpecError::EmptyWindow { layer: 1 }));
        assert!(matches!(new(vec![LayerSpec::GLOBAL], 0), Err(SpecError::Context { .. })));
        assert!(matches!(new(vec![LayerSpec::GLOBAL], usize::MAX), Err(SpecError::Context { .. })));
        let layers = vec![LayerSpec::GLOBAL; 1 << 10];
        assert!(matches!(new(layers, CacheSpec::CONTEXT_MAX), Err(SpecError::TooLarge { layers: 1024, .. })));
    }

    #[test]
    fn extreme_windows_extra_pages_and_row_counts_do_not_overflow() {
        let spec = spec(&[Some(u32::MAX), Some(1)], CacheSpec::CONTEXT_MAX, usize::MAX);
        let full = 2 * pages_over(CacheSpec::CONTEXT_MAX);
        assert_eq!(spec.most_pages(usize::MAX, usize::MAX), full);
        assert_eq!(spec.peak_bytes(usize::MAX, usize::MAX), full * spec.layout().page_bytes());
        assert_eq!(spec.predicted_bytes(64), 2 * spec.layout().page_bytes());
    }
}
