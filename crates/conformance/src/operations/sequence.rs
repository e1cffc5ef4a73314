//! Random keys and values of one sequence and layer, as floats and as pages.

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS, PageField};
use muser_kernels::cpu::Kernels;

/// Shape of the pages of a case.
#[derive(Clone, Copy, Debug)]
pub struct PageForm {
    /// Heads.
    pub shape: AttentionShape,
    /// Storage of keys and values.
    pub layout: KvLayout,
}

/// One sequence: its floats by row, and its canonical pages.
#[derive(Debug)]
pub struct Sequence {
    /// `[positions][kv_heads * head_dim]`.
    pub keys: Vec<Vec<f32>>,
    /// `[positions][kv_heads * head_dim]`.
    pub values: Vec<Vec<f32>>,
    /// Bytes of each page.
    pub pages: Vec<Vec<u8>>,
}

/// Kinds of head vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// Alike in size.
    Plain,
    /// Spikes, zeros, tiny and large vectors, constants.
    Mixed,
    /// As `Mixed`, with every third page's values zero.
    ZeroPages,
    /// Negative values, of which one key's is 2^38 times larger than its page's.
    OneLargeValue,
}

/// One head vector. f16 pages take only what f16 can hold.
pub fn head_vector(content: VectorKind, layout: KvLayout, head_dim: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    let kind = if content == VectorKind::Plain { 0 } else { rng.u8(..8) };
    let mut x: Vec<f32> = (0..head_dim).map(|_| 1.5 * (rng.f32() + rng.f32() - 1.0)).collect();
    let large = if layout == KvLayout::Q8 { 64.0 } else { 8.0 };
    match kind {
        1 => x.iter_mut().enumerate().for_each(|(d, x)| *x = if d == 5 { 3.0 } else { 0.0 }),
        2 => x.fill(0.0),
        3 => x.iter_mut().enumerate().for_each(|(d, x)| *x = if d % 2 == 0 { 1.0 } else { -1.0 }),
        4 => x.iter_mut().for_each(|x| *x *= f32::from_bits((127 - 40) << 23)),
        5 => x.iter_mut().for_each(|x| *x *= large),
        6 => x.iter_mut().for_each(|x| *x = x.signum() * 1e-31),
        _ => x.iter_mut().step_by(37).for_each(|x| *x *= 4.0),
    }
    x
}

impl Sequence {
    /// Rows at positions `0..positions`; bytes of the rows before `stored_from` and after the last are junk: NaN scales.
    pub fn random(
        form: PageForm,
        content: VectorKind,
        positions: usize,
        stored_from: usize,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let (heads, head_dim) = (form.shape.kv_heads(), form.shape.head_dim());
        let row = |position: usize, is_value: bool, rng: &mut fastrand::Rng| -> Vec<f32> {
            let mut row = Vec::with_capacity(heads * head_dim);
            for _ in 0..heads {
                row.extend(head_vector(content, form.layout, head_dim, rng));
            }
            if is_value && content == VectorKind::ZeroPages && position / PAGE_ROWS % 3 == 1 {
                row.fill(0.0);
            }
            if is_value && content == VectorKind::OneLargeValue && form.layout == KvLayout::Q8 {
                let size = if position % PAGE_ROWS == 1 { 30 } else { -8 };
                row.iter_mut().for_each(|x| *x = -x.abs() * f32::from_bits(((127 + size) as u32) << 23));
            }
            row
        };
        let from = stored_from.min(positions);
        let empty = || vec![Vec::new(); from];
        let (mut keys, mut values) = (empty(), empty());
        for position in from..positions {
            keys.push(row(position, false, rng));
            values.push(row(position, true, rng));
        }
        let mut pages = vec![vec![0xff; form.layout.page_bytes(&form.shape)]; positions.div_ceil(PAGE_ROWS)];
        let store = Kernels::detected().attention.store_row;
        for position in from..positions {
            let page = &mut pages[position / PAGE_ROWS];
            store(&form.shape, form.layout, &keys[position], &values[position], position % PAGE_ROWS, page)
                .expect("finite");
        }
        Self { keys, values, pages }
    }

    /// The canonical bytes of the row at `position`: those of a page with one row.
    pub fn row_bytes(&self, layout: KvLayout, shape: &AttentionShape, position: usize) -> Vec<u8> {
        let (page, row) = (&self.pages[position / PAGE_ROWS], position % PAGE_ROWS);
        let mut bytes = Vec::new();
        for head in page.chunks_exact(page.len() / shape.kv_heads()) {
            for field in PageField::ALL {
                let rows = &head[layout.field(shape.head_dim(), field)];
                let stride = rows.len() / PAGE_ROWS;
                bytes.extend(&rows[row * stride..][..stride]);
            }
        }
        bytes
    }

    /// The bytes of a page, with `filler` for the rows from `rows` on: zeros are what leaves the process.
    pub fn rows_of_page(&self, form: PageForm, page: usize, rows: usize, filler: u8) -> Vec<u8> {
        let mut bytes = self.pages[page].clone();
        let (head_dim, head_bytes) = (form.shape.head_dim(), bytes.len() / form.shape.kv_heads());
        for head in bytes.chunks_exact_mut(head_bytes) {
            for field in PageField::ALL {
                let all = &mut head[form.layout.field(head_dim, field)];
                let stride = all.len() / PAGE_ROWS;
                all[rows * stride..].fill(filler);
            }
        }
        bytes
    }
}
