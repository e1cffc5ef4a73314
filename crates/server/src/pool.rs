//! A bounded pool for work that keeps a thread busy without the engine: parsing large bodies, tokenising, filling templates,
//! writing large answers.
//!
//! The threads that serve connections only pass bytes on; work of unknown length on them would stop every stream and
//! `/health` with it. Two lanes, so that a few large bodies never hold up the short conversations of others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::error::{ApiError, ErrorKind};
use crate::settings::ConnectionLimits;

/// Bytes that a serving thread may parse, tokenise or write itself: well below a millisecond's work.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// `Retry-After` of a request that the pool turned away, seconds.
const RETRY_SECONDS: u64 = 1;

/// Lane of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// On the thread that serves the connection: a few kilobytes at linear cost.
    Inline,
    /// In the pool's lane for small bodies whose cost is not known by their size: templates are programs.
    Small,
    /// In the pool's lane for large bodies and answers.
    Large,
}

impl Load {
    /// Of work at linear cost on so many bytes.
    pub fn linear(bytes: usize) -> Self {
        if bytes <= INLINE_BYTES_MAX { Self::Inline } else { Self::Large }
    }

    /// Of filling a template with a body of so many bytes.
    pub fn template(bytes: usize) -> Self {
        if bytes <= INLINE_BYTES_MAX { Self::Small } else { Self::Large }
    }
}

/// The pool. Its threads are the runtime's blocking ones; it takes at most as many as its lanes have.
#[derive(Debug)]
pub struct WorkPool {
    small: Lane,
    large: Lane,
    patience: Duration,
}

/// Threads for one kind of work, and the places of its queue.
#[derive(Debug)]
struct Lane {
    threads: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl WorkPool {
    /// A pool within `limits`.
    pub fn new(limits: &ConnectionLimits) -> Self {
        let lane = || Lane {
            threads: Arc::new(Semaphore::new(limits.pool_threads)),
            places: Arc::new(Semaphore::new(limits.pool_threads.saturating_add(limits.pool_queue_max))),
        };
        Self { small: lane(), large: lane(), patience: limits.pool_patience }
    }

    /// Runs `work` in the lane of `load`. Dropping the future takes work out of the queue; work that has begun goes on
    /// to its end and keeps its thread that long.
    ///
    /// # Errors
    /// If the queue is full, no thread becomes free in time, or the work panics.
    pub async fn run<T: Send + 'static>(
        &self,
        load: Load,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let lane = match load {
            Load::Inline => return Ok(work()),
            Load::Small => &self.small,
            Load::Large => &self.large,
        };
        let permits = lane.enter(self.patience).await?;
        let done = spawn_blocking(move || {
            let result = work();
            drop(permits);
            result
        });
        done.await.map_err(|_| ApiError::new(ErrorKind::Server, "the request ended in a fault of the server"))
    }
}

impl Lane {
    /// A place and a thread. Both are given back when the work ends, not when the client leaves.
    async fn enter(&self, patience: Duration) -> Result<[OwnedSemaphorePermit; 2], ApiError> {
        let busy = |message: &str| ApiError::new(ErrorKind::Unavailable, message).retry_after(RETRY_SECONDS);
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| busy("too many requests wait to be read or written"))?;
        match timeout(patience, Arc::clone(&self.threads).acquire_owned()).await {
            Ok(Ok(thread)) => Ok([place, thread]),
            _ => Err(busy("the server is busy with reading and writing other requests")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn limits(pool_queue_max: usize, pool_patience: Duration) -> ConnectionLimits {
        ConnectionLimits { pool_threads: 1, pool_queue_max, pool_patience, ..ConnectionLimits::default() }
    }

    fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn small_work_goes_on_while_large_work_holds_its_lane_and_what_waits_too_much_is_refused() {
        on_one_thread(async {
            let pool = Arc::new(WorkPool::new(&limits(1, LONG)));
            let (go, wait) = channel::<()>();
            let run = |load, work: Box<dyn FnOnce() -> u32 + Send>| {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move { pool.run(load, work).await })
            };
            let first = run(Load::Large, Box::new(move || wait.recv().map_or(0, |()| 1)));
            while pool.large.threads.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let second = run(Load::Large, Box::new(|| 2));
            while pool.large.places.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let refused = run(Load::Large, Box::new(|| 3)).await.unwrap().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert_eq!(run(Load::Small, Box::new(|| 4)).await.unwrap(), Ok(4));
            assert_eq!(run(Load::Inline, Box::new(|| 5)).await.unwrap(), Ok(5));
            assert!(!second.is_finished());
            go.send(()).unwrap();
            assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(1), Ok(2)));
        });
    }

    #[test]
    fn a_client_that_leaves_gives_up_its_place_but_not_the_thread_that_works_for_it() {
        on_one_thread(async {
            let pool = Arc::new(WorkPool::new(&limits(8, LONG)));
            let (go, wait) = channel::<()>();
            let (began, begun) = tokio::sync::oneshot::channel();
            let held = Arc::clone(&pool);
            let left = tokio::spawn(async move {
                held.run(Load::Large, move || {
                    let _ = began.send(());
                    let _ = wait.recv();
                })
                .await
            });
            begun.await.unwrap();
            left.abort();
            assert!(left.await.unwrap_err().is_cancelled());
            assert_eq!(pool.large.threads.available_permits(), 0);
            drop(go);
            assert_eq!(pool.run(Load::Large, || 7).await, Ok(7));
        });
    }

    #[test]
    fn work_that_finds_no_thread_in_time_is_refused_and_work_that_panics_is_the_servers_fault() {
        on_one_thread(async {
            let none = WorkPool::new(&ConnectionLimits { pool_threads: 0, ..limits(1, Duration::from_millis(1)) });
            assert_eq!(none.run(Load::Small, || ()).await.unwrap_err().kind(), ErrorKind::Unavailable);
            let pool = WorkPool::new(&limits(1, LONG));
            let fault = pool.run(Load::Large, || std::panic::resume_unwind(Box::new(()))).await;
            assert_eq!(fault.map(|(): ()| ()).unwrap_err().kind(), ErrorKind::Server);
            assert_eq!(pool.run(Load::Large, || 1).await, Ok(1));
        });
    }
}
