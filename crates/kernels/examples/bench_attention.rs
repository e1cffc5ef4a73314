//! Time of attention per query and page, on one thread:
//! `cargo run --release -p muser-kernels --example bench_attention [TWIN [cached]]`.
//!
//! Decode attends one row at depth 4096; many sequences take turns, so that pages come from memory, unless `cached` is
//! given. Prefill attends 64 rows that end at position 1023 or 511, so that a call stays shorter than the time slice of a
//! busy machine.

use muser_kernels::attention::{AttentionJob, AttentionScratch, AttentionShape, KvLayout, PAGE_ROWS};
use muser_kernels::cpu::{Isa, Kernels};
use std::time::Instant;

/// Pages of all sequences together fill more than a last-level cache.
const POOL_BYTES: usize = 256 << 20;

fn main() {
    let only = std::env::args().nth(1);
    let pool_bytes = if std::env::args().nth(2).as_deref() == Some("cached") { 0 } else { POOL_BYTES };
    println!(
        "{:<10} {:<7} {:>8} {:>5} {:>6}  ns/(query, page)  GB/s of pages",
        "twin", "layout", "head_dim", "GQA", "rows"
    );
    for kernels in Kernels::available() {
        if only.as_ref().is_some_and(|only| only != kernels.name()) {
            continue;
        }
        for layout in [KvLayout::Q8, KvLayout::F16] {
            for head_dim in [64, 128] {
                for (group, rows, depth) in [(1, 1, 4096), (4, 1, 4096), (16, 1, 4096), (4, 64, 1024), (16, 64, 512)] {
                    let shape = AttentionShape::new(group, 1, head_dim).expect("a valid shape");
                    measure(&kernels, layout, shape, &Load { rows, depth, pool_bytes });
                }
            }
        }
    }
}

/// Work of one call (rows at a depth), and the bytes of KV pages that all calls together touch.
struct Load {
    rows: u32,
    depth: u32,
    pool_bytes: usize,
}

fn measure(kernels: &Kernels, layout: KvLayout, shape: AttentionShape, load: &Load) {
    let pages_per_sequence = (load.depth as usize).div_ceil(PAGE_ROWS);
    let sequence_bytes = pages_per_sequence * layout.page_bytes(&shape);
    let slow = kernels.isa == Isa::Scalar;
    let sequences = if slow { 1 } else { (load.pool_bytes / sequence_bytes).max(1) };
    let mut rng = fastrand::Rng::with_seed(1);
    let pages = random_pages(&shape, layout, pages_per_sequence, &mut rng);
    let pool: Vec<Vec<Vec<u8>>> = (0..sequences).map(|_| pages.clone()).collect();

    let rows = load.rows as usize;
    let queries: Vec<f32> = (0..rows * shape.query_heads() * shape.head_dim()).map(|_| 2.0 * rng.f32() - 1.0).collect();
    let positions: Vec<u32> = (load.depth - load.rows..load.depth).collect();
    let mut scratch = AttentionScratch::new(&shape, rows);
    let mut out = vec![0.0; queries.len()];
    let repeats = match (slow, rows) {
        (true, _) => 1,
        (_, 1) => 3 * sequences.max(200),
        _ => 40,
    };

    // The quickest single call: other processes of the machine disturb the rest.
    let mut best = f64::INFINITY;
    for pages in pool.iter().cycle().take(repeats) {
        let page = |index: usize| pages.get(index).map(Vec::as_slice);
        let (queries, positions) = (&queries, &positions);
        let job = AttentionJob { shape, layout, kv_head: 0, window: None, page: &page, queries, positions };
        let start = Instant::now();
        (kernels.attention.attend)(&job, &mut scratch, &mut out).expect("finite numbers");
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{:<10} {:<7} {:>8} {:>5} {:>6}  {:>16.1}  {:>13.2}",
        kernels.name(),
        format!("{layout:?}"),
        shape.head_dim(),
        shape.heads_per_kv(),
        rows,
        best * 1e9 / (rows * shape.query_heads() * pages_per_sequence) as f64,
        sequence_bytes as f64 / best / 1e9
    );
}

fn random_pages(shape: &AttentionShape, layout: KvLayout, count: usize, rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let store_row = Kernels::detected().attention.store_row;
    let columns = shape.kv_heads() * shape.head_dim();
    let mut row_of = || -> Vec<f32> { (0..columns).map(|_| 2.0 * rng.f32() - 1.0).collect() };
    let mut pages = vec![vec![0; layout.page_bytes(shape)]; count];
    for page in &mut pages {
        for row in 0..PAGE_ROWS {
            store_row(shape, layout, &row_of(), &row_of(), row, page).expect("finite numbers");
        }
    }
    pages
}
