//! Audits: rows of what came from elsewhere are computed again, and their pages compared, bit by bit.
//!
//! A page's bits depend on the model and the tokens alone, so every machine computes the same bits, and a page that differs
//! is wrong. An [`Audit`] goes on from the pages that came before a range, computes the range, and compares. It is queued,
//! cut into chunks and interrupted as any request is, and takes a place among those that run; but it leaves nothing behind.
//! It only shares the pages of the installation that it audits, which stays with its owner and is visible to no request.
//! Interrupted, it starts again from the same pages. The budget gives the pages of the rows that are computed, and no
//! others.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use muser_kv::{Maker, PAGE_ROWS, PagePlace, SequenceCache};
use muser_model::ForwardError;

use super::beginning::Beginning;
use super::export::{PageBytes, ReadyPage};
use super::install::Installed;

/// A range of pages that came from elsewhere, to be computed again and compared.
#[derive(Debug)]
pub struct Audit {
    pub(super) base: Beginning,
    /// Up to the end of the range.
    pub(super) tokens: Vec<u32>,
    pub(super) comparison: Comparison,
}

/// Pages to compare with those of a cache as it is computed.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Rows that are computed.
    rows: Range<usize>,
    /// Pages to compare, received ones and held ones, by page, then by layer.
    received: Vec<ReadyPage>,
    /// Entries of `received` compared so far.
    compared: usize,
}

/// Result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All compared pages have the bits that are computed here.
    Same {
        /// Tokens that were computed again.
        tokens: usize,
        /// Pages that were compared.
        pages: usize,
    },
    /// A page has another bit: the first difference.
    Differs(Mismatch),
    /// Computing the range from the pages before it meets a NaN or an infinity: the sender did not compute it from those
    /// pages.
    NotFinite(ForwardError),
}

/// The first element that is not what is computed here: at the earliest position, and there in the first layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The layer.
    pub layer: usize,
    /// The page, by absolute index.
    pub page: usize,
    /// The position: the row counted from the beginning of the prompt.
    pub position: usize,
    /// KV head, field, row and element within the page.
    pub place: PagePlace,
    /// The byte of the page in canonical form.
    pub byte: usize,
    /// Byte received.
    pub received: u8,
    /// Byte computed here.
    pub computed: u8,
}

/// Error of [`Installed::audit`]: the range cannot be audited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAuditable {
    /// The range is empty, or holds pages that did not come from elsewhere.
    #[error("pages {pages:?} cannot be audited: pages {received:?} came from elsewhere")]
    Range {
        /// The pages asked for.
        pages: Range<usize>,
        /// Pages that came from elsewhere.
        received: Range<usize>,
    },
    /// The range cannot be computed, because its first row sees pages that are not there.
    #[error("row {rows} sees page {page} of layer {layer}, which is not there")]
    NothingToGoOnFrom {
        /// Rows before the range.
        rows: usize,
        /// The first layer that lacks a page.
        layer: usize,
        /// The first page that it lacks.
        page: usize,
    },
}

impl Beginning {
    /// With what it lacks taken from `apart`: the keys and values of the same tokens, got in another way.
    ///
    /// # Panics
    /// If `apart` is of other tokens.
    pub fn completed_by(mut self, apart: &Installed) -> Self {
        assert!(apart.tokens() == self.tokens, "what completes a beginning is of other tokens");
        for layer in 0..self.layers.len() {
            // It is whole, so it has the window's pages, and all of its pages are full.
            let whole = "an installed beginning of whole pages has the pages of its window";
            let lacking = self.lacking(layer);
            let pages = lacking.map(|page| apart.cache().sealed_page(layer, page).expect(whole)).collect::<Vec<_>>();
            self.layers[layer].splice(..0, pages);
        }
        self
    }
}

impl Installed {
    /// The pages that came from elsewhere, by absolute index: those before them were held here.
    pub fn received_pages(&self) -> Range<usize> {
        self.held_pages()..self.tokens().len().div_ceil(PAGE_ROWS)
    }

    /// Full pages from the beginning that were computed here or by `maker` alone. Those of others, and what was computed from
    /// them, may be as wrong as what is to be audited.
    pub fn pages_without_others(&self, maker: &Maker) -> usize {
        let layers = self.cache().spec().layers().len();
        let is_free =
            |page: usize| (0..layers).all(|layer| self.makers(layer, page).iter().all(|other| other == maker));
        (0..self.tokens().len() / PAGE_ROWS).take_while(|page| is_free(*page)).count()
    }

