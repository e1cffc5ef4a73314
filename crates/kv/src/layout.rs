//! Byte layout of a page.
//!
//! The byte table of [`KvLayout`] is the canonical form: the one that is digested, stored and shipped. A device may
//! keep pages in another form, but must be able to produce this one.

use std::ops::Range;

pub use muser_kernels::attention::{KvLayout, PAGE_ROWS, PageField};

/// The shape of one layer's pages: KV heads, head length and storage format. Bytes lie as the table of [`KvLayout`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout {
    layout: KvLayout,
    kv_heads: usize,
    head_dim: usize,
}

/// Head, field, row and element that a byte of a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PagePlace {
    /// The KV head.
    pub head: usize,
    /// The head's field.
    pub field: PageField,
    /// The row of the page.
    pub row: usize,
    /// The element of the head's vector; 0 for a scale, of which a row has one.
    pub element: usize,
}

/// Error of a page shape, or of a page's bytes or rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A page without elements.
    #[error("a page needs at least one KV head and one element per head: {kv_heads} heads of {head_dim}")]
    Empty {
        /// KV heads asked for.
        kv_heads: usize,
        /// Head length asked for.
        head_dim: usize,
    },
    /// A page larger than [`PageLayout::PAGE_BYTES_MAX`].
    #[error("pages of {kv_heads} heads of {head_dim} exceed the limit of {max} bytes")]
    TooLarge {
        /// KV heads asked for.
        kv_heads: usize,
        /// Head length asked for.
        head_dim: usize,
        /// [`PageLayout::PAGE_BYTES_MAX`].
        max: usize,
    },
    /// A page buffer of another length than the layout's.
    #[error("a page of this layout has {expected} bytes, not {got}")]
    PageLength {
        /// Bytes given.
        got: usize,
        /// [`PageLayout::page_bytes`].
        expected: usize,
    },
    /// More rows than a page has.
    #[error("a page has {PAGE_ROWS} rows, not {rows}")]
    TooManyRows {
        /// Rows given.
        rows: usize,
    },
    /// A payload whose length does not fit its row count.
    #[error("{rows} rows of this layout are {expected} bytes, not {got}")]
    PayloadLength {
        /// Rows announced.
        rows: usize,
        /// Bytes given.
        got: usize,
        /// `rows` times [`PageLayout::row_bytes`].
        expected: usize,
    },
}

impl PageLayout {
    /// Largest page accepted, in bytes. It bounds what a hostile shape can make a reader allocate.
    pub const PAGE_BYTES_MAX: usize = 1 << 30;

    /// The layout of pages with `kv_heads` heads of `head_dim` elements.
    ///
    /// # Errors
    /// [`LayoutError::Empty`] if either count is zero, [`LayoutError::TooLarge`] past [`Self::PAGE_BYTES_MAX`].
    pub fn new(layout: KvLayout, kv_heads: usize, head_dim: usize) -> Result<Self, LayoutError> {
        if kv_heads == 0 || head_dim == 0 {
            return Err(LayoutError::Empty { kv_heads, head_dim });
        }
        // 4 bytes per element pair and 8 bytes of scales bound both layouts, so the limit is checked without overflow.
        let bound = head_dim.checked_mul(4).and_then(|n| n.checked_add(8)).and_then(|n| n.checked_mul(kv_heads));
        if bound.and_then(|n| n.checked_mul(PAGE_ROWS)).is_none_or(|n| n > Self::PAGE_BYTES_MAX) {
            return Err(LayoutError::TooLarge { kv_heads, head_dim, max: Self::PAGE_BYTES_MAX });
        }
        Ok(Self { layout, kv_heads, head_dim })
    }

    /// The storage format.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// KV heads per position.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements of one head vector.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of a page in canonical form.
    pub fn page_bytes(&self) -> usize {
        PAGE_ROWS * self.row_bytes()
    }

    /// Bytes of one position of one layer: K and V of all heads, scales included.
    pub fn row_bytes(&self) -> usize {
        self.kv_heads * self.layout.row_bytes(self.head_dim)
    }

    /// Bytes of one head vector without its scale.
    pub fn vector_bytes(&self) -> usize {
        self.layout.vector_bytes(self.head_dim)
    }

    /// Bytes of one head vector's scale: 4 for `Q8`, none for `F16`.
    pub fn scale_bytes(&self) -> usize {
        self.layout.scale_bytes()
    }

    /// Byte range, in a page, of the K vectors of `rows` of `head`.
    ///
    /// # Panics
    /// If `head` or `rows` lies outside the page.
    pub fn k_rows(&self, head: usize, rows: Range<usize>) -> Range<usize> {
        self.field_rows(head, PageField::Keys, rows)
    }

