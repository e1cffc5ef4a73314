//! The standard library's primitives, in the shape that loom gives its own.

pub(in crate::pool) use std::hint::spin_loop;
pub(in crate::pool) use std::sync::Arc;
pub(in crate::pool) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(in crate::pool) use std::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

use super::super::protocol::Patience;

/// Spin budget of a waiting thread before it parks.
///
/// With a core for every thread a wait usually ends within microseconds, and a wake-up through the system costs several
/// of them: so about a tenth of a millisecond, giving way every microsecond or so in case the awaited thread was put on
/// this very core. With more threads than cores that is the rule, and waiters give way at once.
pub(in crate::pool) fn patience(threads: usize) -> Patience {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if threads <= cores { Patience { rounds: 100, looks: 20 } } else { Patience { rounds: 10, looks: 0 } }
}

/// A cell whose users prove by hand that accesses do not overlap.
#[derive(Debug)]
pub(in crate::pool) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(in crate::pool) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Gives `read` a pointer that it may only read through.
    pub(in crate::pool) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Gives `write` a pointer that is exclusive meanwhile.
    pub(in crate::pool) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
