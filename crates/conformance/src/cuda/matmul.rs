//! Products of every weight type and form, against the CPU's.

use muser_cuda::DeviceBuffer;
use muser_cuda::activations::{DeviceActivations, Forms};
use muser_cuda::matrix::DeviceMatrix;
use muser_cuda::queue::Failures;
use muser_cuda::queue::matmul::QueueProduct;
use muser_kernels::activations::{Activations as CpuActivations, FormatSet};
use muser_kernels::cpu::Product;
use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::Matrix;

use super::quantise::Case;
use super::world::{CudaError, World};
use muser_kernels::samples::{Flavour, raw_tensor};

/// One operand of a launch, on both devices.
struct Operand {
    cpu: Matrix,
    device: DeviceMatrix,
    bias: Option<(Vec<f32>, DeviceBuffer<f32>)>,
}

fn operand(
    world: &mut World,
    case: &mut Case,
    ty: WeightType,
    flavour: Flavour,
    outputs: usize,
) -> Result<Operand, CudaError> {
    let raw = raw_tensor(ty, outputs, case.cols, flavour, &mut case.rng);
    let mut cpu = Matrix::packed(ty, outputs, case.cols, &raw)?;
    let mut device = DeviceMatrix::of_tensor(&mut world.queue, ty, (outputs, case.cols), &raw)?;
    if ty == WeightType::NVFP4 {
        (cpu, device) = (cpu.with_scale(0.013), device.with_scale(0.013));
    }
    device.prepare(&mut world.queue)?;
    let bias: Option<Vec<f32>> = case.rng.bool().then(|| (0..outputs).map(|_| case.rng.f32() - 0.5).collect());
    let bias = match bias {
        None => None,
        Some(bias) => {
            let device = world.upload(&bias)?;
            Some((bias, device))
        }
    };
    Ok(Operand { cpu, device, bias })
}

/// One launch over `operands` against the CPU, then repeated: outputs are poisoned before every launch.
fn check(world: &mut World, case: &mut Case, what: &str, operands: &[Operand]) -> Result<(), CudaError> {
    let (rows, cols) = (case.rows, case.cols);
    let x = case.finite_rows();
    let mut cpu_x = CpuActivations::new(rows, cols);
    case.cpu.quantise_rows(cols, FormatSet::ALL, &mut cpu_x, |_, row, out| {
        out.copy_from_slice(&x[row * cols..][..cols]);
    });
    let mut expected: Vec<Vec<f32>> = operands.iter().map(|operand| vec![0.0; rows * operand.cpu.rows()]).collect();
    for (operand, out) in operands.iter().zip(&mut expected) {
        let bias = operand.bias.as_ref().map(|(bias, _)| bias.as_slice());
        case.cpu.matmul(&cpu_x, [Product { matrix: &operand.cpu, bias, out }]);
    }
    let mut device_x = DeviceActivations::new(&world.context, rows, cols, Forms::ALL)?;
    let (device_rows, mut status) = (world.upload(&x)?, world.room::<u32>(rows)?);
    let mut failures = Failures { status: &mut status, place: 0 };
    world.queue.quantise(&mut device_x, &device_rows, (rows, cols), Forms::ALL, &mut failures);
    let mut outputs = Vec::new();
    for want in &expected {
        outputs.push(world.room::<f32>(want.len())?);
    }
    let run = |world: &mut World, outputs: &mut [DeviceBuffer<f32>]| {
        let mut products: Vec<QueueProduct<'_>> = operands
            .iter()
            .zip(outputs.iter_mut())
            .map(|(operand, out)| {
                let bias = operand.bias.as_ref().map(|(_, bias)| bias);
                QueueProduct { matrix: &operand.device, bias, out }
            })
            .collect();
        world.queue.matmul(&device_x, &mut products);
    };
    run(world, &mut outputs);
    let mut first = Vec::new();
    for out in &outputs {
        first.push(world.download(out, out.len())?);
    }
    for (number, ((want, got), operand)) in expected.iter().zip(&first).zip(operands).enumerate() {
        let (ty, outputs) = (operand.cpu.weight_type(), operand.cpu.rows());
        world.compare(&format_args!("{what} {ty} {rows} x {cols} -> {outputs} (product {number})"), outputs, want, got);
    }
    // Against the first launch, on the device: other kernels run between, outputs and workspace are poisoned.
    let mut references = Vec::new();
    for values in &first {
        references.push(world.upload(values)?);
    }
    let mut other_x = DeviceActivations::new(&world.context, rows, cols, Forms::ALL)?;
    for _ in 0..world.repeats {
        let mut failures = Failures { status: &mut status, place: 0 };
        world.queue.quantise(&mut other_x, &device_rows, (rows, cols), Forms::ALL, &mut failures);
        outputs.iter_mut().for_each(|out| world.queue.fill(out, 0xff));
        world.queue.poison_workspace();
        run(world, &mut outputs);
        for (reference, out) in references.iter().zip(&outputs) {
            world.compare_on_device(&format!("{what} {rows} x {cols}, repeated"), reference, out);
        }
    }
    Ok(world.end_repeats()?)
}

