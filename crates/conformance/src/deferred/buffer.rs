//! Buffers of the deferred device: handles whose contents only executing operations touch, and a record of who has written
//! and read them.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contents of a buffer, as recorded operations hold them.
pub(super) type Content<T> = Arc<Mutex<T>>;

/// A handle on a buffer.
#[derive(Debug)]
pub struct Buffer<T> {
    content: Content<T>,
    usage: Cell<Usage>,
}

/// State of a buffer after the recorded operations.
#[derive(Clone, Copy, Debug)]
enum Usage {
    /// It may hold anything.
    Unspecified,
    /// `by` has written it in step `step`, and nothing has read that yet.
    Unread { step: u64, by: &'static str },
    /// Something has read what was written in step `step`.
    Read { step: u64 },
}

/// Misuse of a buffer by the graph: on a device that executes later, or keeps other things in it, results would differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A result is lost.
    #[error("{by} overwrites what {writer} wrote, which nothing has read")]
    Lost {
        /// Operation that overwrites.
        by: &'static str,
        /// Operation that had written.
        writer: &'static str,
    },
    /// Contents that no operation of the step has specified are read.
    #[error("{by} reads a buffer that nothing in this step has written")]
    Unspecified {
        /// Operation that reads.
        by: &'static str,
    },
}

impl<T> Buffer<T> {
    pub(super) fn new(content: T) -> Self {
        Self { content: Arc::new(Mutex::new(content)), usage: Cell::new(Usage::Unspecified) }
    }

    /// Records that the operation `by` of step `step` reads the buffer.
    pub(super) fn read(&self, step: u64, by: &'static str) -> Result<Content<T>, Misuse> {
        match self.usage.get() {
            Usage::Unread { step: written, .. } | Usage::Read { step: written } if written == step => {
                self.usage.set(Usage::Read { step });
                Ok(Arc::clone(&self.content))
            }
            _ => Err(Misuse::Unspecified { by }),
        }
    }

    /// Records that the operation `by` of step `step` overwrites the buffer.
    pub(super) fn write(&self, step: u64, by: &'static str) -> Result<Content<T>, Misuse> {
        if let Usage::Unread { step: written, by: writer } = self.usage.get()
            && written == step
        {
            return Err(Misuse::Lost { by, writer });
        }
        self.usage.set(Usage::Unread { step, by });
        Ok(Arc::clone(&self.content))
    }

    /// Records that the operation `by` of step `step` changes the buffer.
    pub(super) fn update(&self, step: u64, by: &'static str) -> Result<Content<T>, Misuse> {
        self.read(step, by)?;
        self.write(step, by)
    }

    /// Records that the operation `by` of step `step` reads the buffer and leaves anything in it.
    pub(super) fn consume(&self, step: u64, by: &'static str) -> Result<Content<T>, Misuse> {
        let content = self.read(step, by)?;
        self.usage.set(Usage::Unspecified);
        Ok(content)
    }
}

/// The content for an executing operation. An operation that panicked before has left some content too.
pub(super) fn lock<T>(content: &Content<T>) -> MutexGuard<'_, T> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_nobody_read_cannot_be_overwritten_within_a_step() {
        let buffer = Buffer::new(0);
        buffer.write(1, "a").unwrap();
        assert_eq!(buffer.write(1, "b").unwrap_err(), Misuse::Lost { by: "b", writer: "a" });
        buffer.read(1, "c").unwrap();
        buffer.write(1, "d").unwrap();
        buffer.write(2, "e").unwrap();
    }

    #[test]
    fn what_an_earlier_step_wrote_or_an_operation_left_unspecified_cannot_be_read() {
        let buffer = Buffer::new(0);
        assert_eq!(buffer.read(1, "a").unwrap_err(), Misuse::Unspecified { by: "a" });
        buffer.write(1, "b").unwrap();
        buffer.update(1, "c").unwrap();
        assert!(buffer.read(2, "d").is_err());
        buffer.write(2, "e").unwrap();
        buffer.consume(2, "f").unwrap();
        assert!(buffer.read(2, "g").is_err());
    }
}
