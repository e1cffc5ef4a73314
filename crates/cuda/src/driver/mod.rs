//! The CUDA driver API as far as the operations need it: contexts, streams, events, memory, modules and launches.
//!
//! Every object holds the [`Context`] it belongs to and makes it current before each call, so objects may move between
//! threads. Failures are [`DriverError`]s; nothing here panics on what a driver answers.

mod buffer;
mod context;
mod error;
mod launch;
mod module;
mod stream;

pub use buffer::{DeviceBuffer, PinnedBuffer, Plain};
pub use context::{Capability, Context, MemoryInfo};
pub use error::DriverError;
pub(crate) use launch::pair;
pub use launch::{Arguments, Launch, Overlap};
pub use module::{Function, Module};
pub use stream::{CudaEvent, Stream};
