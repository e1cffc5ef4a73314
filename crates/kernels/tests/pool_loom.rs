//! The pool's protocol under loom, which runs it in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p muser-kernels --release --test pool_loom`
//!
//! Loom fails a model on a deadlock (a lost wake-up), on an access to a cell that another thread may be using (a region
//! left or entered too early), and on our assertions.
#![cfg(loom)]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use muser_kernels::pool::Pool;

/// Explores all orders with at most `preemptions` involuntary switches. Most real bugs need two; three threads with three
/// take too long.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// Data written by jobs. Loom checks that each access happens after the conflicting ones before it.
struct Cells {
    values: Vec<UnsafeCell<u32>>,
}

// SAFETY: loom reports accesses that overlap.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(len: usize) -> Self {
        Self { values: (0..len).map(|_| UnsafeCell::new(0)).collect() }
    }

    fn add(&self, index: usize, amount: u32) {
        // SAFETY: loom reports accesses that overlap.
        self.values[index].with_mut(|value| unsafe { *value += amount });
    }

    fn values(&self) -> Vec<u32> {
        // SAFETY: loom reports accesses that overlap.
        self.values.iter().map(|value| value.with(|value| unsafe { *value })).collect()
    }
}

fn regions(threads: usize, jobs_of_region: &[usize]) {
    let jobs_max = jobs_of_region.iter().copied().max().unwrap();
    let (by_job, by_worker) = (Cells::new(jobs_max), Cells::new(threads));
    let mut expected = vec![0; jobs_max];
    let mut pool = pool(threads);
    for &jobs in jobs_of_region {
        pool.run(jobs, &|worker, job| {
            by_job.add(job, 1);
            by_worker.add(worker, 1);
        });
        expected[..jobs].iter_mut().for_each(|count| *count += 1);
        assert_eq!(by_job.values(), expected);
        assert_eq!(by_worker.values().iter().sum::<u32>(), expected.iter().sum::<u32>());
    }
}

#[test]
fn two_threads_run_each_job_of_two_regions_once() {
    check(4, || regions(2, &[2, 2]));
}

#[test]
fn two_threads_run_three_regions() {
    check(3, || regions(2, &[2, 3, 2]));
}

#[test]
fn three_threads_run_each_job_once() {
    check(2, || regions(3, &[3]));
}

#[test]
fn three_threads_run_two_regions() {
    check(2, || regions(3, &[2, 3]));
}

#[test]
fn every_thread_is_woken_for_a_job_of_its_own() {
    check(2, || {
        let mut pool = pool(2);
        for _ in 0..2 {
            // Each job waits for the other, so a worker left asleep is a deadlock.
            let (arrived, changed) = (Mutex::new(0), Condvar::new());
            pool.run(2, &|_, _| {
                let mut count = arrived.lock().unwrap();
                *count += 1;
                changed.notify_one();
                while *count < 2 {
                    count = changed.wait(count).unwrap();
                }
            });
        }
    });
}

#[test]
fn a_pool_that_ran_nothing_stops() {
    check(3, || drop(pool(3)));
}

#[test]
fn a_panic_ends_the_region_like_any_job() {
    check(2, || {
        let ran = Arc::new(AtomicUsize::new(0));
        let mut pool = pool(2);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(2, &|_, job| {
                ran.fetch_add(1, Ordering::Relaxed);
                if job == 0 {
                    std::panic::resume_unwind(Box::new(()));
                }
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}
