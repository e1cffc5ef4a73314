//! The buffers of a forward pass, allocated once.

use muser_kernels::activations::Activations;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::AttentionOutput;
use muser_kernels::rope::RopeTable;

use crate::graph::HEAD_ROWS;
use crate::load::Model;
use crate::step::SequenceInput;

/// Room for steps of up to `rows_max` rows.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) rows_max: usize,
    /// `[rows, hidden]`: the residual stream.
    pub(crate) hidden: Vec<f32>,
    pub(crate) activations: Activations,
    /// `[rows, query_heads * head_dim]`.
    pub(crate) query: Vec<f32>,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) key: Vec<f32>,
    /// `[rows, kv_heads * head_dim]`.
    pub(crate) value: Vec<f32>,
    /// `[rows, query_heads * head_dim]`; empty if no layer has a gate.
    pub(crate) gate: Vec<f32>,
    pub(crate) mixed: AttentionOutput,
    /// `[rows, hidden]`.
    pub(crate) output: Vec<f32>,
    /// `[rows, feed_forward]`.
    pub(crate) ffn_gate: Vec<f32>,
    /// `[rows, feed_forward]`.
    pub(crate) ffn_up: Vec<f32>,
    /// `[HEAD_ROWS, vocab]`.
    pub(crate) logits: Vec<f32>,
    /// One flag per row of the step: cleared where a NaN or an infinity was met.
    pub(crate) finite: Vec<bool>,
    /// Absolute position of each row of the step.
    pub(crate) positions: Vec<u32>,
    /// First row of each sequence of the step.
    pub(crate) first_rows: Vec<usize>,
    /// Rows whose logits are being computed: sequence, row, position.
    pub(crate) head_rows: Vec<(usize, usize, u32)>,
    /// Cosines and sines of the positions met so far.
    pub(crate) angles: RopeTable,
    /// How the caches of this step keep keys and values.
    pub(crate) layout: KvLayout,
}

impl Workspace {
    pub(crate) fn new(model: &Model, rows_max: usize) -> Self {
        let config = model.config();
        let floats = |width: usize| vec![0.0; rows_max * width];
        let gated = model.layers().iter().any(|layer| layer.attention.gate.is_some());
        Self {
            rows_max,
            hidden: floats(config.hidden),
            activations: Activations::new(rows_max.max(HEAD_ROWS), config.widest_input()),
            query: floats(config.query_dim()),
            key: floats(config.kv_dim()),
            value: floats(config.kv_dim()),
            gate: floats(if gated { config.query_dim() } else { 0 }),
            mixed: AttentionOutput::new(&model.attention_shape(), rows_max),
            output: floats(config.hidden),
            ffn_gate: floats(config.feed_forward),
            ffn_up: floats(config.feed_forward),
            logits: vec![0.0; HEAD_ROWS.min(rows_max) * config.vocab],
            finite: Vec::with_capacity(rows_max),
            positions: Vec::with_capacity(rows_max),
            first_rows: Vec::with_capacity(rows_max),
            head_rows: Vec::with_capacity(HEAD_ROWS),
            angles: model.new_angles(),
            layout: KvLayout::Q8,
        }
    }

    /// Sets up the rows of a step: the caller has checked that they fit.
    pub(crate) fn start(&mut self, batch: &[SequenceInput<'_>], layout: KvLayout) {
        self.layout = layout;
        self.positions.clear();
        self.first_rows.clear();
        for input in batch {
            self.first_rows.push(self.positions.len());
            let start = input.cache.rows();
            let end = start + input.tokens.len();
            self.positions
                .extend((start..end).map(|p| u32::try_from(p).expect("positions are below the context, a u32")));
        }
        self.finite.clear();
        self.finite.resize(self.positions.len(), true);
    }

    /// Makes sure that every position of the step has its angles. The table grows by doubling, so that decode seldom waits.
    pub(crate) fn extend_angles(&mut self, context: usize) {
        let needed = self.positions.iter().max().map_or(0, |last| *last as usize + 1);
        if needed > self.angles.positions() {
            self.angles.extend_to(needed.max(2 * self.angles.positions()).min(context));
        }
    }
}