    /// Byte range, in a page, of the V vectors of `rows` of `head`.
    ///
    /// # Panics
    /// If `head` or `rows` lies outside the page.
    pub fn v_rows(&self, head: usize, rows: Range<usize>) -> Range<usize> {
        self.field_rows(head, PageField::Values, rows)
    }

    /// Byte range, in a page, of the K scales of `rows` of `head`; empty for `F16`.
    ///
    /// # Panics
    /// If `head` or `rows` lies outside the page.
    pub fn k_scales(&self, head: usize, rows: Range<usize>) -> Range<usize> {
        self.field_rows(head, PageField::KeyScales, rows)
    }

    /// Byte range, in a page, of the V scales of `rows` of `head`; empty for `F16`.
    ///
    /// # Panics
    /// If `head` or `rows` lies outside the page.
    pub fn v_scales(&self, head: usize, rows: Range<usize>) -> Range<usize> {
        self.field_rows(head, PageField::ValueScales, rows)
    }

    /// Head, field, row and element that byte `byte` of a page belongs to.
    ///
    /// # Panics
    /// If `byte` lies outside the page.
    pub fn place_of(&self, byte: usize) -> PagePlace {
        assert!(byte < self.page_bytes(), "byte {byte} of {}", self.page_bytes());
        let head_bytes = self.page_bytes() / self.kv_heads;
        let (head, within) = (byte / head_bytes, byte % head_bytes);
        let fields = PageField::ALL.map(|field| (field, self.layout.field(self.head_dim, field)));
        let (field, range) =
            fields.into_iter().find(|(_, range)| range.contains(&within)).expect("fields fill the part");
        let (within, stride) = (within - range.start, range.len() / PAGE_ROWS);
        let (row, byte_of_row) = (within / stride, within % stride);
        let element = match (field, self.layout) {
            (PageField::KeyScales | PageField::ValueScales, _) => 0,
            (_, KvLayout::Q8) => byte_of_row,
            (_, KvLayout::F16) => byte_of_row / 2,
        };
        PagePlace { head, field, row, element }
    }

    /// Zeroes the rows from `row` on, so that a page which holds only `row` positions is canonical.
    ///
    /// # Panics
    /// If `page` is not [`Self::page_bytes`] long or `row` exceeds [`PAGE_ROWS`].
    pub fn clear_rows_from(&self, page: &mut [u8], row: usize) {
        assert_eq!(page.len(), self.page_bytes(), "page length");
        for range in self.fields_of(row..PAGE_ROWS) {
            page[range].fill(0);
        }
    }

    /// True if the rows from `row` on are zero in every field.
    ///
    /// # Panics
    /// If `page` is not [`Self::page_bytes`] long or `row` exceeds [`PAGE_ROWS`].
    pub fn is_clear_from(&self, page: &[u8], row: usize) -> bool {
        assert_eq!(page.len(), self.page_bytes(), "page length");
        self.fields_of(row..PAGE_ROWS).all(|range| page[range].iter().all(|&byte| byte == 0))
    }

    /// Appends the first `rows` rows of `page` to `payload`, as `rows` times [`Self::row_bytes`] bytes.
    ///
    /// A payload is a page with its unused rows left out: the fields of the byte table in the same order, each `rows`
    /// long instead of 64. The payload of a full page is the page.
    ///
    /// # Errors
    /// [`LayoutError::PageLength`] or [`LayoutError::TooManyRows`]; `payload` is then unchanged.
    pub fn export_rows(&self, page: &[u8], rows: usize, payload: &mut Vec<u8>) -> Result<(), LayoutError> {
        self.check(page.len(), rows)?;
        payload.reserve(rows * self.row_bytes());
        for range in self.fields_of(0..rows) {
            payload.extend_from_slice(&page[range]);
        }
        Ok(())
    }

    /// Makes `page` the page of which `payload` is the first `rows` rows. The rows behind them become zero.
    ///
    /// # Errors
    /// [`LayoutError::PageLength`], [`LayoutError::TooManyRows`] or [`LayoutError::PayloadLength`]; `page` is then
    /// unchanged.
    pub fn import_rows(&self, payload: &[u8], rows: usize, page: &mut [u8]) -> Result<(), LayoutError> {
        self.check(page.len(), rows)?;
        let expected = rows * self.row_bytes();
        if payload.len() != expected {
            return Err(LayoutError::PayloadLength { rows, got: payload.len(), expected });
        }
        let mut rest = payload;
        for range in self.fields_of(0..rows) {
            let (field, behind) = rest.split_at(range.len());
            page[range].copy_from_slice(field);
            rest = behind;
        }
        self.clear_rows_from(page, rows);
        Ok(())
    }

