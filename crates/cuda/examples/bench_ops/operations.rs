//! Times of operations at the shapes of the home model: hidden 6656, feed-forward 19968, q/k/v/gate 4096/256/256/4096.

use muser_cuda::DeviceBuffer;
use muser_cuda::activations::{DeviceActivations, Forms};
use muser_cuda::driver::CudaEvent;
use muser_cuda::matrix::DeviceMatrix;
use muser_cuda::queue::Failures;
use muser_cuda::queue::matmul::QueueProduct;
use muser_cuda::queue::quantise::{DeviceNorm, NormRows, Residual};
use muser_kernels::formats::WeightType;
use muser_model::cost::{AddendCost, Cost, ProductShape};

use super::attend;
use super::world::World;
use muser_kernels::samples::{Flavour, raw_tensor};

const HIDDEN: usize = 6656;
const FEED_FORWARD: usize = 19_968;
/// Rows of a decode step, of batches, and of prefill chunks.
const ROWS: [usize; 6] = [1, 8, 32, 128, 512, 2048];
/// Untimed and timed runs.
const RUNS: (usize, usize) = (3, 20);
/// Read bandwidth and rates of one H200: bytes and integer or f16-exact operations per second, measured.
const CEILING_BYTES: f64 = 4.55e12;
const CEILING_OPERATIONS: f64 = 961e12;

/// Prints the mean time of `enqueue` and its share of the ceilings.
fn time(world: &mut World, what: &str, cost: &Cost, mut enqueue: impl FnMut(&mut World)) {
    let (start, end) =
        (CudaEvent::new(&world.context).expect("an event"), CudaEvent::new(&world.context).expect("an event"));
    for _ in 0..RUNS.0 {
        enqueue(world);
    }
    world.queue.mark(&start);
    for _ in 0..RUNS.1 {
        enqueue(world);
    }
    world.queue.mark(&end);
    world.queue.sync().expect("the queue");
    let seconds = f64::from(end.milliseconds_since(&start).expect("a time")) * 1e-3 / RUNS.1 as f64;
    let (bytes, operations) = (cost.bytes as f64 / seconds, cost.operations as f64 / seconds);
    println!(
        "{what:44} {:9.1} us {:7.0} GB/s ({:3.0} %) {:6.0} TOPS ({:3.0} %)",
        seconds * 1e6,
        bytes * 1e-9,
        100.0 * bytes / CEILING_BYTES,
        operations * 1e-12,
        100.0 * operations / CEILING_OPERATIONS
    );
}

/// A matrix of `outputs` rows: 64 random ones, repeated.
fn matrix(world: &mut World, ty: WeightType, outputs: usize, cols: usize) -> DeviceMatrix {
    let mut rng = fastrand::Rng::with_seed(1);
    let rows = raw_tensor(ty, 64, cols, Flavour::Ordinary, &mut rng);
    let bytes = ty.row_bytes(cols).expect("whole blocks") * outputs;
    let raw: Vec<u8> = rows.iter().copied().cycle().take(bytes).collect();
    let mut matrix = DeviceMatrix::of_tensor(&mut world.queue, ty, (outputs, cols), &raw).expect("a matrix");
    matrix.prepare(&mut world.queue).expect("room for a prepared layout");
    matrix
}

/// Ordinary random floats.
fn floats(world: &mut World, len: usize) -> DeviceBuffer<f32> {
    let mut rng = fastrand::Rng::with_seed(2);
    let values: Vec<f32> = (0..len).map(|_| 2.0 * rng.f32() - 1.0).collect();
    world.upload(&values)
}

