//! The layer graph, written once: rows of any sequences go in, their KV goes to the caches, logits come out.
//!
//! Nothing here asks whether a row belongs to a prefill or to a decode. Kernels are chosen by the number of rows, results
//! are not (`docs/numerics.md`).

use std::ops::Range;

use muser_kernels::activations::FormatSet;
use muser_kernels::cpu::{AttentionLayer, Cpu, Product, SequenceRows, WritablePage};
use muser_kernels::rows::{RowKernels, hadamard, inverse_block};
use muser_kv::{KvLayout, PAGE_ROWS, Page};

use crate::config::ModelConfig;
use crate::layer::{FeedForward, Layer, Linear, Norm};
use crate::load::Model;
use crate::step::{ForwardError, Place, SequenceInput};
use crate::workspace::Workspace;

/// Logits are computed for this many rows at a time, which bounds their memory.
pub(crate) const HEAD_ROWS: usize = 32;

/// Everything a pass over the layers works with.
pub(crate) struct Pass<'a, 'b> {
    pub(crate) model: &'a Model,
    pub(crate) cpu: &'a mut Cpu,
    pub(crate) work: &'a mut Workspace,
    pub(crate) batch: &'a mut [SequenceInput<'b>],
}

impl Pass<'_, '_> {
    /// Puts the embeddings of the step's tokens into the residual stream.
    pub(crate) fn embed(&mut self) {
        let tokens = self.batch.iter().flat_map(|input| input.tokens).copied();
        embed(self.model, self.cpu, tokens, &mut self.work.hidden);
    }

    /// The residual stream, `[rows of the step, hidden]`.
    pub(crate) fn hidden(&self) -> &[f32] {
        &self.work.hidden[..self.work.positions.len() * self.model.config().hidden]
    }

    /// Runs layers `range` over the residual stream, in place.
    pub(crate) fn layers(&mut self, range: Range<usize>) {
        let model = self.model;
        for index in range {
            let layer = &model.layers()[index];
            self.attention(index, layer);
            self.feed_forward(&layer.feed_forward);
            self.note_failures(Place::Layer(index));
        }
    }

    fn attention(&mut self, index: usize, layer: &Layer) {
        let Self { model, cpu, work, batch } = self;
        let (config, attention) = (model.config(), &layer.attention);
        let Workspace {
            hidden,
            activations,
            query,
            key,
            value,
            gate,
            mixed,
            output,
            finite,
            positions,
            first_rows,
            layout,
            angles,
            ..
        } = &mut **work;
        let rows = positions.len();
        let (width, query_dim, kv_dim) = (config.hidden, config.query_dim(), config.kv_dim());

        let projections = [&attention.query, &attention.key, &attention.value];
        let needs = needs(projections.into_iter().chain(&attention.gate));
        cpu.quantise_rows(activations, width, needs, finite, |kernels, row, out| {
            norm(kernels, &attention.norm, &hidden[row * width..][..width], out);
        });
        let (query, key) = (&mut query[..rows * query_dim], &mut key[..rows * kv_dim]); // [rows, heads * head_dim]
        let gate_dim = if attention.gate.is_some() { query_dim } else { 0 };
        let (value, gate) = (&mut value[..rows * kv_dim], &mut gate[..rows * gate_dim]);
        let qkv = [product(&attention.query, query), product(&attention.key, key), product(&attention.value, value)];
        match &attention.gate {
            None => cpu.matmul(activations, qkv),
            Some(linear) => {
                let [q, k, v] = qkv;
                cpu.matmul(activations, [q, k, v, product(linear, gate)]);
            }
        }

        let place = HeadPlacement { config, layer, angles, positions };
        // 8-bit codes suit vectors whose elements are alike in size; f16 needs no such help.
        let spread = |factor: f32| (*layout == KvLayout::Q8).then_some(factor);
        let (spread_once, spread_and_shrink) = (spread(1.0), spread(inverse_block(config.head_dim)));
        cpu.update_rows(query, query_dim, |kernels, row, q, _| {
            place.heads(kernels, row, q, (attention.query_norm.as_ref(), spread_once));
        });
        cpu.update_rows(key, kv_dim, |kernels, row, k, _| {
            place.heads(kernels, row, k, (attention.key_norm.as_ref(), spread_and_shrink));
        });

        if let Some(factor) = spread_and_shrink {
            cpu.update_rows(value, kv_dim, |_, _, v, _| spread_heads(v, config.head_dim, factor));
        }

        let kv = AttentionLayer { shape: model.attention_shape(), layout: *layout, window: layer.config.window };
        cpu.store_kv(&kv, (key, value), writable_pages(batch, index), finite); // before attending: a token sees itself
        let batch = &**batch;
        let sequence = |number: usize| sequence_rows(batch, index, (first_rows, positions), number);
        cpu.attend(&kv, query, sequence, mixed, finite);

        cpu.quantise_rows(activations, query_dim, needs_of(&attention.output), finite, |kernels, row, out| {
            mixed.read_row(row, out);
            if let Some(factor) = spread_once {
                spread_heads(out, config.head_dim, factor); // the transform is its own inverse
            }
            if attention.gate.is_some() {
                (kernels.sigmoid_gate)(out, &gate[row * query_dim..][..query_dim]);
            }
        });
        let output = &mut output[..rows * width];
        cpu.matmul(activations, [product(&attention.output, output)]);
        add_to_residual(cpu, (&mut hidden[..rows * width], output), width, attention.post_norm.as_ref());
    }

