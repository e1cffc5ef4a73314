//! Operations that end in a quantisation: norm, SiLU, the gate of attention (rules 5, 6, 8, 8b, then 2).

use super::{Failures, Queue, dimension};
use crate::activations::{DeviceActivations, Forms};
use crate::driver::{Arguments, DeviceBuffer, Launch};

#[rustfmt::skip]
pub(crate) const KERNELS: &[&str] = &[
    "quantise_norm", "quantise_norm_any", "quantise_silu", "quantise_gate", "quantise_plain",
    "quantise_norm_2048", "quantise_norm_3072", "quantise_norm_4096", "quantise_norm_5120", "quantise_norm_6656",
];

/// Threads of a block, as in `kernels/quantise.cuh`.
const THREADS: usize = 256;
/// Threads of a block of `quantise_norm`.
const NORM_THREADS: usize = 512;
/// Threads of a block of the norms that hold a row in registers.
const HELD_THREADS: usize = 128;
/// Rows from which on a norm that holds a row in registers pays: fewer are a matter of latency, and more threads a row help.
const HELD_ROWS_MIN: usize = 33;

/// Weight and epsilon of a norm.
#[derive(Clone, Copy, Debug)]
pub struct DeviceNorm<'a> {
    /// `[cols]`.
    pub weight: &'a DeviceBuffer<f32>,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// A residual sum that comes before a norm.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// `[rows, cols]`, added to the residual stream.
    pub addend: &'a DeviceBuffer<f32>,
    /// Norm of the addend, before the sum.
    pub post_norm: Option<DeviceNorm<'a>>,
}

/// Rows to normalise and quantise.
#[derive(Clone, Copy, Debug)]
pub struct NormRows<'a> {
    /// Rows of the result.
    pub rows: usize,
    /// Width of the residual stream.
    pub cols: usize,
    /// `[rows]`: the row of the residual stream that each row of the result comes from; the same row where not given. No
    /// row may come twice where there is a residual sum.
    pub indices: Option<&'a DeviceBuffer<u32>>,
    /// Added to the residual stream first, which is changed by it.
    pub residual: Option<Residual<'a>>,
    /// The norm.
    pub norm: DeviceNorm<'a>,
    /// Layouts of the result.
    pub forms: Forms,
}

/// Attention outputs to gate and quantise.
#[derive(Clone, Copy, Debug)]
pub struct GateRows<'a> {
    /// Rows.
    pub rows: usize,
    /// `query_heads * head_dim`.
    pub cols: usize,
    /// `[rows, cols]`: outputs of the heads.
    pub mixed: &'a DeviceBuffer<f32>,
    /// `[rows, cols]`: each output is multiplied by the sigmoid of its gate.
    pub gate: Option<&'a DeviceBuffer<f32>>,
    /// Head dimension, where the outputs are to be transformed back (rule 8b); `q8` caches only.
    pub spread_head_dim: Option<usize>,
    /// Layouts of the result.
    pub forms: Forms,
}

