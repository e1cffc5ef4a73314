//! The buffers of a forward pass, allocated once.

use muser_kernels::attention::KvLayout;

use crate::config::ModelConfig;
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

/// Shapes of a workspace's buffers on a device, `[rows, width]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceShape {
    /// The residual stream, and the output of half a layer.
    pub hidden: [usize; 2],
    /// Rows in the forms that matrices want them in.
    pub activations: [usize; 2],
    /// Queries, the heads' outputs, and their gate where there is one.
    pub query: [usize; 2],
    /// Keys, and values.
    pub key: [usize; 2],
    /// Gate and up of the feed-forward network.
    pub feed_forward: [usize; 2],
    /// Logits of one block of rows.
    pub logits: [usize; 2],
    /// True if a layer has a gate on its heads' outputs.
    pub is_gated: bool,
}

impl WorkspaceShape {
    /// Shapes for steps of up to `rows_max` rows.
    pub fn new(config: &ModelConfig, is_gated: bool, rows_max: usize) -> Self {
        Self {
            hidden: [rows_max, config.hidden],
            activations: [rows_max.max(HEAD_ROWS), config.widest_input()],
            query: [rows_max, config.query_dim()],
            key: [rows_max, config.kv_dim()],
            feed_forward: [rows_max, config.widest_feed_forward()],
            logits: [HEAD_ROWS.min(rows_max), config.vocab],
            is_gated,
        }
    }

    /// The buffers of floats, one by one.
    pub fn buffers(&self) -> impl Iterator<Item = [usize; 2]> {
        let Self { hidden, query, key, feed_forward, logits, is_gated, .. } = *self;
        let always = [hidden, hidden, query, query, key, key, feed_forward, feed_forward, logits];
        always.into_iter().chain(is_gated.then_some(query))
    }
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
        let is_gated = model.layers().iter().any(|layer| layer.attention.gate.is_some());
        let shape = WorkspaceShape::new(model.config(), is_gated, rows_max);
        let [activation_rows, activation_cols] = shape.activations;
        let mut rows = |[rows, width]: [usize; 2]| device.new_rows(rows, width);
        Ok(Self {
            rows_max,
            hidden: rows(shape.hidden)?,
            query: rows(shape.query)?,
            key: rows(shape.key)?,
            value: rows(shape.key)?,
            gate: is_gated.then(|| rows(shape.query)).transpose()?,
            output: rows(shape.hidden)?,
            ffn_gate: rows(shape.feed_forward)?,
            ffn_up: rows(shape.feed_forward)?,
            logits: rows(shape.logits)?,
            mixed: device.new_mixed(&model.spec().attention_shape(), rows_max)?,
            activations: device.new_activations(activation_rows, activation_cols)?,
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
