//! One persistent thread pool: every parallel step of the engine is a *region* run by it.
//!
//! A region is a number of jobs and a function. The caller publishes the region, works on it like any other thread, and
//! returns when all jobs are done. Between regions the workers spin for a bounded time, yield, and then park, so that a
//! decode loop of many short regions pays no system call and an idle engine uses no processor time.
//!
//! Jobs are distributed over threads in no defined way. Results must not depend on it: a job writes only its own
//! outputs, and sums never cross jobs.
//!
//! Map: `state` is the one word on which threads agree, `protocol` the rules on it, `disjoint` and `columns` hand parts of
//! mutable data to jobs, `sync` picks the standard library's atomics or loom's.

mod columns;
mod disjoint;
mod protocol;
mod state;
mod sync;

use std::num::NonZeroUsize;

pub use columns::{ColumnBlock, Matrix};

use protocol::Shared;
use sync::{Arc, JoinHandle};

/// Reasons for which a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// More threads than any machine we know of has; most likely a mistake in the settings.
    #[error("{threads} threads asked for, at most {max} are supported")]
    TooManyThreads {
        /// Threads asked for.
        threads: usize,
        /// [`Pool::THREADS_MAX`].
        max: usize,
    },
    /// The operating system refused a thread. Those already started have been joined.
    #[error("could not start thread {worker} of {threads}")]
    Spawn {
        /// Index of the thread that was refused; thread 0 is the caller.
        worker: usize,
        /// Threads asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// A fixed set of threads that run regions of jobs. Dropping it stops and joins them.
///
/// Running takes `&mut self`, so regions of one pool can neither overlap nor nest: a job cannot reach the pool that runs
/// it. No call allocates or takes a lock, except to report a panic.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// The most threads a pool can have.
    pub const THREADS_MAX: usize = 512;

    /// Starts `threads - 1` workers, named `muser-pool-1` and so on; the thread that calls [`Pool::run`] is the other one.
    /// Returns when all of them run: what a thread allocates when it starts would otherwise fall into a later call.
    ///
    /// # Errors
    /// If `threads` exceeds [`Pool::THREADS_MAX`] or the system refuses a thread.
    pub fn new(threads: NonZeroUsize) -> Result<Self, PoolError> {
        let threads = threads.get();
        if threads > Self::THREADS_MAX {
            return Err(PoolError::TooManyThreads { threads, max: Self::THREADS_MAX });
        }
        let mut pool = Self { shared: Arc::new(Shared::new(threads)), workers: Vec::with_capacity(threads - 1) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = sync::Builder::new()
                .name(format!("muser-pool-{worker}"))
                .spawn(move || shared.serve(worker))
                .map_err(|source| PoolError::Spawn { worker, threads, source })?;
            pool.workers.push(handle);
        }
        pool.shared.await_workers();
        Ok(pool)
    }

    /// Threads that run jobs, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(worker, job)` once for each job in `0..jobs` and returns when all calls have returned.
    ///
    /// `worker < threads()` names the thread: calls with equal `worker` never overlap, so it can index per-thread scratch.
    /// The caller's thread is worker 0. One job, or one thread, runs in the caller without touching the workers.
    ///
    /// # Panics
    /// If a job panics: the other jobs still run, then the first panic is raised again here. The pool stays usable.
    /// If `jobs` exceeds `isize::MAX`.
    pub fn run(&mut self, jobs: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        assert!(isize::try_from(jobs).is_ok(), "{jobs} jobs exceed isize::MAX");
        if jobs <= 1 || self.workers.is_empty() {
            return protocol::run_alone(jobs, work);
        }
        // SAFETY: `&mut self` keeps a second region of this pool out until this one has ended, and the workers are
        // `Shared::serve` on this `Shared`, with one index each.
        unsafe { self.shared.run_region(jobs, work, &self.workers) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop(&self.workers);
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its jobs, so there is nothing to learn from the result.
            drop(worker.join());
        }
    }
}
