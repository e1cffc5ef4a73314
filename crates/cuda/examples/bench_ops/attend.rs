//! Times of attention at the geometry of the home model: 32 query heads on 2 key-value heads of 128, q8 pages.

use muser_cuda::attention::{StandaloneSpec, StandaloneStep};
use muser_cuda::driver::CudaEvent;
use muser_cuda::queue::Failures;
use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};
use muser_kernels::cpu::Kernels;
use muser_model::cost::{AttentionCost, Cost};

use super::world::World;

/// Timed runs: the median counts. What is in the cache is overwritten before each.
const RUNS: usize = 7;
/// More than the cache holds.
const FLUSH_BYTES: usize = 256 << 20;

/// Pages that are brought to the device in one piece.
const PAGES_AT_ONCE: usize = 512;

/// A step of equal sequences.
struct Step {
    sequences: usize,
    position: usize,
    rows: usize,
    window: Option<u32>,
}

pub fn run(world: &mut World) {
    for layout in [KvLayout::Q8, KvLayout::F16] {
        let global = |sequences, position, rows| Step { sequences, position, rows, window: None };
        let local = |sequences, position, rows| Step { sequences, position, rows, window: Some(2048) };
        let mut steps = vec![global(1, 0, 512), global(1, 2047, 1), global(1, 32_767, 1), local(1, 32_767, 1)];
        steps.push(global(8, 8191, 1));
        if layout == KvLayout::Q8 {
            steps.extend([global(1, 0, 2048), global(1, 32_768, 512), global(1, 32_768, 2048)]);
            steps.extend([global(1, 129_024, 512), global(1, 129_024, 2048), local(1, 32_768, 2048)]);
            steps.extend([8191, 16_383, 65_535, 131_007].map(|position| global(1, position, 1)));
            steps.extend([2, 8, 16, 32].map(|rows| global(1, 131_040, rows)));
            steps.extend([local(8, 32_767, 1), local(32, 32_767, 1), global(32, 8191, 1), local(1, 32_768, 512)]);
        }
        for step in steps {
            time(world, &step, layout);
        }
    }
}

fn time(world: &mut World, step: &Step, layout: KvLayout) {
    let shape = AttentionShape::new(32, 2, 128).expect("a shape");
    let (rows, mut rng) = (step.sequences * step.rows, fastrand::Rng::with_seed(1));
    let positions = vec![step.position..step.position + step.rows; step.sequences];
    let spec = StandaloneSpec { shape, layout, window: step.window, positions: &positions, seed: 1 };
    let mut standalone = StandaloneStep::new(&mut world.queue, &spec).expect("device memory");
    let page = random_page(&shape, layout, &mut rng);
    for first in (0..standalone.pages()).step_by(PAGES_AT_ONCE) {
        let pages = vec![page.clone(); PAGES_AT_ONCE.min(standalone.pages() - first)];
        standalone.fill(&mut world.queue, first, &pages).expect("pages");
    }
    let queries: Vec<f32> = (0..rows * 32).flat_map(|_| head_vector(128, &mut rng)).collect();
    let queries = world.upload(&queries);
    let (mut out, mut status) = (world.room(rows * 4096), world.room(rows));
    let mut flush = world.room::<u8>(FLUSH_BYTES);
    world.queue.sync().expect("the queue");
    let mut times = Vec::new();
    for run in 0..=RUNS {
        let (start, end) =
            (CudaEvent::new(&world.context).expect("an event"), CudaEvent::new(&world.context).expect("an event"));
        world.queue.fill(&mut flush, u8::try_from(run).expect("few runs"));
        world.queue.mark(&start);
        let mut failures = Failures { status: &mut status, place: 0 };
        let (layer, scratch) = standalone.layer_and_scratch();
        world.queue.attend(&layer, &queries, scratch, &mut out, &mut failures);
        world.queue.mark(&end);
        world.queue.sync().expect("the queue");
        times.push(end.milliseconds_since(&start).expect("a time"));
    }
    let mut times = times.split_off(1);
    times.sort_by(f32::total_cmp);
    let seconds = f64::from(times[RUNS / 2]) * 1e-3;
    let attention = AttentionCost { shape, layout, window: step.window };
    let of_one = || Cost::attend(&attention, step.position..step.position + step.rows);
    let cost: Cost = std::iter::repeat_with(of_one).take(step.sequences).sum();
    println!(
        "{layout:?} {:2} x {:4} rows at {:6} window {:4} {:9.1} us (best {:9.1}) {:6.1} TFLOPS {:6.0} GB/s",
        step.sequences,
        step.rows,
        step.position,
        step.window.map_or(0, |window| window),
        seconds * 1e6,
        times[0] * 1e3,
        cost.operations as f64 / seconds * 1e-12,
        cost.bytes as f64 / seconds * 1e-9,
    );
}

/// One head vector of alike elements, some of them four times as large.
fn head_vector(head_dim: usize, rng: &mut fastrand::Rng) -> Vec<f32> {
    let mut x: Vec<f32> = (0..head_dim).map(|_| 1.5 * (rng.f32() + rng.f32() - 1.0)).collect();
    x.iter_mut().step_by(37).for_each(|x| *x *= 4.0);
    x
}

/// The canonical bytes of a page of random rows.
fn random_page(shape: &AttentionShape, layout: KvLayout, rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut page = vec![0; layout.page_bytes(shape)];
    let mut vectors = || (0..shape.kv_heads()).flat_map(|_| head_vector(shape.head_dim(), rng)).collect::<Vec<f32>>();
    for row in 0..PAGE_ROWS {
        let (keys, values) = (vectors(), vectors());
        (Kernels::detected().attention.store_row)(shape, layout, &keys, &values, row, &mut page).expect("finite");
    }
    page
}
