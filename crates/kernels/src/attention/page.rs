//! Byte layout of a page, and the range of its rows that a query sees.

use super::{AttentionShape, PAGE_ROWS};
use std::fmt;
use std::ops::Range;

/// Storage of keys and values in a page.
///
/// A page is its key-value heads in order. Each head, with `d` elements per vector, is, little-endian:
///
/// | layout | byte        | field        | type and shape |
/// |--------|-------------|--------------|----------------|
/// | `Q8`   | 0           | keys         | `i8[64][d]`    |
/// |        | 64 d        | values       | `i8[64][d]`    |
/// |        | 128 d       | key scales   | `f32[64]`      |
/// |        | 128 d + 256 | value scales | `f32[64]`      |
/// | `F16`  | 0           | keys         | `f16[64][d]`   |
/// |        | 128 d       | values       | `f16[64][d]`   |
///
/// Elements are in the file's order. Rows that hold no position yet are zero in every field of a page that leaves the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvLayout {
    /// 8-bit codes and one f32 scale per head vector.
    Q8,
    /// f16.
    F16,
}

/// Fields of one key-value head in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageField {
    /// Key vectors.
    Keys,
    /// Value vectors.
    Values,
    /// Scales of key vectors, in `Q8`.
    KeyScales,
    /// Scales of value vectors, in `Q8`.
    ValueScales,
}

impl PageField {
    /// In the order of the byte table.
    pub const ALL: [Self; 4] = [Self::Keys, Self::Values, Self::KeyScales, Self::ValueScales];
}

impl fmt::Display for PageField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys => "keys",
            Self::Values => "values",
            Self::KeyScales => "key scales",
            Self::ValueScales => "value scales",
        })
    }
}

impl KvLayout {
    /// Bytes of a page of one layer, all its key-value heads.
    pub fn page_bytes(self, shape: &AttentionShape) -> usize {
        shape.kv_heads() * PAGE_ROWS * self.row_bytes(shape.head_dim())
    }

    /// Bytes of one position of one key-value head: key and value, scales included.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        2 * (self.vector_bytes(head_dim) + self.scale_bytes())
    }

    /// Bytes of one vector without its scale.
    pub fn vector_bytes(self, head_dim: usize) -> usize {
        match self {
            Self::Q8 => head_dim,
            Self::F16 => 2 * head_dim,
        }
    }

    /// Bytes of one vector's scale: 4 for `Q8`, none for `F16`.
    pub fn scale_bytes(self) -> usize {
        match self {
            Self::Q8 => size_of::<f32>(),
            Self::F16 => 0,
        }
    }

    /// Byte range of `field` in one head's part of a page; empty for the scales of `F16`.
    pub fn field(self, head_dim: usize, field: PageField) -> Range<usize> {
        let (vectors, scales) = (PAGE_ROWS * self.vector_bytes(head_dim), PAGE_ROWS * self.scale_bytes());
        match field {
            PageField::Keys => 0..vectors,
            PageField::Values => vectors..2 * vectors,
            PageField::KeyScales => 2 * vectors..2 * vectors + scales,
            PageField::ValueScales => 2 * vectors + scales..2 * (vectors + scales),
        }
    }
}

/// One key-value head's part of a q8 page.
#[derive(Clone, Copy)]
pub(crate) struct Q8Head<'a> {
    /// `[64][head_dim]`
    pub keys: &'a [u8],
    /// `[64][head_dim]`
    pub values: &'a [u8],
    key_scales: &'a [u8],
    value_scales: &'a [u8],
}

impl<'a> Q8Head<'a> {
    /// Splits the bytes of one head's part.
    pub fn new(bytes: &'a [u8], head_dim: usize) -> Self {
        let [keys, values, key_scales, value_scales] =
            PageField::ALL.map(|field| &bytes[KvLayout::Q8.field(head_dim, field)]);
        Self { keys, values, key_scales, value_scales }
    }

    /// Scale of each key; a row never written may hold anything.
    pub fn key_scales(&self) -> [f32; PAGE_ROWS] {
        f32_rows(self.key_scales)
    }

    /// Scale of each value; a row never written may hold anything.
    pub fn value_scales(&self) -> [f32; PAGE_ROWS] {
        f32_rows(self.value_scales)
    }
}

/// The part of a page that belongs to one key-value head.
pub(crate) fn head_part(page: &[u8], layout: KvLayout, shape: &AttentionShape, kv_head: usize) -> Range<usize> {
    debug_assert_eq!(page.len(), layout.page_bytes(shape));
    let bytes = PAGE_ROWS * layout.row_bytes(shape.head_dim());
    kv_head * bytes..(kv_head + 1) * bytes
}

/// The rows of page `page` that a query at `position` sees: position <= query, and fewer than `window` behind it.
pub(crate) fn visible_rows(position: u32, window: Option<u32>, page: usize) -> Range<usize> {
    let start = page * PAGE_ROWS;
    let first = first_visible(position, window);
    let end = position as usize + 1;
    let row = |p: usize| p.saturating_sub(start).min(PAGE_ROWS);
    row(first)..row(end).max(row(first))
}

/// The pages of which a query at `position` sees a row.
pub(crate) fn visible_pages(position: u32, window: Option<u32>) -> Range<usize> {
    first_visible(position, window) / PAGE_ROWS..position as usize / PAGE_ROWS + 1
}

fn first_visible(position: u32, window: Option<u32>) -> usize {
    window.map_or(0, |w| (position as usize + 1).saturating_sub(w as usize))
}

fn f32_rows(bytes: &[u8]) -> [f32; PAGE_ROWS] {
    let mut rows = [0.0; PAGE_ROWS];
    for (row, bytes) in rows.iter_mut().zip(bytes.as_chunks().0) {
        *row = f32::from_le_bytes(*bytes);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visibility_is_by_absolute_position() {
        assert_eq!(visible_rows(0, None, 0), 0..1);
        assert_eq!(visible_rows(63, None, 0), 0..64);
        assert_eq!(visible_rows(64, None, 1), 0..1);
        assert_eq!(visible_rows(63, None, 1), 0..0);
        assert_eq!(visible_rows(70, Some(32), 0), 39..64);
        assert_eq!(visible_rows(70, Some(32), 1), 0..7);
        assert_eq!(visible_rows(200, Some(32), 0), 64..64);
        assert_eq!(visible_rows(100, Some(32), 1), 5..37);
        assert_eq!(visible_rows(u32::MAX, Some(1), (u32::MAX / 64) as usize), 63..64);
        assert_eq!(visible_pages(200, Some(32)), 2..4);
        assert_eq!(visible_pages(31, Some(32)), 0..1);
        assert_eq!(visible_pages(2048, None), 0..33);
    }

    #[test]
    fn page_sizes_follow_the_byte_table() {
        let shape = AttentionShape::new(8, 2, 96).unwrap();
        assert_eq!(KvLayout::Q8.page_bytes(&shape), 2 * (2 * 64 * 96 + 512));
        assert_eq!(KvLayout::F16.page_bytes(&shape), 2 * (2 * 64 * 96 * 2));
    }
}
