//! Rounding one position's keys and values into its row of a page: the walk over heads, shared by all instruction sets.

use super::page::head_part;
use super::shape::check_length;
use super::{AttentionError, AttentionShape, KvLayout, PAGE_ROWS, PageField};

/// Largest code of a stored key or value.
pub(crate) const KV_CODE_MAX: f32 = 127.0;

/// Largest code of a query.
pub(crate) const QUERY_CODE_MAX: f32 = 1023.0;

/// Vectors whose largest magnitude is below this are stored as zero: 2^-100.
pub(crate) const MAGNITUDE_MIN: f32 = f32::from_bits(27 << 23);

/// Rounding of one head vector. Each function returns `false` if an element is not finite.
pub(crate) struct StoreVector {
    /// `codes(x, codes, scale)`: `[head_dim]` floats to as many signed bytes and one little-endian f32.
    pub codes: fn(&[f32], &mut [u8], &mut [u8]) -> bool,
    /// `halves(x, stored)`: `[head_dim]` floats to little-endian f16.
    pub halves: fn(&[f32], &mut [u8]) -> bool,
}

/// One position's row: `k` and `v` are `[kv_heads * head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Row within the page.
    pub row: usize,
}

/// Stores `row` into `page` head by head.
pub(crate) fn store_row(
    vector: &StoreVector,
    shape: &AttentionShape,
    layout: KvLayout,
    row: Row<'_>,
    page: &mut [u8],
) -> Result<(), AttentionError> {
    let Row { k, v, row } = row;
    let head_dim = shape.head_dim();
    check_length("keys of a row", k.len(), shape.kv_heads() * head_dim)?;
    check_length("values of a row", v.len(), shape.kv_heads() * head_dim)?;
    check_length("page", page.len(), layout.page_bytes(shape))?;
    if row >= PAGE_ROWS {
        return Err(AttentionError::OutOfRange { what: "page row", index: row, count: PAGE_ROWS });
    }
    let bytes = layout.vector_bytes(head_dim);
    let [keys, values, key_scales, value_scales] = PageField::ALL.map(|field| layout.field(head_dim, field).start);
    for head in 0..shape.kv_heads() {
        let part = head_part(page, layout, shape, head);
        let (vectors, scales) = page[part].split_at_mut(key_scales);
        let elements = head * head_dim..(head + 1) * head_dim;
        let sides = [("key", &k[elements.clone()], keys, key_scales), ("value", &v[elements], values, value_scales)];
        for (what, x, vectors_at, scales_at) in sides {
            let stored = &mut vectors[vectors_at + row * bytes..][..bytes];
            let finite = match layout {
                KvLayout::Q8 => (vector.codes)(x, stored, &mut scales[scales_at - key_scales + row * 4..][..4]),
                KvLayout::F16 => (vector.halves)(x, stored),
            };
            if !finite {
                return Err(AttentionError::NotFinite { what, row });
            }
        }
    }
    Ok(())
}
