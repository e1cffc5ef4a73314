//! Times of attention at the geometry of the home model: 32 query heads on 2 key-value heads of 128, q8 pages.

use muser_cuda::attention::{AttentionPlan, AttentionScratch, LayerPages, PlanLimits, StepSequence};
use muser_cuda::driver::Event;
use muser_cuda::queue::Failures;
use muser_cuda::queue::pages::PageCopy;
use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};

use super::pages::{Content, DevicePages, Form, Sequence, head_vector};
use super::world::World;

/// Timed runs: the median counts. What is in the cache is overwritten before each.
const RUNS: usize = 7;
/// More than the cache holds.
const FLUSH_BYTES: usize = 256 << 20;

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
    let positions_max = step.sequences * (step.position + step.rows);
    let limits = PlanLimits { rows_max: rows, sequences_max: step.sequences, positions_max };
    let mut scratch = AttentionScratch::new(&world.context, (shape, layout), limits).expect("device memory");
    let plan = AttentionPlan::new(&world.context, (shape, layout), step.window, &scratch, limits);
    let mut plan = plan.expect("device memory");
    let mut sequences = Vec::new();
    let mut table = 0;
    for number in 0..step.sequences {
        let (position, rows) = (step.position, step.rows);
        let mut sequence = StepSequence { first_row: number * rows, rows, position, first_page: 0, table };
        let visible = plan.visible_pages(&sequence);
        sequence.first_page = visible.start;
        table += visible.len();
        sequences.push(sequence);
    }
    let form = Form { shape, layout };
    let pages = DevicePages::new(world, form, table, &mut rng);
    let page = world.upload(&Sequence::random(form, Content::Plain, PAGE_ROWS, 0, &mut rng).pages[0]);
    let copies: Vec<_> =
        pages.table().iter().map(|&device| PageCopy { device, canonical: page.address(), rows: PAGE_ROWS }).collect();
    let list = world.upload(&PageCopy::words(&copies));
    // SAFETY: the pages are the slab's; the one canonical page is only read, and lives until the wait below.
    unsafe { world.queue.unpack_pages((&shape, layout), &list) };
    let table = world.upload(&pages.table());
    let queries: Vec<f32> = (0..rows * 32).flat_map(|_| head_vector(Content::Plain, layout, 128, &mut rng)).collect();
    let queries = world.upload(&queries);
    let (mut out, mut status) = (world.room(rows * 4096), world.room(rows));
    let mut flush = world.room::<u8>(FLUSH_BYTES);
    plan.set(&mut world.queue, &sequences).expect("a plan");
    world.queue.sync().expect("the queue");
    // SAFETY: the table holds the addresses of the slab's pages, in the order of the plan.
    let layer = unsafe { LayerPages::new(&plan, &table, 0) };
    let mut times = Vec::new();
    for run in 0..=RUNS {
        let (start, end) =
            (Event::new(&world.context).expect("an event"), Event::new(&world.context).expect("an event"));
        world.queue.fill(&mut flush, u8::try_from(run).expect("few runs"));
        world.queue.mark(&start);
        let mut failures = Failures { status: &mut status, place: 0 };
        world.queue.attend(&layer, &queries, &mut scratch, &mut out, &mut failures);
        world.queue.mark(&end);
        world.queue.sync().expect("the queue");
        times.push(end.milliseconds_since(&start).expect("a time"));
    }
    let mut times = times.split_off(1);
    times.sort_by(f32::total_cmp);
    let seconds = f64::from(times[RUNS / 2]) * 1e-3;
    let seen = |position: usize| step.window.map_or(position + 1, |window| (position + 1).min(window as usize));
    let pairs: usize = (step.position..step.position + step.rows).map(seen).sum::<usize>() * step.sequences;
    let bytes = pages.table().len() * layout.page_bytes(&shape);
    println!(
        "{layout:?} {:2} x {:4} rows at {:6} window {:4} {:9.1} us (best {:9.1}) {:6.1} TFLOPS {:6.0} GB/s of KV",
        step.sequences,
        step.rows,
        step.position,
        step.window.map_or(0, |window| window),
        seconds * 1e6,
        times[0] * 1e3,
        pairs as f64 * 4.0 * 4096.0 / seconds * 1e-12,
        bytes as f64 / seconds * 1e-9,
    );
}
