//! Protocol by which threads run a region: publish, claim, finish, sleep and wake.
//!
//! 1. The caller writes the region's description, resets the claim counter, and opens the region with one addition to the
//!    state word. If that addition shows sleepers, it wakes as many as there are jobs for.
//! 2. A worker that sees an open region of a new generation enters it by counting itself `active`. Every thread claims jobs
//!    with `fetch_add` until the numbers run out.
//! 3. The caller, once it finds no job left, closes the region, so no worker can enter, and waits until `active` is zero.
//!    All jobs were claimed by then and every claimant has left, so all jobs are done.
//!
//! The caller never waits for a worker that has not entered: a worker that the system did not schedule in time costs its
//! help and nothing else, which is why more threads than cores do not collapse.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::state::{ACTIVE, GENERATION, OPEN, SLEEPER, STOP, State, WAITING};
use super::sync::{self, AtomicBool, AtomicU64, AtomicUsize, JoinHandle, Thread, UnsafeCell};

/// The type of a region's function: called with the worker's index and the job's.
pub(super) type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// State shared by the threads of one pool.
#[derive(Debug)]
pub(super) struct Shared {
    /// A [`State`].
    state: Padded<AtomicU64>,
    /// The next job to be claimed; exceeds the number of jobs by at most one per thread.
    next: Padded<AtomicUsize>,
    /// Written by the caller while no worker is active; read by active workers.
    region: UnsafeCell<Region>,
    /// The parked caller. Written by the caller before it sets `WAITING`; read by the last active worker after it saw that.
    caller: UnsafeCell<Option<Thread>>,
    /// Per worker (the caller's entry is unused): parked, and not yet chosen to be woken.
    asleep: Box<[Padded<AtomicBool>]>,
    panicked: AtomicBool,
    first_panic: Mutex<Option<Box<dyn Any + Send>>>,
    patience: Patience,
}

// SAFETY: the cells are what keeps the compiler from deriving this. `region` and `caller` are accessed as their
// comments say, which the protocol orders through `state`; all other fields are `Sync` by themselves.
unsafe impl Sync for Shared {}

// SAFETY: `region` points to a `Sync` function, which may be called from any thread.
unsafe impl Send for Shared {}

/// Spin budget of a waiting thread before it parks: `rounds` rounds, each of `looks` checks with only a spin hint in
/// between and then one yield to other threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) rounds: u32,
    pub(super) looks: u32,
}

/// A thread's wait so far.
struct Wait {
    patience: Patience,
    round: u32,
    look: u32,
}

