//! Graphs: the work of a stream recorded once and replayed as one.

use cudarc::driver::sys;

use super::context::Context;
use super::error::{DriverError, check};
use super::stream::Stream;

/// Recorded work. The buffers that its kernels use must outlive it; it holds none of them.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    raw: sys::CUgraphExec,
}

// SAFETY: the driver API is thread-safe, and every method binds the context first.
unsafe impl Send for Graph {}

impl Stream {
    /// Records what `enqueue` puts into this stream, without running it.
    ///
    /// # Errors
    /// The error of `enqueue`, or the driver's refusal.
    pub fn record<E: From<DriverError>>(&self, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        self.context().bind()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives and is not recording.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw(), mode) })?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is recording, and `graph` is a valid place for a handle.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw(), &raw mut graph) });
        let recorded = enqueued.and_then(|()| Ok(ended?)).and_then(|()| {
            let mut raw = std::ptr::null_mut();
            // SAFETY: `graph` is a recorded graph, and `raw` is a valid place for a handle.
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&raw mut raw, graph, 0) })?;
            Ok(Graph { context: self.context().clone(), raw })
        });
        if !graph.is_null() {
            // SAFETY: recorded above and not used again: the instance is independent of it.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        recorded
    }

    /// Enqueues the work of `graph`.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    ///
    /// # Safety
    /// Every buffer that was an argument of the recorded work must still be allocated.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<(), DriverError> {
        self.context().bind()?;
        // SAFETY: both handles live, and the caller answers for the buffers.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.raw, self.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated once; the driver lets a launch under way finish.
            let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
