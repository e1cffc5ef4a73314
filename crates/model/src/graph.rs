//! The layer graph, written once: rows of any sequences go in, their KV goes to the caches, logits come out.
//!
//! Nothing here asks whether a row belongs to a prefill or to a decode, or which device computes. Kernels are chosen by the
//! number of rows, results are not (`docs/numerics.md`).

use std::ops::Range;

use muser_kernels::cpu::{HeadTransform, LogitsBend, RowStatus};
use muser_kernels::rows::inverse_block;
use muser_kv::KvLayout;

use crate::device::{Addend, Device, DeviceError, DeviceProduct, KvLayer, Placement};
use crate::feed_forward::FeedForward;
use crate::layer::{Layer, Linear, Norm};
use crate::load::Model;
use crate::step::{ForwardError, Place, SequenceInput};
use crate::workspace::Workspace;

/// Logits are computed for this many rows at a time, which bounds their memory.
pub(crate) const HEAD_ROWS: usize = 32;

/// Everything a pass over the layers works with.
pub(crate) struct Pass<'a, 'b, D: Device> {
    pub(crate) model: &'a Model<D>,
    pub(crate) device: &'a mut D,
    pub(crate) work: &'a mut Workspace<D>,
    pub(crate) batch: &'a mut [SequenceInput<'b>],
}

/// Sequence and position that a row of logits belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsRow {
    /// Index of the sequence in the step.
    pub sequence: usize,
    /// Absolute position of the token they follow.
    pub position: u32,
}

/// The output of half a layer, on its way into the residual stream: the next norm adds it in the same operation.
struct Carried<'m, D: Device> {
    post_norm: Option<&'m Norm<D::Vector>>,
}

impl<'m, D: Device> Carried<'m, D> {
    fn addend<'a>(self, output: &'a D::Rows) -> Addend<'a, D>
    where
        'm: 'a,
    {
        Addend { rows: output, post_norm: self.post_norm }
    }
}

impl<D: Device> Pass<'_, '_, D> {
    /// Puts the embeddings of the step's tokens into the residual stream.
    pub(crate) fn embed(&mut self) {
        embed(self.model, self.device, &self.work.tokens, &mut self.work.hidden);
    }

    /// Runs layers `range` over the residual stream, in place.
    pub(crate) fn layers(&mut self, range: Range<usize>) {
        let model = self.model;
        let mut carried = None;
        for index in range {
            let layer = &model.layers()[index];
            self.device.set_site(Place::Layer(index).site(model.layers().len()));
            let carried_on = self.attention(index, layer, carried);
            carried = Some(self.feed_forward(&layer.feed_forward, carried_on));
        }
        if let Some(Carried { post_norm }) = carried {
            let Workspace { hidden, output, .. } = &mut *self.work;
            self.device.add_residual(hidden, Addend { rows: output, post_norm }, model.config().hidden);
        }
    }

    fn attention<'m>(&mut self, index: usize, layer: &'m Layer<D>, carried: Option<Carried<'m, D>>) -> Carried<'m, D> {
        let Self { model, device, work, batch } = self;
        let (config, attention) = (model.config(), &layer.attention);
        let Workspace { hidden, activations, query, key, value, gate, mixed, output, layout, positions, .. } =
            &mut **work;
        let rows = positions.len();
        let kv = KvLayer { index, shape: model.spec().attention_shape(), layout: *layout, window: layer.config.window };

        let projections = [&attention.query, &attention.key, &attention.value];
        let needs = needs(projections.into_iter().chain(&attention.gate), rows);
        let addend = carried.map(|carried| carried.addend(output));
        device.norm_quantise(hidden, addend, &attention.norm, needs, activations); // [rows, hidden]
        let qkv = [product(&attention.query, query), product(&attention.key, key), product(&attention.value, value)];
        match attention.gate.as_ref().zip(gate.as_mut()) {
            None => device.matmul(activations, qkv), // [rows, heads * head_dim]
            Some((linear, gate)) => {
                let [q, k, v] = qkv;
                device.matmul(activations, [q, k, v, product(linear, gate)]);
            }
        }

        // 8-bit codes suit vectors whose elements are alike in size; f16 needs no such help.
        let transform = |factor: f32| (*layout == KvLayout::Q8).then_some(factor);
        let (transform_once, transform_and_shrink) = (transform(1.0), transform(inverse_block(config.head_dim)));
        let rope = attention.rotation;
        let (head_dim, kv_dim) = (config.head_dim, config.kv_dim());
        let (query_norm, key_norm) = (attention.query_norm.as_ref(), attention.key_norm.as_ref());
        let placements = [
            Placement { width: config.query_dim(), head_dim, norm: query_norm, rope, transform: transform_once },
            Placement { width: kv_dim, head_dim, norm: key_norm, rope, transform: transform_and_shrink },
            Placement { width: kv_dim, head_dim, norm: None, rope: None, transform: transform_and_shrink },
        ];
        device.place_and_store(&kv, [query, key, value], &placements, batch); // before attending: a token sees itself
        device.attend(&kv, query, batch, mixed); // [rows, query_heads * head_dim]
        // The transform is its own inverse.
        let transform = transform_once.map(|factor| HeadTransform { head_dim: config.head_dim, factor });
        let gate = gate.as_ref().filter(|_| attention.gate.is_some());
        device.gate_quantise(mixed, gate, transform, needs_of(&attention.output, rows), activations);
        device.matmul(activations, [product(&attention.output, output)]); // [rows, hidden]
        Carried { post_norm: attention.post_norm.as_ref() }
    }

