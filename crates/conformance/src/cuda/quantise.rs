//! Operations that end in a quantisation, against the CPU's.

use std::num::NonZeroUsize;

use muser_cuda::DeviceBuffer;
use muser_cuda::activations::{DeviceActivations, Forms};
use muser_cuda::queue::quantise::{DeviceNorm, GateRows, NormRows, Residual};
use muser_cuda::queue::{FINE, Failures};
use muser_kernels::activations::{ActivationFormat, Activations as CpuActivations, FormatSet};
use muser_kernels::attention::AttentionShape;
use muser_kernels::cpu::{Cpu, CpuLimits, Kernels};
use muser_kernels::rows::{RowKernels, hadamard};

use super::world::{CudaError, World};
use muser_kernels::samples::activation_row;

const PLACE: u32 = 7;

/// Rows and columns: all widths of the home model and of small ones, and awkward ones; then many rows of each width whose
/// norm has a kernel of its own.
#[rustfmt::skip]
const SHAPES: [(usize, usize); 15] = [
    (1, 6656), (3, 576), (37, 512), (130, 1536), (5, 19968), (2, 4096), (9, 32), (1, 100_000), (4, 8192), (7, 1023),
    (35, 2048), (130, 3072), (33, 4096), (129, 5120), (200, 6656),
];

/// One case: a shape, the CPU, and random operands.
pub(super) struct Case {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) cpu: Cpu,
    pub(super) rng: fastrand::Rng,
}

impl Case {
    pub(super) fn new(rows: usize, cols: usize, seed: u64) -> Result<Self, CudaError> {
        let shape = AttentionShape::new(1, 1, 32)?;
        let threads = NonZeroUsize::new(8).expect("not zero");
        let limits = CpuLimits { cols_max: cols, attention: shape, angles: Vec::new(), context: rows };
        let mut cpu = Cpu::new(Kernels::detected(), threads, limits)?;
        let positions: Vec<u32> = (0..).take(rows).collect();
        cpu.begin_step(&positions);
        cpu.set_site(PLACE);
        Ok(Self { rows, cols, cpu, rng: fastrand::Rng::with_seed(seed) })
    }

    /// Adversarial rows without a value that is not finite.
    pub(super) fn finite_rows(&mut self) -> Vec<f32> {
        (0..self.rows).flat_map(|_| activation_row(self.cols, &mut self.rng)).collect()
    }

    /// Adversarial rows; of more than two, the second holds a value that is not finite.
    pub(super) fn rows(&mut self) -> Vec<f32> {
        let mut values = self.finite_rows();
        if self.rows > 2 {
            let at = self.cols + self.rng.usize(..self.cols);
            values[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][self.rng.usize(..3)];
        }
        values
    }

    /// Values around one.
    pub(super) fn weight(&mut self) -> Vec<f32> {
        (0..self.cols).map(|_| 2.0 * self.rng.f32() - 0.5).collect()
    }

    /// The CPU's results for the rows of `produce`.
    fn expected(&mut self, produce: impl Fn(&RowKernels, usize, &mut [f32]) + Sync) -> Expected {
        let mut activations = CpuActivations::new(self.rows, self.cols);
        let positions: Vec<u32> = (0..).take(self.rows).collect();
        self.cpu.begin_step(&positions);
        self.cpu.set_site(PLACE);
        self.cpu.quantise_rows(self.cols, FormatSet::ALL, &mut activations, produce);
        let status = self.cpu.row_status().iter();
        let status = status.map(|status| status.site().unwrap_or(FINE)).collect();
        Expected { activations, status }
    }
}

/// The CPU's result of a quantisation.
struct Expected {
    activations: CpuActivations,
    /// [`FINE`] for each row, or the place at which it was not finite.
    status: Vec<u32>,
}

