//! The buffers of a forward pass, allocated once.

use muser_kernels::attention::KvLayout;

use crate::device::{Device, DeviceError};
use crate::graph::HEAD_ROWS;
use crate::load::Model;
use crate::step::SequenceInput;

/// Room for steps of up to `rows_max` rows.
#[derive(Debug)]
pub(crate) struct Workspace<D: Device> {
    pub(crate) rows_max: usize,
    /// `[rows, hidden]`: the residual stream.
    pub(crate) hidden: D::Rows,
    pub(crate) activations: D::Activations,
    /// `[rows, query_heads * head_dim]`.
    pub(crate) query: D::Rows,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) key: D::Rows,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) value: D::Rows,
    /// `[rows, query_heads * head_dim]`, if a layer has a gate.
    pub(crate) gate: Option<D::Rows>,
    pub(crate) mixed: D::Mixed,
    /// `[rows, hidden]`.
    pub(crate) output: D::Rows,
    /// `[rows, feed_forward]`.
    pub(crate) ffn_gate: D::Rows,
    /// `[rows, feed_forward]`.
    pub(crate) ffn_up: D::Rows,
    /// `[HEAD_ROWS, vocab]`.
    pub(crate) logits: D::Rows,
    /// Token of each row of the step.
    pub(crate) tokens: Vec<u32>,
    /// Absolute position of each row of the step.
    pub(crate) positions: Vec<u32>,
    /// Wanted rows whose logits are being computed.
    pub(crate) head_rows: HeadRows,
    /// Copy of the residual stream on the host, for those who ask for it.
    pub(crate) captured: Vec<f32>,
    /// Storage of keys and values in the caches of this step.
    pub(crate) layout: KvLayout,
}

/// One block of rows on their way through the head.
#[derive(Debug, Default)]
pub(crate) struct HeadRows {
    /// Index of each row's sequence in the step.
    pub(crate) sequences: Vec<usize>,
    /// Index of each row among the step's rows.
    pub(crate) rows: Vec<usize>,
}

impl HeadRows {
    pub(crate) fn clear(&mut self) {
        self.sequences.clear();
        self.rows.clear();
    }

    pub(crate) fn push(&mut self, sequence: usize, row: usize) {
        self.sequences.push(sequence);
        self.rows.push(row);
    }
}

impl<D: Device> Workspace<D> {
    pub(crate) fn new(model: &Model<D>, device: &mut D, rows_max: usize) -> Result<Self, DeviceError> {
        let config = model.config();
        let gated = model.layers().iter().any(|layer| layer.attention.gate.is_some());
        Ok(Self {
            rows_max,
            hidden: device.new_rows(rows_max, config.hidden)?,
            activations: device.new_activations(rows_max.max(HEAD_ROWS), config.widest_input())?,
            query: device.new_rows(rows_max, config.query_dim())?,
            key: device.new_rows(rows_max, config.kv_dim())?,
            value: device.new_rows(rows_max, config.kv_dim())?,
            gate: gated.then(|| device.new_rows(rows_max, config.query_dim())).transpose()?,
            mixed: device.new_mixed(&model.spec().attention_shape(), rows_max)?,
            output: device.new_rows(rows_max, config.hidden)?,
            ffn_gate: device.new_rows(rows_max, config.feed_forward)?,
            ffn_up: device.new_rows(rows_max, config.feed_forward)?,
            logits: device.new_rows(HEAD_ROWS.min(rows_max), config.vocab)?,
            tokens: Vec::with_capacity(rows_max),
            positions: Vec::with_capacity(rows_max),
            head_rows: HeadRows { sequences: Vec::with_capacity(HEAD_ROWS), rows: Vec::with_capacity(HEAD_ROWS) },
            captured: Vec::new(),
            layout: KvLayout::Q8,
        })
    }

    /// Sets up the rows of a step: the caller has checked that they fit.
    pub(crate) fn start(&mut self, batch: &mut [SequenceInput<'_>], layout: KvLayout) {
        self.layout = layout;
        self.positions.clear();
        self.tokens.clear();
        for input in batch {
            input.set_first_row(self.positions.len());
            self.tokens.extend_from_slice(input.tokens);
            let positions = input.positions();
            self.positions.extend(positions.map(|p| u32::try_from(p).expect("positions are below the context, a u32")));
        }
    }
}
