//! Time of attention per query and page, on one thread, for every twin: `cargo run --release --example bench_attention`.
//!
//! Decode attends one row at depth 4096; several sequences take turns, so that pages come from memory and not from cache.
//! Prefill attends 64 rows that end at position 2047.

use muser_kernels::attention::{AttentionJob, AttentionKernels, AttentionScratch, AttentionShape, KvLayout, PAGE_ROWS};
use std::time::Instant;

/// Pages of all sequences together fill more than a last-level cache.
const POOL_BYTES: usize = 256 << 20;

fn main() {
    println!(
        "{:<10} {:<7} {:>8} {:>5} {:>6}  ns/(query, page)  GB/s of pages",
        "twin", "layout", "head_dim", "GQA", "rows"
    );
    for kernels in AttentionKernels::available() {
        for layout in [KvLayout::Q8, KvLayout::F16] {
            for head_dim in [64, 128] {
                for (group, rows, depth) in [(1, 1, 4096), (4, 1, 4096), (16, 1, 4096), (4, 64, 2048), (16, 64, 2048)] {
                    measure(
                        &kernels,
                        layout,
                        AttentionShape::new(group, 1, head_dim).expect("a valid shape"),
                        (rows, depth),
                    );
                }
            }
        }
    }
}

fn measure(kernels: &AttentionKernels, layout: KvLayout, shape: AttentionShape, (rows, depth): (u32, u32)) {
    let slow = kernels.name == "reference";
    let pages_per_sequence = (depth as usize).div_ceil(PAGE_ROWS);
    let sequence_bytes = pages_per_sequence * layout.page_bytes(&shape);
    let sequences = if slow { 1 } else { (POOL_BYTES / sequence_bytes).max(1) };
    let mut rng = fastrand::Rng::with_seed(1);
    let pages = random_pages(&shape, layout, pages_per_sequence, &mut rng);
    let pool: Vec<Vec<Vec<u8>>> = (0..sequences).map(|_| pages.clone()).collect();

    let columns = shape.query_heads() * shape.head_dim();
    let queries: Vec<f32> = (0..rows as usize * columns).map(|_| 2.0 * rng.f32() - 1.0).collect();
    let positions: Vec<u32> = (depth - rows..depth).collect();
    let mut scratch = AttentionScratch::new(&shape, rows as usize);
    let mut out = vec![0.0; rows as usize * columns];
    let repeats = if rows == 1 { sequences } else { sequences.min(20) };

    let mut best = f64::INFINITY;
    for _ in 0..if slow { 1 } else { 3 } {
        let start = Instant::now();
        for pages in &pool[..repeats] {
            let page = |index: usize| pages.get(index).map(Vec::as_slice);
            let job = AttentionJob {
                shape,
                layout,
                kv_head: 0,
                window: None,
                page: &page,
                queries: &queries,
                positions: &positions,
            };
            (kernels.attend)(&job, &mut scratch, &mut out).expect("finite numbers");
        }
        best = best.min(start.elapsed().as_secs_f64() / repeats as f64);
    }
    let per_query_page = best * 1e9 / (rows as usize * shape.query_heads() * pages_per_sequence) as f64;
    println!(
        "{:<10} {:<7} {:>8} {:>5} {:>6}  {:>16.1}  {:>13.2}",
        kernels.name,
        format!("{layout:?}"),
        shape.head_dim(),
        shape.heads_per_kv(),
        rows,
        per_query_page,
        sequence_bytes as f64 / best / 1e9
    );
}

fn random_pages(shape: &AttentionShape, layout: KvLayout, count: usize, rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let store_row = AttentionKernels::detected().store_row;
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