/// Compares the forms of `got` with those of the CPU, for the rows that did not fail: the others are never read.
fn compare(
    world: &mut World,
    what: &str,
    got: &mut DeviceActivations,
    expected: &CpuActivations,
    status: &[u32],
) -> Result<(), CudaError> {
    let cols = expected.cols();
    let padded = cols.next_multiple_of(256);
    let fine = || status.iter().enumerate().filter(|(_, status)| **status == FINE).map(|(row, _)| row);
    let (by_256, by_32) = ((ActivationFormat::Int8x256, 256), (ActivationFormat::Int8x32, 32));
    let layouts = [
        (Forms::CODES_256, by_256),
        (Forms::HALF_TILES, by_256),
        (Forms::BYTE_TILES, by_256),
        (Forms::CODES_32, by_32),
    ];
    for (form, (format, group)) in layouts.into_iter().filter(|(form, _)| got.forms().contains(*form)) {
        let (codes, scales) = match form {
            Forms::HALF_TILES | Forms::BYTE_TILES => got.download_tiles(&mut world.queue, form)?,
            _ => got.download(&mut world.queue, format)?,
        };
        let what = format!("{what} {form:?}");
        let want_codes: Vec<i8> = fine().flat_map(|row| expected.row(row).codes(format).collect::<Vec<_>>()).collect();
        let got_codes: Vec<i8> = fine().flat_map(|row| &codes[row * padded..][..cols]).copied().collect();
        world.compare(&format_args!("{what} {format:?} codes"), cols, &want_codes, &got_codes);
        let groups = cols.div_ceil(group);
        let want_scales: Vec<f32> = fine().flat_map(|row| expected.row(row).scales(format)).collect();
        let got_scales: Vec<f32> =
            fine().flat_map(|row| &scales[row * (padded / group)..][..groups]).copied().collect();
        world.compare(&format_args!("{what} {format:?} scales"), groups, &want_scales, &got_scales);
    }
    if !got.forms().contains(Forms::FLOATS) {
        return Ok(());
    }
    let want: Vec<f32> = fine().flat_map(|row| expected.row(row).floats()).copied().collect();
    let floats = got.download_floats(&mut world.queue)?;
    let floats: Vec<f32> = fine().flat_map(|row| &floats[row * cols..][..cols]).copied().collect();
    world.compare(&format_args!("{what} floats"), cols, &want, &floats);
    Ok(())
}

/// Runs `enqueue` up to four times with the result poisoned before each. `row_of` is the row of the step that a row of the
/// result comes from.
fn check(
    world: &mut World,
    what: &str,
    expected: &Expected,
    row_of: impl Fn(usize) -> usize,
    mut enqueue: impl FnMut(&mut World, &mut DeviceActivations, &mut DeviceBuffer<u32>) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let Expected { activations, status } = expected;
    let (rows, cols) = (activations.rows(), activations.cols());
    let row_status: Vec<u32> = (0..rows).map(|row| status[row_of(row)]).collect();
    let mut got = DeviceActivations::new(&world.context, rows, cols, Forms::ALL)?;
    for repeat in 0..=world.repeats.min(3) {
        got.poison(&mut world.queue);
        let mut device_status = world.room::<u32>(rows)?;
        enqueue(world, &mut got, &mut device_status)?;
        let what = format!("{what} {rows} x {cols} run {repeat}");
        compare(world, &what, &mut got, activations, &row_status)?;
        let found = world.download(&device_status, rows)?;
        world.compare(&format_args!("{what} status"), 1, status, &found);
    }
    Ok(())
}

pub(super) fn run(world: &mut World) -> Result<(), CudaError> {
    for (number, &(rows, cols)) in SHAPES.iter().enumerate() {
        let mut case = Case::new(rows, cols, number as u64)?;
        plain(world, &mut case)?;
        norm(world, &mut case)?;
        silu(world, &mut case)?;
        gate(world, &mut case)?;
    }
    Ok(())
}

fn plain(world: &mut World, case: &mut Case) -> Result<(), CudaError> {
    let (rows, cols) = (case.rows, case.cols);
    let x = case.rows();
    let expected = case.expected(|_, row, out| out.copy_from_slice(&x[row * cols..][..cols]));
    let device = world.upload(&x)?;
    check(
        world,
        "quantise",
        &expected,
        |row| row,
        |world, out, status| {
            world.queue.quantise(out, &device, (rows, cols), Forms::ALL, &mut Failures { status, place: PLACE });
            Ok(())
        },
    )
}