pub fn run(world: &mut World, word: &str) {
    type Bench = (&'static str, fn(&mut World));
    let all: [Bench; 3] = [("matmul", matmul), ("quantise", quantise), ("attend", attend::run)];
    all.into_iter().filter(|(name, _)| name.contains(word)).for_each(|(_, run)| run(world));
}

fn matmul(world: &mut World) {
    let q4 = WeightType::Q4_K;
    let sets: [(&str, WeightType, &[usize], usize); 7] = [
        ("q/k/v/gate", q4, &[4096, 256, 256, 4096], HIDDEN),
        ("attention output", q4, &[HIDDEN], 4096),
        ("gate/up", q4, &[FEED_FORWARD, FEED_FORWARD], HIDDEN),
        ("down", q4, &[HIDDEN], FEED_FORWARD),
        ("down", WeightType::Q6_K, &[HIDDEN], FEED_FORWARD),
        ("gate/up", WeightType::Q8_0, &[FEED_FORWARD, FEED_FORWARD], HIDDEN),
        ("gate/up", WeightType::Q4_1, &[FEED_FORWARD, FEED_FORWARD], HIDDEN),
    ];
    for (name, ty, outputs, cols) in sets {
        let matrices: Vec<DeviceMatrix> = outputs.iter().map(|&outputs| matrix(world, ty, outputs, cols)).collect();
        let shapes: Vec<ProductShape> =
            outputs.iter().map(|&outputs| ProductShape { ty, outputs, inputs: cols }).collect();
        for rows in ROWS {
            let x = floats(world, rows * cols);
            let mut status = world.room::<u32>(rows);
            let mut activations =
                DeviceActivations::new(&world.context, rows, cols, Forms::ALL).expect("device memory");
            let mut failures = Failures { status: &mut status, place: 0 };
            world.queue.quantise(&mut activations, &x, (rows, cols), Forms::ALL, &mut failures);
            let mut out: Vec<DeviceBuffer<f32>> = outputs.iter().map(|&outputs| world.room(rows * outputs)).collect();
            let cost = Cost::products(&shapes, rows);
            time(world, &format!("{name} {ty} {rows} rows"), &cost, |world| {
                let products = matrices.iter().zip(out.iter_mut());
                let mut products: Vec<QueueProduct<'_>> =
                    products.map(|(matrix, out)| QueueProduct { matrix, bias: None, out }).collect();
                world.queue.matmul(&activations, &mut products);
            });
        }
    }
}

fn quantise(world: &mut World) {
    for rows in ROWS {
        let (mut hidden, y) = (floats(world, rows * HIDDEN), floats(world, rows * HIDDEN));
        let (weight, post) = (floats(world, HIDDEN), floats(world, HIDDEN));
        let (gate, up) = (floats(world, rows * FEED_FORWARD), floats(world, rows * FEED_FORWARD));
        let mut status = world.room::<u32>(rows);
        let mut out = DeviceActivations::new(&world.context, rows, FEED_FORWARD, Forms::ALL).expect("device memory");
        let forms = if rows > 8 { Forms::HALF_TILES } else { Forms::CODES_256 };
        let post_norm = Some(DeviceNorm { weight: &post, eps: 1e-8 });
        let residual = Some(Residual { addend: &y, post_norm });
        let norm = DeviceNorm { weight: &weight, eps: 1e-5 };
        let spec = NormRows { rows, cols: HIDDEN, indices: None, residual, norm, forms };
        let cost = Cost::norm_quantise([rows, HIDDEN], Some(AddendCost::Normed), WeightType::Q4_K);
        time(world, &format!("residual, two norms, quantise {rows} rows"), &cost, |world| {
            world.queue.norm_quantise(&mut out, &mut hidden, &spec, &mut Failures { status: &mut status, place: 0 });
        });
        let cost = Cost::silu_mul_quantise([rows, FEED_FORWARD], WeightType::Q4_K);
        time(world, &format!("SiLU, quantise {rows} rows"), &cost, |world| {
            let mut failures = Failures { status: &mut status, place: 0 };
            world.queue.silu_mul_quantise(&mut out, (&gate, &up), (rows, FEED_FORWARD), forms, &mut failures);
        });
    }
}
