//! A stored sequence with known floats behind its pages, and plain softmax attention over those floats in f64.

use fastrand::Rng;
use muser_kernels::attention::{
    AttentionError, AttentionJob, AttentionKernels, AttentionScratch, AttentionShape, KvLayout, PAGE_ROWS,
};
use muser_kernels::cpu::Kernels;

/// Keys and values of one sequence and layer, in floats and in pages.
pub struct Sequence {
    pub shape: AttentionShape,
    pub layout: KvLayout,
    /// `[positions][kv_heads * head_dim]`
    pub keys: Vec<Vec<f32>>,
    /// `[positions][kv_heads * head_dim]`
    pub values: Vec<Vec<f32>>,
    pub pages: Vec<Vec<u8>>,
    /// Pages before this one are given to no job.
    pub first_page: usize,
}

impl Sequence {
    /// Stores rows into zeroed pages with the reference's `store_row`.
    pub fn new(shape: AttentionShape, layout: KvLayout, keys: Vec<Vec<f32>>, values: Vec<Vec<f32>>) -> Self {
        let pages = keys.len().div_ceil(PAGE_ROWS);
        let mut pages = vec![vec![0; layout.page_bytes(&shape)]; pages];
        let store_row = Kernels::scalar().attention.store_row;
        for (position, (k, v)) in keys.iter().zip(&values).enumerate() {
            store_row(&shape, layout, k, v, position % PAGE_ROWS, &mut pages[position / PAGE_ROWS]).unwrap();
        }
        Self { shape, layout, keys, values, pages, first_page: 0 }
    }

    /// Rows of normally distributed numbers; the spread of values differs from row to row.
    pub fn random(shape: AttentionShape, layout: KvLayout, positions: usize, rng: &mut Rng) -> Self {
        let columns = shape.kv_heads() * shape.head_dim();
        let keys = (0..positions).map(|_| normal_row(columns, 1.0, rng)).collect();
        let values = (0..positions).map(|_| normal_row(columns, (0.5 * normal(rng)).exp(), rng)).collect();
        Self::new(shape, layout, keys, values)
    }

    /// Attends rows at `positions` with every key-value head: `[rows, query_heads * head_dim]`.
    pub fn attend(
        &self,
        kernels: &AttentionKernels,
        window: Option<u32>,
        queries: &[f32],
        positions: &[u32],
    ) -> Result<Vec<f32>, AttentionError> {
        let shape = self.shape;
        let (row_columns, job_columns) =
            (shape.query_heads() * shape.head_dim(), shape.heads_per_kv() * shape.head_dim());
        // Also with buffers that are larger than the job.
        let scratch_shape = if positions.len().is_multiple_of(2) {
            shape
        } else {
            AttentionShape::new(shape.query_heads(), shape.kv_heads(), 256).unwrap()
        };
        let mut scratch = AttentionScratch::new(&scratch_shape, positions.len());
        let mut all = vec![0.0; positions.len() * row_columns];
        let mut out = vec![0.0; positions.len() * job_columns];
        let page =
            |index: usize| (index >= self.first_page).then(|| self.pages.get(index).map(Vec::as_slice)).flatten();
        for kv_head in 0..shape.kv_heads() {
            let job = AttentionJob { shape, layout: self.layout, kv_head, window, page: &page, queries, positions };
            (kernels.attend)(&job, &mut scratch, &mut out)?;
            for (row, out) in out.chunks_exact(job_columns).enumerate() {
                all[row * row_columns + kv_head * job_columns..][..job_columns].copy_from_slice(out);
            }
        }
        Ok(all)
    }

    /// Softmax attention of one row over the unrounded floats, in f64: `[query_heads * head_dim]`.
    pub fn attend_f64(&self, window: Option<u32>, query: &[f32], position: u32) -> Vec<f64> {
        let (shape, head_dim) = (self.shape, self.shape.head_dim());
        let first = window.map_or(0, |w| (position as usize + 1).saturating_sub(w as usize));
        let seen = first..=position as usize;
        let mut all = Vec::new();
        for (head, query) in query.chunks_exact(head_dim).enumerate() {
            let columns = head / shape.heads_per_kv() * head_dim;
            let dot = |key: &Vec<f32>| -> f64 {
                let terms = query.iter().zip(&key[columns..]);
                terms.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (head_dim as f64).sqrt()
            };
            let scores: Vec<f64> = self.keys[seen.clone()].iter().map(dot).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            all.extend((0..head_dim).map(|d| {
                let terms = weights.iter().zip(&self.values[seen.clone()]);
                terms.map(|(w, v)| w / sum * f64::from(v[columns + d])).sum::<f64>()
            }));
        }
        all
    }
}

/// One row of normally distributed numbers.
pub fn normal_row(columns: usize, spread: f32, rng: &mut Rng) -> Vec<f32> {
    (0..columns).map(|_| normal(rng) * spread).collect()
}

/// Nearly normal, standard deviation 1: the sum of twelve uniform numbers.
pub fn normal(rng: &mut Rng) -> f32 {
    (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0
}
