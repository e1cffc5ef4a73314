//! What is wrong with the configuration, and where.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Origin;

/// Why the configuration file or the environment cannot be used. Whoever wrote them can mend it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration file {path:?}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },
    /// The file is no TOML.
    #[error("{path:?}, line {line}: {reason}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// There is no such command.
    #[error("{origin}: there is no command {command:?}")]
    UnknownCommand {
        /// Where it is named.
        origin: Arc<Origin>,
        /// The command, with those it is a part of.
        command: String,
    },
    /// There is no such flag.
    #[error("{origin}: there is no flag --{flag}{}", of(command))]
    UnknownFlag {
        /// Where it is named.
        origin: Arc<Origin>,
        /// The flag.
        flag: String,
        /// The command that should have it; empty for any.
        command: String,
    },
    /// A value of a kind that the flag does not take.
    #[error("{origin}: --{flag} takes {takes}, not {given}")]
    Kind {
        /// Where it is given.
        origin: Arc<Origin>,
        /// The flag.
        flag: String,
        /// What it takes.
        takes: &'static str,
        /// What it was given.
        given: &'static str,
    },
    /// A value that the flag itself refuses.
    #[error("{origin}: {reason}")]
    Value {
        /// Where it is given.
        origin: Arc<Origin>,
        /// What the flag says.
        reason: String,
    },
    /// Two flags of which only one may be given.
    #[error(
        "{origin}: --{flag} cannot be used with --{other}, which {other_origin} sets for the same command {command:?}"
    )]
    Conflict {
        /// Where the one is given.
        origin: Arc<Origin>,
        /// The one.
        flag: String,
        /// The other.
        other: String,
        /// Where that is given.
        other_origin: Arc<Origin>,
        /// The command that has both.
        command: String,
    },
}

fn of(command: &str) -> String {
    if command.is_empty() { " of any command".into() } else { format!(" of muser {command}") }
}