    /// Its first `pages` pages, as far as it has them.
    ///
    /// # Panics
    /// If it has not so many full pages.
    pub fn beginning(&self, pages: usize) -> Beginning {
        let spec = self.cache().spec();
        let tokens = self.tokens()[..pages * PAGE_ROWS].to_vec();
        let layers = (0..spec.layers().len())
            .map(|layer| {
                let first = self.cache().pages(layer).first_page();
                (first.min(pages)..pages)
                    .map(|page| self.cache().sealed_page(layer, page).expect("a full page that is held"))
                    .collect()
            })
            .collect();
        Beginning { spec: Arc::clone(spec), tokens, layers, reuse: self.reuse() }
    }

    /// An audit of the pages up to the end of `pages`, computed from `base` on, which ends where `pages` begin or before.
    /// Pages between the two are computed as well, and all of them are compared, held ones included.
    ///
    /// # Errors
    /// [`NotAuditable`].
    ///
    /// # Panics
    /// If `base` is of other tokens, or ends behind the beginning of `pages`.
    pub fn audit(&self, base: Beginning, pages: Range<usize>) -> Result<Audit, NotAuditable> {
        let received = self.received_pages();
        if pages.is_empty() || pages.start < received.start || pages.end > received.end {
            return Err(NotAuditable::Range { pages, received });
        }
        assert!(
            base.pages() <= pages.start && self.tokens().starts_with(&base.tokens),
            "the base is of another prompt"
        );
        if let Some((layer, page)) = base.first_lacking() {
            return Err(NotAuditable::NothingToGoOnFrom { rows: base.tokens.len(), layer, page });
        }
        let tokens = self.tokens()[..self.tokens().len().min(pages.end * PAGE_ROWS)].to_vec();
        let all = (base.pages()..pages.end).flat_map(|page| (0..base.layers.len()).map(move |layer| (layer, page)));
        let received = all.filter_map(|(layer, page)| self.received_page(layer, page)).collect();
        let comparison = Comparison { rows: base.tokens.len()..tokens.len(), received, compared: 0 };
        Ok(Audit { base, tokens, comparison })
    }

    /// A page, if it is there: local layers have those of the window only.
    fn received_page(&self, layer: usize, page: usize) -> Option<ReadyPage> {
        let cache = self.cache();
        let bytes = match cache.sealed_page(layer, page) {
            Ok(sealed) => PageBytes::Sealed(sealed),
            // The last page, which is not full.
            Err(_) => PageBytes::Partial(cache.export_page(layer, page).ok()?.bytes.to_vec()),
        };
        Some(ReadyPage { layer, page, bytes })
    }
}

impl Audit {
    /// Tokens that are computed again.
    pub fn tokens(&self) -> usize {
        self.comparison.rows.len()
    }
}

impl Comparison {
    /// Compares the pages that are complete in `cache` and were not compared before, and says what came of it once that is
    /// certain.
    pub(super) fn compare(&mut self, cache: &SequenceCache) -> Option<Verdict> {
        let is_last = cache.rows() == self.rows.end;
        let complete = if is_last { cache.rows().div_ceil(PAGE_ROWS) } else { cache.rows() / PAGE_ROWS };
        let left = &self.received[self.compared..];
        let ready = left.partition_point(|received| received.page < complete);
        for of_page in left[..ready].chunk_by(|one, next| one.page == next.page) {
            let first =
                of_page.iter().filter_map(|received| mismatch(cache, received)).min_by_key(|m| (m.position, m.layer));
            if let Some(mismatch) = first {
                return Some(Verdict::Differs(mismatch));
            }
        }
        self.compared += ready;
        is_last.then_some(Verdict::Same { tokens: self.rows.len(), pages: self.compared })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, position, place: PagePlace { head, field, element, .. }, .. } = self;
        write!(f, "layer {layer}, position {position}, {field} of head {head}, element {element}")
    }
}

/// First difference between a received page and the cache's own: lowest row, then lowest byte. `None` if the bytes are
/// equal.
fn mismatch(cache: &SequenceCache, received: &ReadyPage) -> Option<Mismatch> {
    let ReadyPage { layer, page, ref bytes } = *received;
    // Received pages of a local layer are the window of its last row, and an earlier row's window begins no later.
    let computed =
        cache.export_page(layer, page).expect("a page that came is in the window of the rows computed").bytes;
    let bytes = bytes.as_ref();
    if computed == bytes {
        return None;
    }
    let layout = cache.spec().layout();
    let different = (0..bytes.len()).filter(|&byte| bytes[byte] != computed[byte]);
    let (place, byte) =
        different.map(|byte| (layout.place_of(byte), byte)).min_by_key(|(place, byte)| (place.row, *byte))?;
    let position = page * PAGE_ROWS + place.row;
    Some(Mismatch { layer, page, position, place, byte, received: bytes[byte], computed: computed[byte] })
}