    fn feed_forward<'m>(&mut self, ffn: &'m FeedForward<D>, carried: Carried<'m, D>) -> Carried<'m, D> {
        let Self { device, work, .. } = self;
        let Workspace { hidden, activations, output, positions, .. } = &mut **work;
        let needs = ffn.network.needs(positions.len());
        device.norm_quantise(hidden, Some(carried.addend(output)), &ffn.norm, needs, activations); // [rows, hidden]
        ffn.network.forward(device, work); // [rows, hidden]
        Carried { post_norm: ffn.post_norm.as_ref() }
    }

    /// Computes the wanted logits, [`HEAD_ROWS`] rows at a time, and hands each row to `on_logits` with the index of its
    /// sequence and its position. A sequence that failed gets none from its first bad row on: the rows behind depend on it.
    pub(crate) fn head(&mut self, on_logits: &mut dyn FnMut(LogitsRow, &[f32])) -> Result<(), DeviceError> {
        let Self { model, device, work, batch } = self;
        let config = model.config();
        let Workspace { hidden, activations, logits, positions, head_rows, .. } = &mut **work;
        let bend = LogitsBend { vocab: config.vocab, scale: config.logit_scale, soft_cap: config.logit_soft_cap };
        device.set_site(Place::Head.site(model.layers().len()));
        for done in (0..).step_by(HEAD_ROWS) {
            head_rows.clear();
            wanted_rows(batch).skip(done).take(HEAD_ROWS).for_each(|(sequence, row)| head_rows.push(sequence, row));
            if head_rows.rows.is_empty() {
                break;
            }
            let needs = needs_of(model.head(), head_rows.rows.len());
            device.norm_quantise_selected(hidden, &head_rows.rows, model.output_norm(), needs, activations);
            device.matmul(activations, [product(model.head(), logits)]); // [selected, vocab]
            device.bend_logits(logits, &head_rows.rows, &bend);
            let (z, status) = device.logits(logits, head_rows.rows.len() * config.vocab)?;
            note_failures(batch, status, model.layers().len());
            for ((&sequence, &row), z) in
                head_rows.sequences.iter().zip(&head_rows.rows).zip(z.chunks_exact(config.vocab))
            {
                let position = positions[row];
                let hides = |error: ForwardError| error.place != Place::Head || position as usize >= error.position;
                if !batch[sequence].outcome.is_err_and(hides) {
                    on_logits(LogitsRow { sequence, position }, z);
                }
            }
        }
        self.note_failures()
    }

    /// Turns rows that are not finite into their sequences' errors.
    pub(crate) fn note_failures(&mut self) -> Result<(), DeviceError> {
        let status = self.device.row_status()?;
        note_failures(self.batch, status, self.model.layers().len());
        Ok(())
    }
}

/// Turns rows that are not finite into their sequences' errors: the first place in the graph stands, and there the first
/// row.
fn note_failures(batch: &mut [SequenceInput<'_>], status: &[RowStatus], layers: usize) {
    for input in batch.iter_mut().filter(|input| input.outcome.is_ok()) {
        let rows = status[input.first_row()..][..input.tokens.len()].iter().enumerate();
        let failed = rows.filter_map(|(row, status)| status.site().map(|site| (site, row))).min();
        if let Some((site, row)) = failed {
            let position = input.cache.rows() + row;
            input.outcome = Err(ForwardError { position, place: Place::of_site(site, layers) });
        }
    }
}

/// Writes the embeddings of `tokens`, which exist, to the front of `hidden`, `[_, width]`.
pub(crate) fn embed<D: Device>(model: &Model<D>, device: &mut D, tokens: &[u32], hidden: &mut D::Rows) {
    let config = model.config();
    device.embed(model.table(), tokens, config.embedding_norm.then_some(config.norm_eps), hidden);
}

/// Every row whose logits are wanted: (sequence, row among the step's rows).
fn wanted_rows<'a>(batch: &'a [SequenceInput<'_>]) -> impl Iterator<Item = (usize, usize)> + 'a {
    batch.iter().enumerate().flat_map(move |(sequence, input)| {
        let end = input.first_row() + input.tokens.len();
        (end - input.logits_rows()..end).map(move |row| (sequence, row))
    })
}

pub(crate) fn product<'a, D: Device>(linear: &'a Linear<D>, out: &'a mut D::Rows) -> DeviceProduct<'a, D> {
    DeviceProduct { matrix: &linear.matrix, bias: linear.bias.as_ref(), out }
}

/// The forms in which the consumers of `rows` vectors want them.
pub(crate) fn needs<'a, D: Device + 'a>(consumers: impl IntoIterator<Item = &'a Linear<D>>, rows: usize) -> D::Needs {
    consumers.into_iter().fold(D::Needs::default(), |needs, linear| needs | D::needs(&linear.matrix, rows))
}

pub(crate) fn needs_of<D: Device>(consumer: &Linear<D>, rows: usize) -> D::Needs {
    needs([consumer], rows)
}
