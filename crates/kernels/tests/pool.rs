//! The thread pool through its public interface. The protocol itself is model-checked in `pool_loom.rs`.
#![cfg(not(loom))]

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use muser_kernels::pool::{Matrix, Pool, PoolError};

/// Miri runs a few hundred times slower.
const STRESS_REGIONS: usize = if cfg!(miri) { 1000 } else { 100_000 };

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

#[test]
fn every_job_of_every_region_runs_exactly_once_before_run_returns() {
    let mut random = fastrand::Rng::with_seed(1);
    let counts: Vec<AtomicUsize> = (0..40).map(|_| AtomicUsize::new(0)).collect();
    for threads in 1..=8 {
        let mut pool = pool(threads);
        for region in 0..STRESS_REGIONS {
            let jobs = random.usize(0..=counts.len());
            pool.run(jobs, &|worker, job| {
                assert!(worker < threads, "worker {worker} of {threads}");
                counts[job].fetch_add(1, Ordering::Relaxed);
            });
            for (job, count) in counts.iter().enumerate() {
                let (ran, expected) = (count.swap(0, Ordering::Relaxed), usize::from(job < jobs));
                assert_eq!(ran, expected, "{threads} threads, region {region}, {jobs} jobs, job {job}");
            }
        }
    }
}

#[test]
fn workers_that_parked_are_woken_and_help() {
    let mut pool = pool(4);
    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
        // Longer than any patience.
        std::thread::sleep(Duration::from_millis(20));
        // Each job waits for the others, so this ends only if four threads take part.
        let together = std::sync::Barrier::new(4);
        pool.run(4, &|_, _| {
            together.wait();
        });
    }
}

