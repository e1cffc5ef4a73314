//! Progress events with a chance to cancel, and retries after a pause.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::error::Error;

/// Longest time between two calls of the caller's watch, which may cancel.
const IDLE: Duration = Duration::from_millis(100);
/// The longest pause that a server may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Progress event of a pull.
#[derive(Debug)]
pub enum PullEvent<'a> {
    /// Another process downloads the same file; this one waits for its lock.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// A transfer begins, the first or one that resumes.
    Began {
        /// The file.
        file: &'a str,
        /// Its size, if known.
        bytes: Option<u64>,
        /// Bytes of the file on disk already.
        have: u64,
    },
    /// More bytes were received.
    Received {
        /// Bytes of the file on disk now.
        have: u64,
    },
    /// Something went wrong, and is tried again after a pause.
    Retrying {
        /// Error of the failed attempt.
        error: &'a Error,
        /// The pause.
        pause: Duration,
    },
    /// Nothing new: a chance to cancel.
    Idle,
}

/// Callback for events; breaking cancels the pull. It is called at least once every stall timeout.
pub type Watch<'a> = dyn FnMut(PullEvent<'_>) -> ControlFlow<()> + 'a;

/// Passes `event` to `watch`; [`Error::Stopped`] if it breaks.
pub(crate) fn tell(watch: &mut Watch<'_>, event: PullEvent<'_>) -> Result<(), Error> {
    match watch(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Stopped),
    }
}

/// Waits, while `watch` may stop it.
pub(crate) fn pause(time: Duration, watch: &mut Watch<'_>) -> Result<(), Error> {
    let mut left = time;
    while !left.is_zero() {
        let slice = left.min(IDLE);
        thread::sleep(slice);
        left -= slice;
        tell(watch, PullEvent::Idle)?;
    }
    Ok(())
}

/// Counter of attempts in a row without progress.
pub(crate) struct Retries<'a> {
    pauses: &'a [Duration],
    used: usize,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(pauses: &'a [Duration]) -> Self {
        Self { pauses, used: 0 }
    }

    /// Something was achieved: earlier attempts no longer count.
    pub(crate) fn reset(&mut self) {
        self.used = 0;
    }

    /// Pauses after `error`, or returns it if trying again is of no use. `partial` is what has been got so far.
    pub(crate) fn after(
        &mut self,
        error: Error,
        partial: Option<(PathBuf, u64)>,
        watch: &mut Watch<'_>,
    ) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error);
        }
        let Some(planned) = self.pauses.get(self.used) else {
            return Err(Error::GaveUp { reason: Box::new(error), attempts: self.used + 1, partial });
        };
        self.used += 1;
        let asked = match &error {
            Error::Status { retry_after_s: Some(seconds), .. } => Duration::from_secs(*seconds).min(PAUSE_MAX),
            _ => Duration::ZERO,
        };
        let time = asked.max(*planned);
        tell(watch, PullEvent::Retrying { error: &error, pause: time })?;
        pause(time, watch)
    }
}

/// Repeats `attempt` while it fails in ways that may pass.
pub(crate) fn with_retries<T>(
    pauses: &[Duration],
    watch: &mut Watch<'_>,
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut retries = Retries::new(pauses);
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => retries.after(error, None, watch)?,
        }
    }
}
