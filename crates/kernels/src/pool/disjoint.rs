//! Mutable data split among jobs.

use std::marker::PhantomData;

use super::Pool;

impl Pool {
    /// Calls `work(worker, index, part)` for each part of `data`: parts of `chunk` elements, the last one maybe shorter.
    ///
    /// # Panics
    /// If `chunk` is zero; as [`Pool::run`] if a call panics.
    pub fn for_each_chunk<T: Send>(
        &mut self,
        data: &mut [T],
        chunk: usize,
        work: impl Fn(usize, usize, &mut [T]) + Sync,
    ) {
        let chunks = Chunks::new(data, chunk);
        self.run(chunks.count(), &|worker, index| {
            // SAFETY: `run` calls this once per index, and `index < count()`.
            let part = unsafe { chunks.get(index) };
            work(worker, index, part);
        });
    }

    /// Calls `work(worker, index, part, other_part)` for each pair of parts of two slices that are split alike, such as the
    /// codes and the scales of quantised rows.
    ///
    /// # Panics
    /// If a chunk size is zero or the two slices have different numbers of parts; as [`Pool::run`] if a call panics.
    pub fn for_each_chunk_pair<T: Send, U: Send>(
        &mut self,
        (data, chunk): (&mut [T], usize),
        (other, other_chunk): (&mut [U], usize),
        work: impl Fn(usize, usize, &mut [T], &mut [U]) + Sync,
    ) {
        let (chunks, others) = (Chunks::new(data, chunk), Chunks::new(other, other_chunk));
        let (count, other_count) = (chunks.count(), others.count());
        assert!(count == other_count, "{count} parts paired with {other_count}");
        self.run(count, &|worker, index| {
            // SAFETY: `run` calls this once per index, and `index < count()`.
            let part = unsafe { chunks.get(index) };
            // SAFETY: likewise, the counts being equal.
            let other_part = unsafe { others.get(index) };
            work(worker, index, part, other_part);
        });
    }

    /// Like [`Pool::for_each_chunk`], each thread with its own element of `scratch`: calls `work(scratch, index, part)`.
    ///
    /// # Panics
    /// If `chunk` is zero or `scratch` has fewer elements than there are threads; as [`Pool::run`] if a call panics.
    pub fn for_each_chunk_with<S: Send, T: Send>(
        &mut self,
        scratch: &mut [S],
        data: &mut [T],
        chunk: usize,
        work: impl Fn(&mut S, usize, &mut [T]) + Sync,
    ) {
        let (scratch, chunks) = (PerWorker::new(scratch, self.threads()), Chunks::new(data, chunk));
        self.run(chunks.count(), &|worker, index| {
            // SAFETY: `run` never lets calls with equal `worker` overlap, and `worker < threads()`.
            let own = unsafe { scratch.get(worker) };
            // SAFETY: `run` calls this once per index, and `index < count()`.
            let part = unsafe { chunks.get(index) };
            work(own, index, part);
        });
    }

    /// Calls `work(scratch, job)` once for each job in `0..jobs`, each thread with its own element of `scratch`.
    ///
    /// # Panics
    /// If `scratch` has fewer elements than there are threads; as [`Pool::run`] if a call panics.
    pub fn run_with<S: Send>(&mut self, scratch: &mut [S], jobs: usize, work: impl Fn(&mut S, usize) + Sync) {
        let scratch = PerWorker::new(scratch, self.threads());
        self.run(jobs, &|worker, job| {
            // SAFETY: `run` never lets calls with equal `worker` overlap, and `worker < threads()`.
            let own = unsafe { scratch.get(worker) };
            work(own, job);
        });
    }
}

/// One element per thread of a pool, handed out by thread.
pub(super) struct PerWorker<'a, S>(SharedSlice<'a, S>);

impl<'a, S: Send> PerWorker<'a, S> {
    /// Takes a slice with at least one element per thread.
    pub(super) fn new(scratch: &'a mut [S], threads: usize) -> Self {
        let have = scratch.len();
        assert!(have >= threads, "scratch for {have} threads, the pool has {threads}");
        Self(SharedSlice::new(scratch))
    }

    /// The element of thread `worker`.
    ///
    /// # Safety
    /// `worker` is below the number of threads given to `new`, and the last reference for `worker` is no longer used.
    #[expect(clippy::mut_from_ref, reason = "the caller proves that references do not overlap")]
    pub(super) unsafe fn get(&self, worker: usize) -> &mut S {
        // SAFETY: `new` checked that there is such an element; the caller promises that nobody else holds it.
        let one = unsafe { self.0.part(worker, 1) };
        &mut one[0]
    }
}

/// A slice seen as parts of equal length, the last one maybe shorter.
struct Chunks<'a, T> {
    data: SharedSlice<'a, T>,
    chunk: usize,
}

impl<'a, T: Send> Chunks<'a, T> {
    fn new(data: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0, "parts of zero elements");
        Self { data: SharedSlice::new(data), chunk }
    }

    fn count(&self) -> usize {
        self.data.len.div_ceil(self.chunk)
    }

    /// # Safety
    /// `index < count()`, and no other reference to this part is in use.
    #[expect(clippy::mut_from_ref, reason = "the caller proves that references do not overlap")]
    unsafe fn get(&self, index: usize) -> &mut [T] {
        let start = index * self.chunk;
        // SAFETY: parts of different indices do not overlap and end at `len` at the latest; the caller holds this one.
        unsafe { self.data.part(start, self.chunk.min(self.data.len - start)) }
    }
}

/// A borrowed slice from which several threads take parts that do not overlap.
pub(super) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing the slice lets other threads get `&mut T`, which is sending `T`, and nothing else.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// `len` elements from `start` on.
    ///
    /// # Safety
    /// `start + len` is at most the slice's length, and no other reference to these elements is in use.
    #[expect(clippy::mut_from_ref, reason = "the caller proves that references do not overlap")]
    pub(super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: inside the slice, as the caller promises.
        let first = unsafe { self.start.add(start) };
        // SAFETY: initialised, borrowed mutably for `'a`, and used by nobody else, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}
