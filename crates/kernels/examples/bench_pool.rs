//! Time of an empty region of the pool, beside spawning scoped threads for it.
//!
//! `cargo run --release -p muser-kernels --example bench_pool`

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muser_kernels::pool::{Pool, PoolError};

const ROUNDS: u32 = 5;

fn main() -> Result<(), PoolError> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    println!("{cores} cores; ns per region, median of {ROUNDS} rounds; one empty job per thread, except:");
    println!("64 jobs: that many; together: each job waits for the others, so that every thread must take part");
    println!(
        "{:>7} {:>8} {:>8} {:>9} {:>10} {:>13}",
        "threads", "empty", "64 jobs", "together", "after 1 ms", "thread::scope"
    );
    for threads in 1..=4 {
        let mut pool = Pool::new(NonZeroUsize::MIN.saturating_add(threads - 1))?;
        let at_once = median(|| time(100_000, || pool.run(threads, &empty)));
        let together = median(|| time(2_000, || meet(&mut pool)));
        let many_jobs = median(|| time(20_000, || pool.run(64, &empty)));
        let parked = median(|| after_a_pause(200, || pool.run(threads, &empty)));
        let scope = median(|| time(500, || spawn_scoped(threads)));
        println!("{threads:>7} {at_once:>8} {many_jobs:>8} {together:>9} {parked:>10} {scope:>13}");
    }
    Ok(())
}

fn empty(worker: usize, job: usize) {
    black_box((worker, job));
}

fn meet(pool: &mut Pool) {
    let (threads, arrived) = (pool.threads(), AtomicUsize::new(0));
    pool.run(threads, &|_, _| {
        arrived.fetch_add(1, Ordering::Relaxed);
        while arrived.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
    });
}

fn spawn_scoped(threads: usize) {
    std::thread::scope(|scope| {
        for worker in 1..threads {
            scope.spawn(move || empty(worker, worker));
        }
        empty(0, 0);
    });
}

/// Nanoseconds per call, over `calls` back to back.
fn time(calls: u32, mut call: impl FnMut()) -> u128 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    (start.elapsed() / calls).as_nanos()
}

/// Nanoseconds per call when the workers had time to park before each.
fn after_a_pause(calls: u32, mut call: impl FnMut()) -> u128 {
    let mut total = Duration::ZERO;
    for _ in 0..calls {
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        call();
        total += start.elapsed();
    }
    (total / calls).as_nanos()
}

fn median(measure: impl FnMut() -> u128) -> u128 {
    let mut rounds: Vec<u128> = std::iter::repeat_with(measure).take(ROUNDS as usize).collect();
    rounds.sort_unstable();
    rounds[ROUNDS as usize / 2]
}