    fn feed_forward(&mut self, ffn: &FeedForward) {
        let Self { model, cpu, work, .. } = self;
        let Workspace { hidden, activations, output, ffn_gate, ffn_up, finite, positions, .. } = &mut **work;
        let (rows, width, inner) = (positions.len(), model.config().hidden, model.config().feed_forward);

        cpu.quantise_rows(activations, width, needs([&ffn.gate, &ffn.up]), finite, |kernels, row, out| {
            norm(kernels, &ffn.norm, &hidden[row * width..][..width], out);
        });
        let (ffn_gate, ffn_up) = (&mut ffn_gate[..rows * inner], &mut ffn_up[..rows * inner]); // [rows, feed_forward]
        cpu.matmul(activations, [product(&ffn.gate, ffn_gate), product(&ffn.up, ffn_up)]);
        cpu.quantise_rows(activations, inner, needs_of(&ffn.down), finite, |kernels, row, out| {
            out.copy_from_slice(&ffn_gate[row * inner..][..inner]);
            (kernels.silu_mul)(out, &ffn_up[row * inner..][..inner]);
        });
        let output = &mut output[..rows * width];
        cpu.matmul(activations, [product(&ffn.down, output)]);
        add_to_residual(cpu, (&mut hidden[..rows * width], output), width, ffn.post_norm.as_ref());
    }

    /// Computes the wanted logits, [`HEAD_ROWS`] rows at a time, and hands each row to `on_logits` with the index of its
    /// sequence and its position.
    pub(crate) fn head(&mut self, on_logits: &mut dyn FnMut(LogitsRow, &[f32])) {
        let Self { model, cpu, work, batch } = self;
        let config = model.config();
        let (width, vocab) = (config.hidden, config.vocab);
        let Workspace { hidden, activations, logits, finite, positions, head_rows, .. } = &mut **work;
        let mut wanted = wanted_rows(batch).map(|(sequence, row)| (sequence, row, positions[row]));
        let mut failed = None;
        loop {
            head_rows.clear();
            head_rows.extend(wanted.by_ref().take(HEAD_ROWS));
            if head_rows.is_empty() {
                break;
            }
            let mut block_finite = [true; HEAD_ROWS];
            let block_finite = &mut block_finite[..head_rows.len()];
            cpu.quantise_rows(activations, width, needs_of(model.head()), block_finite, |kernels, row, out| {
                norm(kernels, model.output_norm(), &hidden[head_rows[row].1 * width..][..width], out);
            });
            let logits = &mut logits[..head_rows.len() * vocab];
            cpu.matmul(activations, [product(model.head(), logits)]);
            cpu.update_rows(logits, vocab, |kernels, _, z, _| {
                (kernels.scale_soft_cap)(z, config.logit_scale, config.logit_soft_cap);
            });
            for ((&(sequence, row, position), z), fine) in
                head_rows.iter().zip(logits.chunks_exact(vocab)).zip(block_finite)
            {
                // Rows come sequence by sequence. Those behind a bad one depend on it.
                if failed == Some(sequence) {
                    continue;
                }
                if *fine && finite[row] && (cpu.kernels().rows.all_finite)(z) {
                    on_logits(LogitsRow { sequence, position }, z);
                } else {
                    finite[row] = false;
                    failed = Some(sequence);
                }
            }
        }
        drop(wanted);
        self.note_failures(Place::Head);
    }

    /// Turns rows newly found not to be finite into their sequences' errors; the first place found stands.
    fn note_failures(&mut self, place: Place) {
        let mut row = 0;
        for input in self.batch.iter_mut() {
            let rows = row..row + input.tokens.len();
            row = rows.end;
            if input.outcome.is_ok()
                && let Some(bad) = rows.into_iter().find(|&row| !self.work.finite[row])
            {
                let position = self.work.positions[bad] as usize;
                input.outcome = Err(ForwardError { position, place });
            }
        }
    }
}

