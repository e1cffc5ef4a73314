//! Storing keys and values, and attending over them.

use muser_kernels::attention::{
    AttentionError, AttentionJob, AttentionKernels, AttentionScratch, AttentionShape, KvLayout, PAGE_ROWS, PageField,
};
use muser_kernels::cpu::Kernels;

use super::sequence::{PageForm, Sequence, VectorKind, head_vector};
use crate::tally::BitTally;

/// Query heads, key-value heads, head size.
const SHAPES: [(usize, usize, usize); 6] = [(8, 2, 128), (9, 3, 64), (8, 8, 32), (8, 1, 96), (6, 2, 192), (16, 1, 256)];
const WINDOWS: [Option<u32>; 4] = [None, Some(32), Some(100), Some(2048)];
/// Position of the first row, and rows.
const STEPS: [(usize, usize); 6] = [(0, 16), (37, 16), (63, 2), (500, 5), (1023, 16), (2100, 1)];
const CONTENTS: [VectorKind; 4] =
    [VectorKind::Plain, VectorKind::Mixed, VectorKind::ZeroPages, VectorKind::OneLargeValue];

/// Every shape, layout and window, with steps and contents by turns.
pub(super) fn attend(seeds: u64, tally: &mut BitTally) {
    let mut number = 0;
    for (heads, kv_heads, head_dim) in SHAPES {
        let shape = match AttentionShape::new(heads, kv_heads, head_dim) {
            Ok(shape) => shape,
            Err(refused) => return tally.failed(&format_args!("{heads}/{kv_heads} x {head_dim}"), &refused),
        };
        for layout in [KvLayout::Q8, KvLayout::F16] {
            for window in WINDOWS {
                for seed in 0..seeds {
                    let (position, rows) = STEPS[number % STEPS.len()];
                    let content = CONTENTS[number / STEPS.len() % CONTENTS.len()];
                    Case { form: PageForm { shape, layout }, window, position, rows, content }.run(seed, tally);
                    number += 1;
                }
                number += 1;
            }
        }
    }
}

/// One job: rows at the end of a sequence.
struct Case {
    form: PageForm,
    window: Option<u32>,
    position: usize,
    rows: usize,
    content: VectorKind,
}

impl Case {
    fn run(&self, seed: u64, tally: &mut BitTally) {
        let PageForm { shape, layout } = self.form;
        let mut rng = fastrand::Rng::with_seed(seed);
        let hidden = self.window.map_or(0, |window| (self.position + 1).saturating_sub(window as usize));
        let mut sequence = Sequence::random(self.form, self.content, self.position + self.rows, hidden, &mut rng);
        self.store(&sequence, tally);
        let count = self.rows * shape.query_heads();
        let vector = |_| head_vector(self.content, KvLayout::Q8, shape.head_dim(), &mut rng);
        let queries: Vec<f32> = (0..count).flat_map(vector).collect();
        self.compare_attention(&sequence, &queries, "", tally);
        if layout == KvLayout::Q8 {
            // A scale that is not finite in the last row of the first head: every implementation must refuse the job.
            let row = (self.position + self.rows - 1) % PAGE_ROWS;
            let at = KvLayout::Q8.field(shape.head_dim(), PageField::ValueScales).start + row * 4;
            if let Some(page) = sequence.pages.last_mut() {
                page[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
            }
            self.compare_attention(&sequence, &queries, " damaged", tally);
        }
    }

    /// Bytes of the step's rows, stored by every implementation.
    fn store(&self, sequence: &Sequence, tally: &mut BitTally) {
        let PageForm { shape, layout } = self.form;
        let by = |kernels: &AttentionKernels| {
            let (rows, page_bytes) = (self.position..self.position + self.rows, layout.page_bytes(&shape));
            let first = rows.start / PAGE_ROWS;
            let mut pages = vec![0xff; page_bytes * (rows.end.div_ceil(PAGE_ROWS) - first)];
            for position in rows {
                let (keys, values) = (&sequence.keys[position], &sequence.values[position]);
                let page = &mut pages[(position / PAGE_ROWS - first) * page_bytes..][..page_bytes];
                (kernels.store_row)(&shape, layout, keys, values, position % PAGE_ROWS, page)?;
            }
            Ok(pages)
        };
        let want: Result<Vec<u8>, AttentionError> = by(&Kernels::scalar().attention);
        for Kernels { isa, attention, .. } in Kernels::available() {
            let what = format!("{} store {self}", isa.name());
            compare_results(&what, layout.page_bytes(&shape), &want, &by(&attention), tally);
        }
    }

    fn compare_attention(&self, sequence: &Sequence, queries: &[f32], suffix: &str, tally: &mut BitTally) {
        let want = self.attend(sequence, queries, &Kernels::scalar().attention);
        for Kernels { isa, attention, .. } in Kernels::available() {
            let what = format!("{} attend {self}{suffix}", isa.name());
            let width = self.form.shape.heads_per_kv() * self.form.shape.head_dim();
            compare_results(&what, width, &want, &self.attend(sequence, queries, &attention), tally);
        }
    }

    fn attend(
        &self,
        sequence: &Sequence,
        queries: &[f32],
        kernels: &AttentionKernels,
    ) -> Result<Vec<f32>, AttentionError> {
        let PageForm { shape, layout } = self.form;
        let page = |index: usize| sequence.pages.get(index).map(Vec::as_slice);
        let positions: Vec<u32> = (self.position..self.position + self.rows)
            .map(|position| u32::try_from(position).unwrap_or(u32::MAX))
            .collect();
        let mut scratch = AttentionScratch::new(&shape, self.rows);
        let part = self.rows * shape.heads_per_kv() * shape.head_dim();
        let mut out = vec![f32::NAN; part * shape.kv_heads()];
        for (kv_head, out) in out.chunks_exact_mut(part).enumerate() {
            let window = self.window;
            let job = AttentionJob { shape, layout, kv_head, window, page: &page, queries, positions: &positions };
            (kernels.attend)(&job, &mut scratch, out)?;
        }
        Ok(out)
    }
}

/// Values if both succeed; else that both fail.
fn compare_results<T: crate::tally::Bits>(
    what: &str,
    width: usize,
    want: &Result<Vec<T>, AttentionError>,
    got: &Result<Vec<T>, AttentionError>,
    tally: &mut BitTally,
) {
    match (want, got) {
        (Ok(want), Ok(got)) => tally.compare(&what, width, want, got),
        _ => tally.equal(&format_args!("{what}: succeeds"), &want.is_ok(), &got.is_ok()),
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PageForm { shape, layout } = self.form;
        let (heads, kv_heads, head_dim) = (shape.query_heads(), shape.kv_heads(), shape.head_dim());
        write!(f, "{heads}/{kv_heads} x {head_dim} {layout:?} window {:?}", self.window)?;
        write!(f, " {} rows at {} {:?}", self.rows, self.position, self.content)
    }
}