impl Shared {
    /// For `threads` threads, the caller included. Its workers count as active until they start, as if in a region that
    /// is closed already.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            state: Padded(AtomicU64::new((threads as u64 - 1) * ACTIVE)),
            next: Padded(AtomicUsize::new(0)),
            region: UnsafeCell::new(Region { jobs: 0, work: &|_, _| {} }),
            caller: UnsafeCell::new(None),
            asleep: (0..threads).map(|_| Padded(AtomicBool::new(false))).collect(),
            panicked: AtomicBool::new(false),
            first_panic: Mutex::new(None),
            patience: sync::patience(threads),
        }
    }

    /// The life of worker number `worker`: helps with every region it can until the pool stops.
    pub(super) fn serve(&self, worker: usize) {
        let mut seen = 0;
        self.leave();
        while let Some(generation) = self.enter(worker, seen) {
            seen = generation;
            // SAFETY: this thread is active, so the region is published and cannot change before `leave`.
            let region = self.region.with(|region| unsafe { *region });
            // SAFETY: as above; the caller's `work` lives until every worker has left.
            unsafe { self.claim_jobs(worker, region) };
            self.leave();
        }
    }

    /// Returns when all workers have started. May be called once, before the first region.
    pub(super) fn await_workers(&self) {
        self.close();
    }

    /// Runs one region and returns when all its jobs are done. `workers[i]` must be the thread of worker `i + 1`.
    ///
    /// # Safety
    /// - No other call may be in progress.
    /// - Each worker index is served by one thread, and none serves index 0.
    ///
    /// # Panics
    /// With the first panic of a job, after all jobs.
    pub(super) unsafe fn run_region(&self, jobs: usize, work: &Work<'_>, workers: &[JoinHandle<()>]) {
        // SAFETY: only the lifetime of a pointer changes. Nobody follows it after this function: it returns only when the
        // region is closed and no worker is active, and `AbortOnUnwind` keeps it from being left any other way.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        let region = Region { jobs, work };
        // SAFETY: the last region was closed and left by all, so no worker reads the cell before the next publication.
        self.region.with_mut(|cell| unsafe { *cell = region });
        self.next.0.store(0, Relaxed);
        let guard = AbortOnUnwind;
        let before = State(self.state.0.fetch_add(GENERATION | OPEN, AcqRel));
        if before.has_sleepers() {
            self.wake(workers, jobs - 1);
        }
        // SAFETY: `work` outlives this call, and so does the region.
        unsafe { self.claim_jobs(0, region) };
        self.close();
        std::mem::forget(guard);
        if self.panicked.load(Relaxed) {
            self.raise_first_panic();
        }
    }

    /// Makes every worker return from [`Shared::serve`].
    pub(super) fn stop(&self, workers: &[JoinHandle<()>]) {
        self.state.0.fetch_or(STOP, AcqRel);
        self.wake(workers, workers.len());
    }

    /// Waits for a region of another generation than `seen`, enters it and returns its generation; `None` to stop.
    fn enter(&self, worker: usize, seen: u64) -> Option<u64> {
        let mut wait = Wait::new(self.patience);
        let mut state = State(self.state.0.load(Acquire));
        loop {
            if state.is_stopping() {
                return None;
            }
            if state.is_open() && state.generation() != seen {
                match self.state.0.compare_exchange(state.0, state.0 + ACTIVE, AcqRel, Acquire) {
                    Ok(_) => return Some(state.generation()),
                    Err(now) => state = State(now),
                }
            } else if wait.go_on() {
                state = State(self.state.0.load(Acquire));
            } else {
                self.sleep(worker, state);
                wait = Wait::new(self.patience);
                state = State(self.state.0.load(Acquire));
            }
        }
    }

    /// Parks until woken, unless the state is no longer `expected`.
    fn sleep(&self, worker: usize, expected: State) {
        let asleep = &self.asleep[worker].0;
        // Before the state, so that whoever sees this sleeper counted also sees it marked.
        asleep.store(true, Relaxed);
        if self.state.0.compare_exchange(expected.0, expected.0 + SLEEPER, AcqRel, Relaxed).is_err() {
            asleep.store(false, Relaxed);
            return;
        }
        while asleep.load(Acquire) {
            sync::park();
        }
        self.state.0.fetch_sub(SLEEPER, AcqRel);
    }

    /// Wakes up to `wanted` parked workers.
    fn wake(&self, workers: &[JoinHandle<()>], wanted: usize) {
        let mut left = wanted;
        for (asleep, worker) in self.asleep[1..].iter().zip(workers) {
            if left == 0 {
                return;
            }
            if asleep.0.load(Relaxed) {
                asleep.0.store(false, Release);
                worker.thread().unpark();
                left -= 1;
            }
        }
    }

    /// Runs jobs until all are claimed. A panicking job is recorded and the next one is run.
    ///
    /// # Safety
    /// `region` is the one that was published last, and stays so during the call.
    unsafe fn claim_jobs(&self, worker: usize, region: Region) {
        // SAFETY: the function outlives its region.
        let work = unsafe { &*region.work };
        let claim = || Some(self.next.0.fetch_add(1, Relaxed)).filter(|&job| job < region.jobs);
        run_claimed(claim, |job| work(worker, job), |panic| self.record(panic));
    }

    /// Counts this worker out and wakes the caller if it is parked and this was the last one.
    fn leave(&self) {
        let mut state = State(self.state.0.load(Acquire));
        loop {
            let last = state.active() == 1 && state.is_waiting();
            // SAFETY: the caller wrote the handle before it set `WAITING`, and will not write again while a worker is
            // active, which this thread is.
            let caller = if last { self.caller.with(|caller| unsafe { (*caller).clone() }) } else { None };
            let after = if last { state.0 - ACTIVE - WAITING } else { state.0 - ACTIVE };
            match self.state.0.compare_exchange(state.0, after, AcqRel, Acquire) {
                Ok(_) => {
                    if let Some(caller) = caller {
                        caller.unpark();
                    }
                    return;
                }
                Err(now) => state = State(now),
            }
        }
    }

    /// Keeps further workers out of the region and waits until those inside have left.
    fn close(&self) {
        let mut state = State(self.state.0.fetch_and(!OPEN, AcqRel) & !OPEN);
        let mut wait = Wait::new(self.patience);
        while state.active() != 0 {
            if wait.go_on() {
                state = State(self.state.0.load(Acquire));
                continue;
            }
            if !state.is_waiting() {
                // SAFETY: `WAITING` is not set, so no worker reads the cell.
                self.caller.with_mut(|caller| unsafe { *caller = Some(sync::current()) });
                let waiting = state.0 | WAITING;
                match self.state.0.compare_exchange(state.0, waiting, AcqRel, Acquire) {
                    Ok(_) => state = State(waiting),
                    Err(now) => state = State(now),
                }
                continue;
            }
            sync::park();
            state = State(self.state.0.load(Acquire));
        }
    }

    /// Keeps the first panic for the caller.
    fn record(&self, panic: Box<dyn Any + Send>) {
        self.panicked.store(true, Relaxed);
        let Ok(mut first) = self.first_panic.lock() else { return discard(panic) };
        if first.is_none() {
            *first = Some(panic);
        } else {
            drop(first);
            discard(panic);
        }
    }

    /// Raises the first panic of the region that just ended.
    #[cold]
    fn raise_first_panic(&self) {
        self.panicked.store(false, Relaxed);
        let first = self.first_panic.lock().ok().and_then(|mut first| first.take());
        if let Some(panic) = first {
            resume_unwind(panic);
        }
    }
}