/// Writes the embeddings of `tokens`, which exist, to the front of `hidden`, `[_, width]`.
pub(crate) fn embed(model: &Model, cpu: &mut Cpu, tokens: impl Iterator<Item = u32>, hidden: &mut [f32]) {
    let config = model.config();
    let mut rows = 0;
    for token in tokens {
        model.embedding_row(token, &mut hidden[rows * config.hidden..][..config.hidden]);
        rows += 1;
    }
    if config.embedding_norm {
        cpu.update_rows(&mut hidden[..rows * config.hidden], config.hidden, |kernels, _, x, _| {
            (kernels.rms_norm_in_place)(x, None, config.norm_eps);
        });
    }
}

/// Whose logits a row of them are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsRow {
    /// Index of the sequence in the step.
    pub sequence: usize,
    /// Absolute position of the token they follow.
    pub position: u32,
}

/// Applies the Hadamard transform to each head vector of a row.
fn spread_heads(row: &mut [f32], head_dim: usize, factor: f32) {
    row.chunks_exact_mut(head_dim).for_each(|head| hadamard(head, factor));
}

/// Normalises, rotates and spreads the head vectors of a row.
struct HeadPlacement<'a> {
    config: &'a ModelConfig,
    layer: &'a Layer,
    angles: &'a muser_kernels::rope::RopeTable,
    positions: &'a [u32],
}

impl HeadPlacement<'_> {
    /// `norm` and the factor of the Hadamard transform: each only where given.
    fn heads(&self, kernels: &RowKernels, row: usize, x: &mut [f32], (norm, spread): (Option<&Norm>, Option<f32>)) {
        for head in x.chunks_exact_mut(self.config.head_dim) {
            if let Some(norm) = norm {
                (kernels.rms_norm_in_place)(head, Some(&norm.weight), norm.eps);
            }
            if self.layer.config.rope {
                let angles = self.angles.row(self.positions[row] as usize);
                (kernels.rope)(head, angles, self.config.rope.style);
            }
            if let Some(factor) = spread {
                hadamard(head, factor);
            }
        }
    }
}

/// Every wanted row of the sequences that have not failed: (sequence, row among the step's rows).
fn wanted_rows<'a>(batch: &'a [SequenceInput<'_>]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let mut end = 0;
    batch.iter().enumerate().flat_map(move |(sequence, input)| {
        end += input.tokens.len();
        let rows = if input.outcome.is_ok() { input.logits_rows() } else { 0 };
        (end - rows..end).map(move |row| (sequence, row))
    })
}

/// The rows of sequence `number` of the step, and its pages of `layer`.
fn sequence_rows<'a>(
    batch: &'a [SequenceInput<'_>],
    layer: usize,
    (first_rows, positions): (&[usize], &'a [u32]),
    number: usize,
) -> Option<SequenceRows<'a, Page>> {
    let (input, first_row) = (batch.get(number)?, *first_rows.get(number)?);
    let pages = input.cache.pages(layer);
    Some(SequenceRows {
        first_row,
        positions: &positions[first_row..][..input.tokens.len()],
        first_page: pages.first_page(),
        pages: pages.as_slice(),
    })
}

/// The pages of `layer` that the step's rows are written into.
fn writable_pages<'a>(batch: &'a mut [SequenceInput<'_>], layer: usize) -> impl Iterator<Item = WritablePage<'a>> {
    let mut end = 0;
    batch.iter_mut().flat_map(move |input| {
        let (start, first_row) = (input.cache.rows(), end);
        end += input.tokens.len();
        let stop = start + input.tokens.len();
        input.cache.pending_pages_mut(layer).map(move |(page, bytes)| {
            let position = (page * PAGE_ROWS).max(start);
            let rows = ((page + 1) * PAGE_ROWS).min(stop) - position;
            WritablePage { first_row: first_row + position - start, position, rows, bytes }
        })
    })
}

fn norm(kernels: &RowKernels, norm: &Norm, x: &[f32], out: &mut [f32]) {
    (kernels.rms_norm)(x, Some(&norm.weight), norm.eps, out);
}

/// `hidden += y`, with `y` normalised first where the architecture says so. Both `[rows, width]`.
fn add_to_residual(cpu: &mut Cpu, (hidden, y): (&mut [f32], &[f32]), width: usize, post_norm: Option<&Norm>) {
    cpu.update_rows(hidden, width, |kernels, row, h, scratch| {
        let y = &y[row * width..][..width];
        match post_norm {
            None => (kernels.add)(h, y),
            Some(post_norm) => {
                norm(kernels, post_norm, y, scratch);
                (kernels.add)(h, scratch);
            }
        }
    });
}

fn product<'a>(linear: &'a Linear, out: &'a mut [f32]) -> Product<'a> {
    Product { matrix: &linear.matrix, bias: linear.bias.as_deref(), out }
}

/// The forms in which the consumers of one vector want it.
fn needs<'a>(consumers: impl IntoIterator<Item = &'a Linear>) -> FormatSet {
    consumers.into_iter().map(|linear| linear.matrix.activation()).collect()
}

fn needs_of(consumer: &Linear) -> FormatSet {
    needs([consumer])
}
