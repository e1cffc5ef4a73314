//! Operations on rows, spread over the rows: embedding, norms, head vectors, gates, residual sums and the quantisation that
//! ends most of them.

use super::Cpu;
use crate::activations::{Activations, FormatSet};
use crate::embedding::EmbeddingTable;
use crate::rope::Rotation;
use crate::rows::{RowKernels, hadamard};

/// A root-mean-square norm: its factors, one per element, and its epsilon.
#[derive(Clone, Copy, Debug)]
pub struct RowNorm<'a> {
    /// One factor per element.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// The Hadamard transform of rule 8b, applied to every head vector of a row.
#[derive(Clone, Copy, Debug)]
pub struct HeadTransform {
    /// Elements of a head vector.
    pub head_dim: usize,
    /// Multiplied into every element afterwards.
    pub factor: f32,
}

/// Steps that turn the rows of a projection into head vectors, in this order, each where given.
#[derive(Clone, Copy, Debug)]
pub struct HeadPlacement<'a> {
    /// Elements of a row: heads times elements per head.
    pub width: usize,
    /// Elements of a head vector.
    pub head_dim: usize,
    /// Norm of each head vector.
    pub norm: Option<RowNorm<'a>>,
    /// Rotation by the row's position.
    pub rope: Option<Rotation>,
    /// Factor of the Hadamard transform.
    pub transform: Option<f32>,
}

/// Last operations on logits (rule 10), each where given.
#[derive(Clone, Copy, Debug)]
pub struct LogitsBend {
    /// Logits of one row.
    pub vocab: usize,
    /// Multiplied into every logit.
    pub scale: Option<f32>,
    /// Bends logits into (-cap, cap).
    pub soft_cap: Option<f32>,
}

