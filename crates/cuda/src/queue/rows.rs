//! Operations on rows that do not end in a quantisation: embedding, residual sums, logits (rules 6, 6a and 10).

use muser_kernels::formats::WeightType;

use super::quantise::DeviceNorm;
use super::{Failures, Queue, dimension};
use crate::driver::{Arguments, DeviceBuffer, Launch};

pub(crate) const KERNELS: &[&str] = &["embed_rows", "add_residual", "finish_logits"];

/// Threads of a block, as in `kernels/rows.cu`.
const THREADS: u32 = 256;
/// Blocks that share a row of logits.
const LOGITS_BLOCKS: u32 = 64;

/// An embedding table as stored in the file, on the device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceEmbeddingTable<'a> {
    /// `[vocab][bytes of a row]`.
    pub bytes: &'a DeviceBuffer<u8>,
    /// Type of its weights.
    pub weight_type: WeightType,
    /// Weights of a row.
    pub cols: usize,
}

/// Last steps of the logits.
#[derive(Clone, Copy, Debug)]
pub struct LogitsScale {
    /// Factor, where the model has one.
    pub scale: Option<f32>,
    /// Soft-cap, where the model has one.
    pub soft_cap: Option<f32>,
}

/// Rows of logits.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRows<'a> {
    /// Rows.
    pub rows: usize,
    /// Logits of a row.
    pub vocab: usize,
    /// `[rows]`: the row of the step that each row belongs to; the same row where not given.
    pub step_rows: Option<&'a DeviceBuffer<u32>>,
}

impl Queue {
    /// Writes the embeddings of `tokens[..rows]`, which the caller has checked against the vocabulary, to `out`, `[rows, cols]`;
    /// with `norm_eps` each row is then normalised without a weight.
    ///
    /// # Panics
    /// If a buffer is too short or a row is no whole number of blocks.
    pub fn embed(
        &mut self,
        tokens: &DeviceBuffer<u32>,
        rows: usize,
        table: &DeviceEmbeddingTable<'_>,
        norm_eps: Option<f32>,
        out: &mut DeviceBuffer<f32>,
    ) {
        let DeviceEmbeddingTable { bytes, weight_type, cols } = *table;
        let row_bytes = weight_type.row_bytes(cols).unwrap_or_else(|| panic!("rows of {cols} {weight_type} weights"));
        assert!(tokens.len() >= rows && out.len() >= rows * cols, "embeddings of {rows} rows of {cols} values");
        let arguments = Arguments::new()
            .buffer(tokens)
            .buffer(bytes)
            .u32(weight_type as u32)
            .structure(&[row_bytes as u64])
            .buffer(out)
            .size(cols)
            .u32(u32::from(norm_eps.is_some()))
            .f32(norm_eps.unwrap_or(0.0));
        let launch = self.early(Launch::of(dimension(rows), THREADS));
        // SAFETY: the kernel's parameters in order; lengths were checked above, and the caller answers for the tokens.
        unsafe { self.launch("embed_rows", &launch, arguments) };
    }

    /// `hidden += y`, or `hidden += norm(y)`; both `[rows, cols]`.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn add_residual(
        &mut self,
        hidden: &mut DeviceBuffer<f32>,
        y: &DeviceBuffer<f32>,
        (rows, cols): (usize, usize),
        post_norm: Option<DeviceNorm<'_>>,
    ) {
        assert!(hidden.len().min(y.len()) >= rows * cols, "terms of {rows} rows of {cols} values");
        assert!(post_norm.is_none_or(|norm| norm.weight.len() >= cols), "a norm weight for {cols} columns");
        let arguments = Arguments::new()
            .buffer(hidden)
            .buffer(y)
            .size(cols)
            .optional(post_norm.map(|norm| norm.weight))
            .f32(post_norm.map_or(0.0, |norm| norm.eps));
        let launch = self.early(Launch::of(dimension(rows), THREADS));
        // SAFETY: the kernel's parameters in order; the lengths were checked above.
        unsafe { self.launch("add_residual", &launch, arguments) };
    }

    /// Scales and caps logits, `[rows, vocab]`, in place, and reports the rows of the step whose logits are not finite.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn finish_logits(
        &mut self,
        logits: &mut DeviceBuffer<f32>,
        rows: &LogitsRows<'_>,
        scale: &LogitsScale,
        failures: &mut Failures<'_>,
    ) {
        let LogitsRows { rows, vocab, step_rows } = *rows;
        assert!(logits.len() >= rows * vocab, "{rows} rows of {vocab} logits");
        match step_rows {
            Some(step_rows) => assert!(step_rows.len() >= rows, "{} indices for {rows} rows", step_rows.len()),
            None => assert!(failures.status.len() >= rows, "status of {rows} rows"),
        }
        let arguments = Arguments::new()
            .buffer(logits)
            .size(vocab)
            .u32(u32::from(scale.scale.is_some()))
            .f32(scale.scale.unwrap_or(0.0))
            .u32(u32::from(scale.soft_cap.is_some()))
            .f32(scale.soft_cap.unwrap_or(0.0))
            .optional(step_rows)
            .buffer(failures.status)
            .u32(failures.place);
        let launch = self.early(Launch::of(LOGITS_BLOCKS, THREADS).rows(dimension(rows)));
        // SAFETY: the kernel's parameters in order; lengths were checked above, and indices are the caller's rows.
        unsafe { self.launch("finish_logits", &launch, arguments) };
    }
}