    /// Writes one row of `page`. `payload` is that row's payload: [`Self::row_bytes`] bytes.
    ///
    /// # Panics
    /// If a length or the row is wrong.
    pub fn write_row(&self, page: &mut [u8], row: usize, payload: &[u8]) {
        assert_eq!(page.len(), self.page_bytes(), "page length");
        assert_eq!(payload.len(), self.row_bytes(), "payload of a row");
        let mut rest = payload;
        for range in self.fields_of(row..row + 1) {
            let (field, behind) = rest.split_at(range.len());
            page[range].copy_from_slice(field);
            rest = behind;
        }
    }

    fn check(&self, page_len: usize, rows: usize) -> Result<(), LayoutError> {
        if page_len != self.page_bytes() {
            return Err(LayoutError::PageLength { got: page_len, expected: self.page_bytes() });
        }
        if rows > PAGE_ROWS {
            return Err(LayoutError::TooManyRows { rows });
        }
        Ok(())
    }

    /// The byte ranges of `rows` in every field of every head, in the order of the byte table.
    fn fields_of(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let layout = *self;
        (0..self.kv_heads)
            .flat_map(move |head| PageField::ALL.map(|field| (head, field)))
            .map(move |(head, field)| layout.field_rows(head, field, rows.clone()))
    }