impl Cpu {
    /// Embeddings of `tokens`, each below the table's rows, to the front of `out`, `[tokens, cols]` (rule 6a), then normed
    /// without factors where `norm_eps` is given.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn embed(&mut self, table: &EmbeddingTable, tokens: &[u32], norm_eps: Option<f32>, out: &mut [f32]) {
        let cols = table.cols();
        self.update_rows(&mut out[..tokens.len() * cols], cols, |kernels, row, x, _| {
            table.read_row(tokens[row] as usize, x);
            if let Some(eps) = norm_eps {
                (kernels.rms_norm_in_place)(x, None, eps);
            }
        });
    }

    /// Norms each row of the step, `[rows, norm.weight.len()]`, and quantises it for its consumers (rules 5 and 2).
    pub fn norm_quantise(&mut self, x: &[f32], norm: RowNorm<'_>, needs: FormatSet, out: &mut Activations) {
        let cols = norm.weight.len();
        self.quantise_rows(cols, needs, out, |kernels, row, y| {
            (kernels.rms_norm)(&x[row * cols..][..cols], Some(norm.weight), norm.eps, y);
        });
    }

    /// As [`Self::norm_quantise`] for the rows `selected` of the step alone: row `i` of `out` is row `selected[i]` of `x`.
    pub fn norm_quantise_selected(
        &mut self,
        x: &[f32],
        selected: &[usize],
        norm: RowNorm<'_>,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        let cols = norm.weight.len();
        self.quantise(
            out,
            [selected.len(), cols],
            needs,
            |row| selected[row],
            |kernels, row, y| {
                (kernels.rms_norm)(&x[selected[row] * cols..][..cols], Some(norm.weight), norm.eps, y);
            },
        );
    }

    /// Turns rows of projections, `[rows, placement.width]`, into head vectors, in place (rules 5, 7 and 8b).
    ///
    /// # Panics
    /// If the device has no table of the rotation's number.
    pub fn place_heads(&mut self, x: &mut [f32], placement: &HeadPlacement<'_>) {
        let HeadPlacement { width, head_dim, norm, rope, transform } = *placement;
        let Self { pool, kernels, workers, rows, angles, .. } = self;
        let (kernels, positions) = (&kernels.rows, &rows.positions);
        pool.for_each_chunk_with(workers, &mut x[..positions.len() * width], width, |_, row, x| {
            for head in x.chunks_exact_mut(head_dim) {
                if let Some(norm) = norm {
                    (kernels.rms_norm_in_place)(head, Some(norm.weight), norm.eps);
                }
                if let Some(Rotation { table, style }) = rope {
                    (kernels.rope)(head, angles[table].row(positions[row] as usize), style);
                }
                if let Some(factor) = transform {
                    hadamard(head, factor);
                }
            }
        });
    }

    /// Quantises the heads' outputs: transformed back, then gated by the sigmoid of `gate`, `[rows, query_heads * head_dim]`
    /// (rules 8b, 8 and 2); each step where given.
    pub fn gate_quantise(
        &mut self,
        mixed: &super::AttentionOutput,
        gate: Option<&[f32]>,
        transform: Option<HeadTransform>,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        let cols = mixed.width();
        self.quantise_rows(cols, needs, out, |kernels, row, y| {
            mixed.read_row(row, y);
            if let Some(HeadTransform { head_dim, factor }) = transform {
                y.chunks_exact_mut(head_dim).for_each(|head| hadamard(head, factor));
            }
            if let Some(gate) = gate {
                (kernels.sigmoid_gate)(y, &gate[row * cols..][..cols]);
            }
        });
    }

    /// Quantises `SiLU(gate) * up`, both `[rows, cols]` (rules 8 and 2).
    pub fn silu_mul_quantise(
        &mut self,
        gate: &[f32],
        up: &[f32],
        cols: usize,
        needs: FormatSet,
        out: &mut Activations,
    ) {
        self.quantise_rows(cols, needs, out, |kernels, row, y| {
            y.copy_from_slice(&gate[row * cols..][..cols]);
            (kernels.silu_mul)(y, &up[row * cols..][..cols]);
        });
    }

    /// `hidden += y`, both `[rows, cols]`, with `y` normed first where `post_norm` is given (rules 5 and 6).
    pub fn add_residual(&mut self, hidden: &mut [f32], y: &[f32], cols: usize, post_norm: Option<RowNorm<'_>>) {
        let rows = self.rows.count();
        self.update_rows(&mut hidden[..rows * cols], cols, |kernels, row, h, scratch| {
            let y = &y[row * cols..][..cols];
            match post_norm {
                None => (kernels.add)(h, y),
                Some(norm) => {
                    (kernels.rms_norm)(y, Some(norm.weight), norm.eps, scratch);
                    (kernels.add)(h, scratch);
                }
            }
        });
    }

    /// Scales and bends the logits of the rows `selected` of the step, `[selected, vocab]`, in place; rows with a logit that
    /// is not finite fail (rule 10).
    pub fn bend_logits(&mut self, logits: &mut [f32], selected: &[usize], bend: &LogitsBend) {
        let &LogitsBend { vocab, scale, soft_cap } = bend;
        let logits = &mut logits[..selected.len() * vocab];
        self.update_rows(logits, vocab, |kernels, _, z, _| (kernels.scale_soft_cap)(z, scale, soft_cap));
        for (&row, z) in selected.iter().zip(logits.chunks_exact(vocab)) {
            if !(self.kernels.rows.all_finite)(z) {
                self.rows.fail(row);
            }
        }
    }

    /// Quantises rows of the step, each of `cols` values that `produce(kernels, row, out)` writes: what the named operations
    /// are made of, and what other devices are compared with.
    pub fn quantise_rows(
        &mut self,
        cols: usize,
        needs: FormatSet,
        out: &mut Activations,
        produce: impl Fn(&RowKernels, usize, &mut [f32]) + Sync,
    ) {
        self.quantise(out, [self.rows.count(), cols], needs, |row| row, produce);
    }

    /// Quantises `rows` rows of `cols` values for their consumers. `produce(kernels, row, out)` writes row `row` into `out`,
    /// `[cols]`, so that what comes before the quantisation makes no round trip through memory. A row with a NaN or an
    /// infinity becomes zeros, and row `step_row(row)` of the step fails.
    fn quantise(
        &mut self,
        activations: &mut Activations,
        [rows, cols]: [usize; 2],
        needs: FormatSet,
        step_row: impl Fn(usize) -> usize,
        produce: impl Fn(&RowKernels, usize, &mut [f32]) + Sync,
    ) {
        activations.resize(rows, cols);
        let Self { pool, kernels, workers, rows: step, .. } = self;
        for worker in workers.iter_mut() {
            worker.bad_rows.clear();
        }
        pool.for_each_chunk_with(workers, activations.rows_mut(), 1, |worker, row, out| {
            let values = &mut worker.row[..cols];
            produce(&kernels.rows, row, values);
            if !(kernels.dot.quantise_row)(values, needs, &mut out[0]) {
                worker.bad_rows.push(row);
            }
        });
        workers.iter().flat_map(|worker| &worker.bad_rows).for_each(|&row| step.fail(step_row(row)));
    }

    /// Changes rows in place: `change(kernels, row, values, scratch)` for each row of `rows`, `[_, cols]`; `scratch` is as
    /// long as a row.
    fn update_rows(
        &mut self,
        rows: &mut [f32],
        cols: usize,
        change: impl Fn(&RowKernels, usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        let Self { pool, kernels, workers, .. } = self;
        pool.for_each_chunk_with(workers, rows, cols, |worker, row, values| {
            change(&kernels.rows, row, values, &mut worker.row[..cols]);
        });
    }
}
