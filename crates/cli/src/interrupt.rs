//! SIGINT and SIGTERM: the first signal asks the work under way to stop, the second ends the process.
//!
//! Work that asks [`Interrupt::requested`] from time to time says so by [`Interrupt::hold`]. While nothing of that kind
//! is under way, as when a model is loaded or a person is awaited, the first signal ends the process at once.

use std::io::{self, IsTerminal};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// Signal that asks the program to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, sent by the terminal.
    Interrupt,
    /// SIGTERM, sent by a supervisor.
    Terminate,
}

/// State of the signal handlers, shared by clones.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// The number of the last signal; 0 for none.
    signal: Arc<AtomicI32>,
    /// True if the next signal ends the process.
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// The system's error if it refuses the handlers or the thread that waits for signals.
    pub fn listen() -> io::Result<Self> {
        let interrupt = Self { signal: Arc::default(), at_once: Arc::new(AtomicBool::new(true)) };
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let heard = interrupt.clone();
        let wait = move || signals.forever().for_each(|signal| heard.receive(signal));
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(interrupt)
    }

    /// From now on the first signal is left to [`Self::requested`]. One that came before is forgotten.
    pub fn hold(&self) {
        self.signal.store(0, Ordering::SeqCst);
        self.at_once.store(false, Ordering::SeqCst);
    }

    /// From now on the first signal ends the process.
    pub fn release(&self) {
        self.at_once.store(true, Ordering::SeqCst);
    }

    /// The signal that has come since [`Self::hold`].
    pub fn requested(&self) -> Option<Signal> {
        match self.signal.load(Ordering::SeqCst) {
            SIGINT => Some(Signal::Interrupt),
            SIGTERM => Some(Signal::Terminate),
            _ => None,
        }
    }

    /// For work that fails when it is interrupted.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] if a signal has come since [`Self::hold`].
    pub fn check(&self) -> Result<(), Failure> {
        self.requested().map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
    }

    fn receive(&self, signal: i32) {
        if self.at_once.swap(true, Ordering::SeqCst) {
            if io::stderr().is_terminal() {
                // The terminal has shown ^C in the middle of a line.
                eprintln!();
            }
            process::exit(128 + signal);
        }
        self.signal.store(signal, Ordering::SeqCst);
    }
}

impl Signal {
    /// Exit code that a shell reports for a program ended by this signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "terminated",
        })
    }
}