    fn field_rows(&self, head: usize, field: PageField, rows: Range<usize>) -> Range<usize> {
        assert!(head < self.kv_heads, "head {head} of {}", self.kv_heads);
        assert!(rows.start <= rows.end && rows.end <= PAGE_ROWS, "rows {rows:?} of {PAGE_ROWS}");
        let part = self.layout.field(self.head_dim, field);
        let stride = part.len() / PAGE_ROWS;
        let start = head * PAGE_ROWS * self.layout.row_bytes(self.head_dim) + part.start;
        start + rows.start * stride..start + rows.end * stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [KvLayout; 2] = [KvLayout::Q8, KvLayout::F16];

    #[test]
    fn rows_written_one_by_one_make_the_page_that_their_payload_makes() {
        for layout in LAYOUTS {
            let layout = PageLayout::new(layout, 3, 64).unwrap();
            let bytes: Vec<u8> = (0..layout.page_bytes()).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
            let mut written = vec![0; layout.page_bytes()];
            for row in [5, 0, 63, 17] {
                let mut payload = Vec::new();
                for range in layout.fields_of(row..row + 1) {
                    payload.extend_from_slice(&bytes[range]);
                }
                layout.write_row(&mut written, row, &payload);
                let same = layout.fields_of(row..row + 1).all(|range| written[range.clone()] == bytes[range]);
                assert!(same, "row {row}");
            }
            assert!(layout.is_clear_from(&written, 64));
            assert!(layout.fields_of(18..63).all(|range| written[range].iter().all(|&byte| byte == 0)), "other rows");
        }
    }

    #[test]
    fn the_byte_table_of_a_q8_page_is_as_documented() {
        let layout = PageLayout::new(KvLayout::Q8, 2, 128).unwrap();
        assert_eq!(layout.page_bytes(), 2 * (2 * 64 * 128 + 2 * 64 * 4));
        assert_eq!(layout.k_rows(0, 0..64), 0..8192);
        assert_eq!(layout.v_rows(0, 0..64), 8192..16384);
        assert_eq!(layout.k_scales(0, 0..64), 16384..16640);
        assert_eq!(layout.v_scales(0, 0..64), 16640..16896);
        assert_eq!(layout.k_rows(1, 3..5), 16896 + 3 * 128..16896 + 5 * 128);
        assert_eq!(layout.v_scales(1, 63..64), 2 * 16896 - 4..2 * 16896);
    }

    #[test]
    fn the_byte_table_of_an_f16_page_is_as_documented() {
        let layout = PageLayout::new(KvLayout::F16, 2, 128).unwrap();
        assert_eq!(layout.page_bytes(), 65536);
        assert_eq!(layout.k_rows(0, 0..64), 0..16384);
        assert_eq!(layout.v_rows(0, 0..64), 16384..32768);
        assert_eq!(layout.k_rows(1, 1..2), 32768 + 256..32768 + 512);
        assert!(layout.k_scales(1, 0..64).is_empty() && layout.v_scales(1, 0..64).is_empty());
    }

    #[test]
    fn the_fields_of_all_heads_tile_the_page_without_gap_or_overlap() {
        for (kv_heads, head_dim) in [(1, 1), (2, 128), (3, 96), (8, 64)] {
            for kind in LAYOUTS {
                let layout = PageLayout::new(kind, kv_heads, head_dim).unwrap();
                let mut end = 0;
                for range in layout.fields_of(0..PAGE_ROWS) {
                    assert_eq!(range.start, end);
                    end = range.end;
                }
                assert_eq!(end, layout.page_bytes());
            }
        }
    }

    #[test]
    fn every_byte_belongs_to_the_element_in_whose_range_it_lies() {
        for kind in LAYOUTS {
            let layout = PageLayout::new(kind, 3, 32).unwrap();
            let element_bytes = layout.vector_bytes() / 32;
            let mut bytes = 0;
            for head in 0..3 {
                for row in 0..PAGE_ROWS {
                    for field in PageField::ALL {
                        let range = layout.field_rows(head, field, row..row + 1);
                        bytes += range.len();
                        for (index, byte) in range.enumerate() {
                            let is_scale = matches!(field, PageField::KeyScales | PageField::ValueScales);
                            let element = if is_scale { 0 } else { index / element_bytes };
                            assert_eq!(
                                layout.place_of(byte),
                                PagePlace { head, field, row, element },
                                "{kind:?} {byte}"
                            );
                        }
                    }
                }
            }
            assert_eq!(bytes, layout.page_bytes());
        }
    }

    #[test]
    fn clearing_leaves_the_used_rows_and_zeroes_every_byte_of_the_others() {
        for kind in LAYOUTS {
            let layout = PageLayout::new(kind, 2, 32).unwrap();
            for row in 0..=PAGE_ROWS {
                let mut page = vec![0xff; layout.page_bytes()];
                layout.clear_rows_from(&mut page, row);
                assert!(layout.is_clear_from(&page, row));
                assert_eq!(page.iter().filter(|&&byte| byte == 0xff).count(), row * layout.row_bytes());
                assert!(row == 0 || !layout.is_clear_from(&page, row - 1));
            }
        }
    }

    #[test]
    fn exported_rows_import_as_the_page_with_its_other_rows_cleared() {
        let mut random = fastrand::Rng::with_seed(1);
        for kind in LAYOUTS {
            let layout = PageLayout::new(kind, 3, 32).unwrap();
            let page: Vec<u8> = (0..layout.page_bytes()).map(|_| random.u8(1..)).collect();
            for rows in 0..=PAGE_ROWS {
                let mut payload = Vec::new();
                layout.export_rows(&page, rows, &mut payload).unwrap();
                assert_eq!(payload.len(), rows * layout.row_bytes());
                let mut copy = vec![0xaa; layout.page_bytes()];
                layout.import_rows(&payload, rows, &mut copy).unwrap();
                let mut expected = page.clone();
                layout.clear_rows_from(&mut expected, rows);
                assert_eq!(copy, expected);
                assert!(rows < PAGE_ROWS || payload == page);
            }
        }
    }

    #[test]
    fn wrong_lengths_and_row_counts_are_refused_and_change_nothing() {
        let layout = PageLayout::new(KvLayout::Q8, 1, 32).unwrap();
        let (row, size) = (layout.row_bytes(), layout.page_bytes());
        let mut page = vec![7; size];
        let expected = 2 * row;
        for got in [0, row, expected - 1, expected + 1] {
            let refused = layout.import_rows(&vec![1; got], 2, &mut page);
            assert_eq!(refused, Err(LayoutError::PayloadLength { rows: 2, got, expected }));
        }
        let refused = layout.import_rows(&vec![1; 65 * row], 65, &mut page);
        assert_eq!(refused, Err(LayoutError::TooManyRows { rows: 65 }));
        let refused = layout.export_rows(&page[1..], 1, &mut Vec::new());
        assert_eq!(refused, Err(LayoutError::PageLength { got: size - 1, expected: size }));
        assert!(page.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn shapes_without_elements_or_beyond_the_limit_are_refused() {
        for kind in LAYOUTS {
            assert!(matches!(PageLayout::new(kind, 0, 128), Err(LayoutError::Empty { .. })));
            assert!(matches!(PageLayout::new(kind, 2, 0), Err(LayoutError::Empty { .. })));
            for (kv_heads, head_dim) in [(usize::MAX, 1), (1, usize::MAX), (1 << 20, 1 << 20), (1 << 16, 1 << 8)] {
                assert!(matches!(PageLayout::new(kind, kv_heads, head_dim), Err(LayoutError::TooLarge { .. })));
            }
        }
    }
}
