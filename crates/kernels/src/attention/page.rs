//! Byte layout of a page, and the range of its rows that a query sees.
//!
//! | part, for each key-value head in order | q8                     | f16                    |
//! |----------------------------------------|------------------------|------------------------|
//! | keys                                   | i8 `[64][head_dim]`    | f16 `[64][head_dim]`   |
//! | values                                 | i8 `[64][head_dim]`    | f16 `[64][head_dim]`   |
//! | key scales                             | f32 `[64]`             |                        |
//! | value scales                           | f32 `[64]`             |                        |
//!
//! Little-endian, elements in the file's order; rows not yet written are zero in a page that leaves the process.

use super::{AttentionShape, PAGE_ROWS};
use std::ops::Range;

/// Storage of keys and values in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvLayout {
    /// 8-bit codes and one f32 scale per head vector.
    Q8,
    /// f16.
    F16,
}

impl KvLayout {
    /// Bytes of a page of one layer, all its key-value heads.
    pub fn page_bytes(self, shape: &AttentionShape) -> usize {
        shape.kv_heads() * self.head_bytes(shape)
    }

    /// Bytes of one stored element.
    pub(crate) fn element_bytes(self) -> usize {
        match self {
            Self::Q8 => 1,
            Self::F16 => 2,
        }
    }

    /// Bytes of one key-value head's part of a page.
    pub(crate) fn head_bytes(self, shape: &AttentionShape) -> usize {
        let elements = 2 * PAGE_ROWS * shape.head_dim() * self.element_bytes();
        match self {
            Self::Q8 => elements + 2 * PAGE_ROWS * size_of::<f32>(),
            Self::F16 => elements,
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
        let (keys, rest) = bytes.split_at(PAGE_ROWS * head_dim);
        let (values, scales) = rest.split_at(PAGE_ROWS * head_dim);
        let (key_scales, value_scales) = scales.split_at(PAGE_ROWS * size_of::<f32>());
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
    let bytes = layout.head_bytes(shape);
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
