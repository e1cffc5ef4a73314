//! SIGINT and SIGTERM for servers, received by a dedicated thread even while all serving threads are busy.

use std::io;
use std::process;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator;
use tokio::sync::watch;

/// The first signal, passed to the server. The next one ends the process at once.
#[derive(Debug)]
pub struct Signals(watch::Receiver<bool>);

impl Signals {
    /// Catches the signals from now on. One that comes while `is_loading` is true ends the process, as a second one does:
    /// loading cannot be interrupted otherwise. The exit code is what a shell reports for the signal.
    ///
    /// # Errors
    /// The system's error if it refuses the handlers or the thread that waits for signals.
    pub fn listen(is_loading: impl Fn() -> bool + Send + 'static) -> io::Result<Self> {
        let mut signals = iterator::Signals::new([SIGINT, SIGTERM])?;
        let (first, heard) = watch::channel(false);
        let wait = move || {
            for signal in signals.forever() {
                if is_loading() || first.send_replace(true) {
                    process::exit(128 + signal);
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(Self(heard))
    }

    /// Waits for the first signal.
    pub async fn first(&mut self) {
        // The thread never ends before the process.
        let _ = self.0.wait_for(|heard| *heard).await;
    }
}