#[test]
fn a_caller_with_nothing_left_to_do_waits_for_the_slowest_job() {
    let mut pool = pool(3);
    for _ in 0..3 {
        let done = AtomicUsize::new(0);
        pool.run(3, &|worker, _| {
            // The caller finishes its first job after the workers took the other two, and long before they end.
            std::thread::sleep(Duration::from_millis(if worker == 0 { 20 } else { 60 }));
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn calls_with_equal_worker_never_overlap() {
    let mut pool = pool(4);
    let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
    for _ in 0..STRESS_REGIONS / 100 {
        pool.run(16, &|worker, _| {
            assert!(!busy[worker].swap(true, Ordering::Relaxed), "worker {worker} runs two jobs at once");
            std::thread::yield_now();
            busy[worker].store(false, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_panic_reaches_the_caller_after_all_jobs_and_the_pool_stays_usable() {
    for threads in 1..=3 {
        let mut pool = pool(threads);
        for round in 0..20 {
            let ran = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(10, &|_, job| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    assert!(job % 3 != 1, "job {job} fails");
                });
            }));
            let payload = outcome.unwrap_err();
            let message = payload.downcast_ref::<String>().unwrap();
            assert!(["job 1 fails", "job 4 fails", "job 7 fails"].contains(&message.as_str()), "{message}");
            assert_eq!(ran.load(Ordering::Relaxed), 10, "{threads} threads, round {round}");
            pool.run(10, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 20);
        }
    }
}

#[test]
fn a_panic_payload_that_panics_when_dropped_costs_no_worker() {
    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let mut pool = pool(3);
    let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|_, _| std::panic::panic_any(Grenade))));
    std::mem::forget(outcome.unwrap_err());
    let together = std::sync::Barrier::new(3);
    pool.run(3, &|_, _| {
        together.wait();
    });
}

#[test]
fn a_job_can_run_regions_of_another_pool() {
    let mut outer = pool(2);
    let inner: Vec<_> = (0..2).map(|_| std::sync::Mutex::new(pool(2))).collect();
    let total = AtomicUsize::new(0);
    outer.run(2, &|_, job| {
        inner[job].lock().unwrap().run(5, &|_, _| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.load(Ordering::Relaxed), 10);
}

#[test]
fn one_job_runs_in_the_caller() {
    let here = std::thread::current().id();
    pool(3).run(1, &|worker, _| {
        assert_eq!((worker, std::thread::current().id()), (0, here));
    });
}

#[test]
fn a_pool_can_be_dropped_without_having_run_anything() {
    for threads in 1..=8 {
        assert_eq!(pool(threads).threads(), threads);
    }
}

#[test]
fn too_many_threads_are_refused_with_the_numbers() {
    let error = Pool::new(NonZeroUsize::new(Pool::THREADS_MAX + 1).unwrap()).unwrap_err();
    assert!(matches!(error, PoolError::TooManyThreads { threads: 513, max: 512 }), "{error}");
    assert_eq!(error.to_string(), "513 threads asked for, at most 512 are supported");
}

#[test]
fn chunks_cover_a_slice_once_and_the_last_one_may_be_shorter() {
    let mut pool = pool(3);
    for (len, chunk) in [(0, 4), (1, 4), (8, 4), (10, 4), (10, 1), (3, 100)] {
        let mut data = vec![0; len];
        pool.for_each_chunk(&mut data, chunk, |_, index, part| {
            for (offset, value) in part.iter_mut().enumerate() {
                *value += 1 + index * chunk + offset;
            }
        });
        assert_eq!(data, (1..=len).collect::<Vec<_>>(), "len {len}, chunk {chunk}");
    }
}

#[test]
fn chunk_pairs_meet_by_index() {
    let (mut codes, mut scales) = (vec![0u8; 10], vec![0.0f32; 3]);
    pool(3).for_each_chunk_pair((&mut codes, 4), (&mut scales, 1), |_, index, codes, scale| {
        codes.fill(u8::try_from(index).unwrap());
        scale[0] = f32::from(u8::try_from(index * 10 + codes.len()).unwrap());
    });
    assert_eq!(codes, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]);
    assert_eq!(scales, [4.0, 14.0, 22.0]);
}

#[test]
#[should_panic(expected = "3 parts paired with 2")]
fn chunk_pairs_of_different_count_are_refused() {
    pool(1).for_each_chunk_pair((&mut [0; 3], 1), (&mut [0; 2], 1), |_, _, _, _| {});
}

#[test]
fn each_thread_has_its_own_scratch_for_all_its_jobs() {
    let mut pool = pool(4);
    let mut uses = [(None, 0); 4];
    // So that all threads take part.
    let together = std::sync::Barrier::new(4);
    for _ in 0..STRESS_REGIONS / 1000 {
        pool.run_with(&mut uses, 32, |(owner, count), job| {
            if job < 4 {
                together.wait();
            }
            let here = std::thread::current().id();
            assert_eq!(*owner.get_or_insert(here), here);
            *count += 1;
        });
    }
    assert_eq!(uses.iter().map(|(_, count)| count).sum::<usize>(), STRESS_REGIONS / 1000 * 32);
}

#[test]
#[should_panic(expected = "scratch for 2 threads, the pool has 3")]
fn too_little_scratch_is_refused() {
    pool(3).run_with(&mut [0, 0], 1, |_, _| {});
}

#[test]
fn column_blocks_cover_a_matrix_once() {
    let mut pool = pool(3);
    for (rows, cols, block) in [(1, 1, 16), (3, 48, 16), (5, 40, 16), (2, 7, 1), (0, 5, 2)] {
        let mut out = vec![0.0f32; rows * cols];
        pool.for_each_column_block(&mut out, cols, block, |_, index, part| {
            assert_eq!((part.index(), part.rows(), part.columns().start), (index, rows, index * block));
            let columns = part.columns();
            for row in 0..rows {
                for (value, column) in part.row_mut(row).iter_mut().zip(columns.clone()) {
                    *value += label(0, row, column);
                }
            }
        });
        assert_eq!(out, labels(0, rows, cols), "[{rows}, {cols}] by {block}");
    }
}

#[test]
fn several_outputs_are_written_in_one_region() {
    let mut pool = pool(3);
    let shapes = [(4, 40), (4, 16), (0, 8), (2, 5)];
    let mut data: Vec<Vec<f32>> = shapes.iter().map(|(rows, cols)| vec![0.0; rows * cols]).collect();
    let mut blocks_done = [0; 3];
    {
        let mut outputs: Vec<Matrix<'_>> =
            data.iter_mut().zip(shapes).map(|(data, (_, cols))| Matrix::new(data, cols)).collect();
        pool.for_each_output_block(&mut blocks_done, &mut outputs, 16, |done, output, part| {
            *done += 1;
            let columns = part.columns();
            for row in 0..part.rows() {
                for (value, column) in part.row_mut(row).iter_mut().zip(columns.clone()) {
                    *value += label(output, row, column);
                }
            }
        });
    }
    for (output, (rows, cols)) in shapes.into_iter().enumerate() {
        assert_eq!(data[output], labels(output, rows, cols), "output {output}");
    }
    assert_eq!(blocks_done.iter().sum::<i32>(), 3 + 1 + 1);
}

#[test]
#[should_panic(expected = "row 2 of 2")]
fn a_row_beyond_the_matrix_is_refused() {
    pool(1).for_each_column_block(&mut [0.0; 8], 4, 4, |_, _, part| {
        part.row_mut(2);
    });
}

#[test]
#[should_panic(expected = "7 elements are no rows of 4")]
fn a_ragged_matrix_is_refused() {
    Matrix::new(&mut [0.0; 7], 4);
}

/// A value that no other element of the test matrices has.
fn label(output: usize, row: usize, column: usize) -> f32 {
    f32::from(u16::try_from(output * 1000 + row * 100 + column + 1).unwrap())
}

fn labels(output: usize, rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|at| label(output, at / cols, at % cols)).collect()
}
