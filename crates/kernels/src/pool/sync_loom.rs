//! Loom's primitives, for model checking the protocol.

pub(in crate::pool) use loom::cell::UnsafeCell;
pub(in crate::pool) use loom::hint::spin_loop;
pub(in crate::pool) use loom::sync::Arc;
pub(in crate::pool) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(in crate::pool) use loom::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

use super::super::protocol::Patience;

/// None: a model explores every schedule anyway, and parking at once is the harder case.
pub(in crate::pool) fn patience(_threads: usize) -> Patience {
    Patience { rounds: 0, looks: 0 }
}