/// Runs jobs `0..jobs` in this thread as worker 0, with the same treatment of panics as a region.
pub(super) fn run_alone(jobs: usize, work: &Work<'_>) {
    let mut claims = 0..jobs;
    let mut first = None;
    run_claimed(
        || claims.next(),
        |job| work(0, job),
        |panic| match first {
            None => first = Some(panic),
            Some(_) => discard(panic),
        },
    );
    if let Some(panic) = first {
        resume_unwind(panic);
    }
}

/// Runs every job that `claim` yields, giving the panics to `record`.
fn run_claimed(
    mut claim: impl FnMut() -> Option<usize>,
    work: impl Fn(usize),
    mut record: impl FnMut(Box<dyn Any + Send>),
) {
    // One `catch_unwind` around the loop, not one per job. Whatever a panic leaves behind is reported to the caller of
    // the pool, whose job it is to judge it, so nothing here relies on unwind safety.
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
        while let Some(job) = claim() {
            work(job);
        }
    })) {
        record(panic);
    }
}

/// Drops a panic's payload. A payload that panics when dropped is leaked: unwinding here would lose a worker.
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}

impl Wait {
    fn new(patience: Patience) -> Self {
        Self { patience, round: 0, look: 0 }
    }

    /// Waits a moment and returns true, or returns false if it is time to park.
    fn go_on(&mut self) -> bool {
        if self.round == self.patience.rounds {
            false
        } else if self.look < self.patience.looks {
            self.look += 1;
            sync::spin_loop();
            true
        } else {
            (self.round, self.look) = (self.round + 1, 0);
            sync::yield_now();
            true
        }
    }
}

/// Region as its workers see it: the number of jobs and the function.
#[derive(Clone, Copy)]
struct Region {
    jobs: usize,
    /// Valid while the region lasts.
    work: *const Work<'static>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

/// Keeps a value on cache lines of its own (two, since processors fetch them in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

/// Ends the process if a region is left by unwinding: workers could then use what the caller's frame no longer holds.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