/// Columns that suit `ty`, near `cols`.
fn cols_of(ty: WeightType, cols: usize) -> usize {
    cols.next_multiple_of(ty.block_len())
}

pub(super) fn run(world: &mut World) -> Result<(), CudaError> {
    for ty in WeightType::ALL {
        for flavour in Flavour::ALL {
            for (seed, (rows, cols, outputs)) in
                [(1, 576, 70), (7, 512, 256), (33, 1500, 65), (130, 96, 129)].into_iter().enumerate()
            {
                let mut case = Case::new(rows, cols_of(ty, cols), seed as u64)?;
                let operands = [operand(world, &mut case, ty, flavour, outputs)?];
                check(world, &mut case, &format!("{flavour:?}"), &operands)?;
            }
        }
    }
    mixed(world)?;
    long(world)?;
    shared_tiles(world)
}

/// Rows, columns and outputs: for many rows, with and without waves of whole tiles before the shared ones and in one band of
/// tokens or several, and for each width of the kernels for few.
const SHARED: [(usize, usize, usize); 11] = [
    (1, 6656, 12_000),
    (1, 19_968, 3001),
    (512, 1536, 8000),
    (130, 6656, 14_000),
    (1030, 512, 3333),
    (512, 768, 14_000),
    (2100, 512, 4000),
    (2, 1536, 40_000),
    (8, 512, 8704),
    (13, 1536, 39_936),
    (32, 6656, 8704),
];

/// More tiles than the device has processors, and no multiple of them: tiles are cut between thread blocks. Ordinary tensors
/// are repeated ten times as often as the others.
fn shared_tiles(world: &mut World) -> Result<(), CudaError> {
    let repeats = world.repeats;
    use WeightType::{IQ4_XS, Q4_K, Q5_1, Q5_K, Q6_K, Q8_0};
    for (seed, ty) in [Q4_K, Q5_K, Q6_K, IQ4_XS, Q8_0, Q5_1].into_iter().enumerate() {
        for flavour in [Flavour::Ordinary, Flavour::NearLimits, Flavour::ExtremeCodes] {
            world.repeats = if flavour == Flavour::Ordinary { 10 * repeats } else { repeats };
            for (rows, cols, outputs) in SHARED {
                let mut case = Case::new(rows, cols, 200 + seed as u64)?;
                let operands = [operand(world, &mut case, ty, flavour, outputs)?];
                check(world, &mut case, &format!("shared {flavour:?}"), &operands)?;
            }
        }
    }
    world.repeats = repeats;
    Ok(())
}

/// Four products at once, of one class and of several.
fn mixed(world: &mut World) -> Result<(), CudaError> {
    let sets = [
        [WeightType::Q4_K, WeightType::Q4_K, WeightType::Q6_K, WeightType::Q5_K],
        [WeightType::Q8_0, WeightType::F16, WeightType::Q4_K, WeightType::Q4_1],
    ];
    for (seed, types) in sets.into_iter().enumerate() {
        for rows in [1, 20, 200] {
            let mut case = Case::new(rows, 1024, 100 + seed as u64)?;
            let mut operands = Vec::new();
            for (ty, outputs) in types.into_iter().zip([512, 64, 60, 500]) {
                operands.push(operand(world, &mut case, ty, Flavour::Ordinary, outputs)?);
            }
            check(world, &mut case, "mixed", &operands)?;
        }
    }
    Ok(())
}

/// The widths of the home model.
fn long(world: &mut World) -> Result<(), CudaError> {
    for ty in [WeightType::Q4_K, WeightType::Q6_K, WeightType::Q5_K, WeightType::Q8_0, WeightType::F16] {
        for (rows, cols) in [(1, 19968), (65, 6656)] {
            let cols = if ty.class() == WeightClass::Float { cols / 4 } else { cols };
            let mut case = Case::new(rows, cols, 3)?;
            let operands = [operand(world, &mut case, ty, Flavour::Ordinary, 200)?];
            check(world, &mut case, "long", &operands)?;
        }
    }
    Ok(())
}
