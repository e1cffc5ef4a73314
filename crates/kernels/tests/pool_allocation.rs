//! A pool that was made allocates nothing more, on any thread. Alone in its binary, because the counter sees the whole
//! process.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muser_kernels::pool::{Matrix, Pool};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged; growing uses the default method, which calls `alloc`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system's.
        unsafe { System.dealloc(start, layout) }
    }
}

// A decode step that "allocates nothing" was seen to allocate once in thirty runs on a busy machine: a worker had started
// only then, and a thread allocates when it starts.
#[test]
fn once_made_a_pool_allocates_nothing_on_any_thread() {
    for threads in [1, 2, 4] {
        // The test harness's own thread allocates a little when it begins to wait for this test, which may be any time on
        // a busy machine, but once. What the pool allocates, it allocates in every attempt.
        let fewest = (0..3).map(|_| allocations_after_making(threads)).min();
        assert_eq!(fewest, Some(0), "{threads} threads");
    }
}

/// Makes a pool and returns how often the process allocated while it was used in every way.
fn allocations_after_making(threads: usize) -> usize {
    let mut pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let (mut q, mut k, mut scratch) = ([0.0f32; 256], [0.0f32; 96], [0usize; 4]);
    for _ in 0..5 {
        // Long enough for the workers to park, so that the next region wakes them.
        std::thread::sleep(Duration::from_millis(10));
        for _ in 0..100 {
            pool.run(9, &|_, _| {});
            pool.run_with(&mut scratch, 9, |count, _| *count += 1);
            pool.for_each_chunk(&mut q, 16, |_, _, part| part.fill(1.0));
            pool.for_each_chunk_pair((&mut q, 64), (&mut k, 24), |_, _, q, k| k[0] = q[0]);
            pool.for_each_column_block(&mut q, 64, 16, |_, _, block| block.row_mut(0).fill(2.0));
            let mut outputs = [Matrix::new(&mut q, 64), Matrix::new(&mut k, 24)];
            pool.for_each_output_block(&mut scratch, &mut outputs, 16, |count, _, _| *count += 1);
        }
        // The workers outlast the caller, which therefore parks.
        pool.run(threads, &|worker, _| std::thread::sleep(Duration::from_millis(if worker == 0 { 1 } else { 5 })));
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}
