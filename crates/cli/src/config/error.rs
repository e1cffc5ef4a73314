//! Errors in the configuration, with their origin.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Origin;

/// Error in the configuration file or the environment, which the user can correct.
#[derive(Debug, thiserror::Error)]
pub enum ConfigSourceError {
    /// The file cannot be read.
    #[error("configuration file {path:?}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The file is no TOML.
    #[error("{path:?}, line {line}: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// There is no such command.
    #[error("{origin}: there is no command {command:?}")]
    UnknownCommand {
        /// Origin of the name.
        origin: Arc<Origin>,
        /// The command, with those it is a part of.
        command: String,
    },
    /// There is no such flag.
    #[error("{origin}: there is no flag --{flag}{}", of(command))]
    UnknownFlag {
        /// Origin of the name.
        origin: Arc<Origin>,
        /// The flag.
        flag: String,
        /// The command that should have it; empty for any.
        command: String,
    },
    /// A value of a kind that the flag does not take.
    #[error("{origin}: --{flag} takes {takes}, not {given}")]
    Kind {
        /// Origin of the value.
        origin: Arc<Origin>,
        /// The flag.
        flag: String,
        /// Kind of value that the flag takes.
        takes: &'static str,
        /// Kind of value given.
        given: &'static str,
    },
    /// A value that the flag itself refuses.
    #[error("{origin}: {reason}")]
    Value {
        /// Origin of the value.
        origin: Arc<Origin>,
        /// The flag parser's message.
        reason: String,
    },
    /// Two flags of which only one may be given.
    #[error(
        "{origin}: --{flag} cannot be used with --{other}, which {other_origin} sets for the same command {command:?}"
    )]
    Conflict {
        /// Origin of the first flag.
        origin: Arc<Origin>,
        /// The first flag.
        flag: String,
        /// The second flag.
        other: String,
        /// Origin of the second flag.
        other_origin: Arc<Origin>,
        /// The command that has both.
        command: String,
    },
}

fn of(command: &str) -> String {
    if command.is_empty() { " of any command".into() } else { format!(" of muser {command}") }
}