/// With and without a residual sum, with and without a norm of its addend, with rows picked; into every layout, and into those
/// of many rows alone.
fn norm(world: &mut World, case: &mut Case) -> Result<(), CudaError> {
    let (rows, cols) = (case.rows, case.cols);
    let (weight, post_weight, eps, post_eps) = (case.weight(), case.weight(), 1e-5, 1e-8);
    let (device_weight, device_post) = (world.upload(&weight)?, world.upload(&post_weight)?);
    for variant in 0..4 {
        let (mut hidden, addend) = (case.rows(), case.rows());
        let start = hidden.clone();
        let kernels = case.cpu.kernels().rows;
        for (h, y) in hidden.chunks_exact_mut(cols).zip(addend.chunks_exact(cols)) {
            let mut term = y.to_vec();
            match variant {
                1 => (kernels.add)(h, &term),
                2 => {
                    (kernels.rms_norm)(y, Some(&post_weight), post_eps, &mut term);
                    (kernels.add)(h, &term);
                }
                _ => {}
            }
        }
        let picked: Vec<u32> = (0..rows).rev().map(|row| u32::try_from(row).expect("few rows")).collect();
        let source = |row: usize| if variant == 3 { rows - 1 - row } else { row };
        let mut expected = case.expected(|kernels, row, out| {
            (kernels.rms_norm)(&hidden[source(row) * cols..][..cols], Some(&weight), eps, out);
        });
        if variant == 3 {
            expected.status.reverse();
        }
        let (device_addend, device_picked) = (world.upload(&addend)?, world.upload(&picked)?);
        let post_norm = (variant == 2).then_some(DeviceNorm { weight: &device_post, eps: post_eps });
        let residual = (variant == 1 || variant == 2).then_some(Residual { addend: &device_addend, post_norm });
        let norm = DeviceNorm { weight: &device_weight, eps };
        let indices = (variant == 3).then_some(&device_picked);
        for forms in [Forms::ALL, Forms::HALF_TILES | Forms::BYTE_TILES] {
            let spec = NormRows { rows, cols, indices, residual, norm, forms };
            check(world, &format!("norm {variant}"), &expected, source, |world, out, device_status| {
                let mut device_hidden = world.upload(&start)?;
                let mut failures = Failures { status: device_status, place: PLACE };
                world.queue.norm_quantise(out, &mut device_hidden, &spec, &mut failures);
                let got = world.download(&device_hidden, rows * cols)?;
                world.compare(&format_args!("norm {variant} residual stream"), cols, &hidden, &got);
                Ok(())
            })?;
        }
    }
    Ok(())
}

fn silu(world: &mut World, case: &mut Case) -> Result<(), CudaError> {
    let (rows, cols) = (case.rows, case.cols);
    let (gate, up) = (case.rows(), case.rows());
    let expected = case.expected(|kernels, row, out| {
        out.copy_from_slice(&gate[row * cols..][..cols]);
        (kernels.silu_mul)(out, &up[row * cols..][..cols]);
    });
    let (gate, up) = (world.upload(&gate)?, world.upload(&up)?);
    check(
        world,
        "silu",
        &expected,
        |row| row,
        |world, out, status| {
            let mut failures = Failures { status, place: PLACE };
            world.queue.silu_mul_quantise(out, (&gate, &up), (rows, cols), Forms::ALL, &mut failures);
            Ok(())
        },
    )
}

/// Every head dimension that divides the row, with and without the transform and the gate.
fn gate(world: &mut World, case: &mut Case) -> Result<(), CudaError> {
    let (rows, cols) = (case.rows, case.cols);
    let dims = (1..=8).map(|parts| 32 * parts).filter(|dim| cols.is_multiple_of(*dim));
    for (variant, spread_head_dim) in std::iter::once(None).chain(dims.map(Some)).enumerate() {
        let (mixed, gate) = (case.rows(), case.rows());
        let gated = variant % 3 != 1;
        let expected = case.expected(|kernels, row, out| {
            out.copy_from_slice(&mixed[row * cols..][..cols]);
            if let Some(dim) = spread_head_dim {
                out.chunks_exact_mut(dim).for_each(|head| hadamard(head, 1.0));
            }
            if gated {
                (kernels.sigmoid_gate)(out, &gate[row * cols..][..cols]);
            }
        });
        let (mixed, gate) = (world.upload(&mixed)?, world.upload(&gate)?);
        let gate = gated.then_some(&gate);
        let spec = GateRows { rows, cols, mixed: &mixed, gate, spread_head_dim, forms: Forms::ALL };
        check(
            world,
            &format!("gate {spread_head_dim:?}"),
            &expected,
            |row| row,
            |world, out, status| {
                world.queue.gate_quantise(out, &spec, &mut Failures { status, place: PLACE });
                Ok(())
            },
        )?;
    }
    Ok(())
}