impl Queue {
    /// `hidden += y` or `hidden += norm(y)` where there is a residual, then norm and quantisation of the rows. `hidden` is
    /// `[_, cols]`. Rows that are not finite become zeros and are reported under their index in `hidden`.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn norm_quantise(
        &mut self,
        out: &mut DeviceActivations,
        hidden: &mut DeviceBuffer<f32>,
        rows: &NormRows<'_>,
        failures: &mut Failures<'_>,
    ) {
        let NormRows { rows: count, cols, indices, residual, norm, forms } = *rows;
        assert!(norm.weight.len() >= cols, "a norm weight of {} for {cols} columns", norm.weight.len());
        match indices {
            Some(indices) => assert!(indices.len() >= count, "{} indices for {count} rows", indices.len()),
            None => {
                assert!(
                    hidden.len() >= count * cols && failures.status.len() >= count,
                    "{count} rows of {cols} values"
                );
            }
        }
        let post_norm = residual.and_then(|residual| residual.post_norm);
        if let Some(residual) = residual {
            assert!(residual.addend.len() >= count * cols, "an addend of {count} rows of {cols} values");
            assert!(post_norm.is_none_or(|norm| norm.weight.len() >= cols), "a norm weight for {cols} columns");
        }
        out.begin(count, cols, forms);
        let address = |buffer: Option<&DeviceBuffer<f32>>| buffer.map_or(0, DeviceBuffer::address);
        let post_eps = post_norm.map_or(0, |norm| norm.eps.to_bits());
        let operands = [
            hidden.address(),
            indices.map_or(0, DeviceBuffer::address),
            address(residual.map(|residual| residual.addend)),
            address(post_norm.map(|norm| norm.weight)),
            norm.weight.address(),
            failures.status.address(),
            cols as u64,
            u64::from(norm.eps.to_bits()) | u64::from(post_eps) << 32,
            u64::from(failures.place),
        ];
        let arguments = Arguments::new().structure(&out.addresses()).structure(&operands);
        // The row and its addend stay in shared memory where they fit, beside 2 KB of the kernel's own.
        let shared = 4 * cols * if residual.is_some() { 2 } else { 1 };
        let fits = cols.is_multiple_of(4) && shared + 2048 <= self.context().shared_bytes_max() as usize;
        let (kernel, threads, shared) = match held_norm(cols).filter(|_| is_held(count, forms)) {
            Some(kernel) => (kernel, HELD_THREADS, 0),
            None if fits => ("quantise_norm", NORM_THREADS, shared),
            None => ("quantise_norm_any", THREADS, 0),
        };
        let launch = self.early(Launch::of(dimension(count), dimension(threads)).shared(dimension(shared)));
        // SAFETY: the kernel's parameters in order; the lengths were checked above, and indices are the caller's rows.
        unsafe { self.launch(kernel, &launch, arguments) };
    }

    /// `SiLU(gate) * up`, quantised; both `[rows, cols]`. Rows that are not finite are reported, and those of their groups of
    /// 256 that are not finite become zeros.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn silu_mul_quantise(
        &mut self,
        out: &mut DeviceActivations,
        (gate, up): (&DeviceBuffer<f32>, &DeviceBuffer<f32>),
        (rows, cols): (usize, usize),
        forms: Forms,
        failures: &mut Failures<'_>,
    ) {
        assert!(gate.len().min(up.len()) >= rows * cols, "gate and up of {rows} rows of {cols} values");
        assert!(failures.status.len() >= rows, "status of {rows} rows");
        out.begin(rows, cols, forms);
        let arguments = Arguments::new()
            .structure(&out.addresses())
            .buffer(gate)
            .buffer(up)
            .size(rows)
            .size(cols)
            .buffer(failures.status)
            .u32(failures.place);
        let launch = self.group_launch(out);
        // SAFETY: the kernel's parameters in order; the lengths were checked above.
        unsafe { self.launch("quantise_silu", &launch, arguments) };
    }

    /// The heads' outputs, transformed back and gated where asked for, quantised. Rows that are not finite are reported, and
    /// those of their groups of 256 that are not finite become zeros.
    ///
    /// # Panics
    /// If a buffer is too short or the head dimension is no multiple of 32 up to 256.
    pub fn gate_quantise(&mut self, out: &mut DeviceActivations, rows: &GateRows<'_>, failures: &mut Failures<'_>) {
        let GateRows { rows: count, cols, mixed, gate, spread_head_dim, forms } = *rows;
        assert!(mixed.len() >= count * cols, "heads' outputs of {count} rows of {cols} values");
        assert!(gate.is_none_or(|gate| gate.len() >= count * cols), "gates of {count} rows of {cols} values");
        assert!(failures.status.len() >= count, "status of {count} rows");
        let block = spread_head_dim.map_or(0, |dim| {
            assert!(dim % 32 == 0 && (32..=256).contains(&dim) && cols.is_multiple_of(dim), "heads of {dim} in {cols}");
            1 << dim.trailing_zeros()
        });
        out.begin(count, cols, forms);
        let arguments = Arguments::new()
            .structure(&out.addresses())
            .buffer(mixed)
            .optional(gate)
            .size(count)
            .size(cols)
            .u32(block)
            .buffer(failures.status)
            .u32(failures.place);
        let launch = self.group_launch(out);
        // SAFETY: the kernel's parameters in order; the lengths were checked above, and blocks divide `cols`.
        unsafe { self.launch("quantise_gate", &launch, arguments) };
    }

    /// Quantises `x`, `[rows, cols]`. Rows that are not finite are reported, and those of their groups of 256 that are not
    /// finite become zeros.
    ///
    /// # Panics
    /// If a buffer is too short.
    pub fn quantise(
        &mut self,
        out: &mut DeviceActivations,
        x: &DeviceBuffer<f32>,
        (rows, cols): (usize, usize),
        forms: Forms,
        failures: &mut Failures<'_>,
    ) {
        assert!(x.len() >= rows * cols && failures.status.len() >= rows, "{rows} rows of {cols} values");
        out.begin(rows, cols, forms);
        let arguments = Arguments::new()
            .structure(&out.addresses())
            .buffer(x)
            .size(rows)
            .size(cols)
            .buffer(failures.status)
            .u32(failures.place);
        // SAFETY: the kernel's parameters in order; the lengths were checked above.
        unsafe { self.launch("quantise_plain", &self.group_launch(out), arguments) };
    }

    /// A launch with a warp for each group of 256 values.
    fn group_launch(&self, out: &DeviceActivations) -> Launch {
        let groups = out.rows() * out.blocks();
        self.early(Launch::of(dimension(groups.div_ceil(THREADS / 32)), dimension(THREADS)))
    }
}

/// True if the layouts and the number of rows suit a norm that holds a row in registers.
fn is_held(rows: usize, forms: Forms) -> bool {
    let tiles = Forms::HALF_TILES | Forms::BYTE_TILES;
    rows >= HELD_ROWS_MIN && forms != Forms::EMPTY && tiles.contains(forms)
}

/// The norm that holds a row of `cols` values in registers, if there is one.
fn held_norm(cols: usize) -> Option<&'static str> {
    match cols {
        2048 => Some("quantise_norm_2048"),
        3072 => Some("quantise_norm_3072"),
        4096 => Some("quantise_norm_4096"),
        5120 => Some("quantise_norm_5120"),
        6656 => Some("quantise_norm_6656"),
        _ => None,
    }
}
