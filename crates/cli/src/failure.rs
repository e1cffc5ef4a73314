//! Failures of commands, and their exit codes.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use muser_conformance::backend::CaseError;
use muser_engine::engine::{EngineError, RequestError, StepRefused, SubmitError};
use muser_engine::{TemplatesLoadError, VocabularyLoadError};
use muser_kernels::pool::PoolError;
use muser_model::{CacheError, ForwardError, LoadError, StepError};
use muser_server::{ServeError, TlsError};
use muser_text::ChatError;
use muser_weights::gguf::ModelOpenError;

use crate::commands::produce::ProduceError;
use crate::config::ConfigSourceError;
use crate::gpu::GpuError;
use crate::interrupt::Signal;
use crate::member_error::MemberError;
use crate::usage::UsageError;

/// Failure that ended a command.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Wrong use of a flag that the parser cannot see.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigSourceError),
    /// A model file cannot be opened.
    #[error(transparent)]
    Open(#[from] ModelOpenError),
    /// A model cannot be run.
    #[error("cannot run this model: {0}")]
    Load(#[from] LoadError),
    /// Its vocabulary cannot be used.
    #[error("cannot use this model's tokenizer: {0}")]
    Vocabulary(#[from] VocabularyLoadError),
    /// No cache can be made.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine planned what cannot be run.
    #[error(transparent)]
    StepRefused(#[from] StepRefused),
    /// The model's chat template cannot be used.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A step was refused.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A step failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The answer failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The requested device does not exist, or has no room for the model.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// A model cannot be compared.
    #[error(transparent)]
    Compare(#[from] CaseError),
    /// A device differs from the references.
    #[error("{wrong} of {values} values are wrong: {first}")]
    Different {
        /// Values that differ.
        wrong: u64,
        /// Values compared.
        values: u64,
        /// The first difference: its case and both values, or the error that ended the case.
        first: String,
    },
    /// The system refused threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A file cannot be read or written.
    #[error("{path:?}: {reason}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// A file's contents are not what they should be.
    #[error("{path:?}, line {line}: {reason}")]
    Input {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error.
        reason: String,
    },
    /// A tensor cannot be converted.
    #[error("{0}")]
    Quantize(#[from] crate::commands::quantize::QuantizeFailure),
    /// A cluster folder cannot be made, changed or read.
    #[error(transparent)]
    Cluster(#[from] crate::commands::cluster::ClusterFailure),
    /// The model's chat templates cannot be read.
    #[error(transparent)]
    Templates(#[from] TemplatesLoadError),
    /// A model file cannot be downloaded or found in a cache.
    #[error(transparent)]
    Pull(#[from] muser_hub::Error),
    /// The engine refused a request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A conversation has outgrown what it fits in.
    #[error("the conversation has become too long: {0}")]
    Conversation(SubmitError),
    /// A signal asked the program to stop before it was done.
    #[error("{0}")]
    Interrupted(Signal),
    /// Signals cannot be caught.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// The cluster's folder cannot be used, or handoffs cannot be set up or differ.
    #[error(transparent)]
    Member(Box<MemberError>),
    /// No node was enrolled.
    #[error("nobody was enrolled: {0}")]
    Enrol(Box<muser_cluster::enrol::EnrolError>),
    /// A producer cannot serve as configured.
    #[error("cannot produce: {0}")]
    Produce(Box<ProduceError>),
    /// The server cannot start, or has failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A certificate or a key cannot be used.
    #[error("{path:?}: {reason}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// The TLS library's error.
        reason: TlsError,
    },
    /// Reading standard input failed.
    #[error("standard input: {0}")]
    Stdin(io::Error),
    /// Writing to standard output failed.
    #[error("standard output: {0}")]
    Stdout(io::Error),
}

impl Failure {
    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Usage(_) | Self::Config(_) | Self::Input { .. } | Self::Tls { .. } => 2,
            Self::Serve(ServeError::Runtime(_) | ServeError::Engine(_)) => 1,
            Self::Serve(_) => 5,
            Self::Produce(_) => 75,
            Self::Member(_) | Self::Enrol(_) | Self::Compare(_) | Self::Different { .. } => 1,
            Self::Quantize(reason) => reason.exit_code(),
            Self::Cluster(reason) => reason.exit_code(),
            Self::Pull(reason) => crate::hub::exit_code(reason),
            Self::Load(LoadError::Memory(_)) | Self::Step(StepError::Cache(_)) => 4,
            Self::Load(LoadError::Pool(_)) => 1,
            Self::Device(_) => 4,
            Self::Open(_) | Self::Vocabulary(_) | Self::Chat(_) | Self::Load(_) | Self::Cache(_) => 3,
            // What a shell reports for a program that SIGPIPE ended.
            Self::Stdout(_) if self.is_reader_gone() => 141,
            Self::Templates(_) => 3,
            Self::Submit(reason) => of_request(reason),
            Self::Interrupted(signal) => signal.exit_code(),
            Self::StepRefused(StepRefused::Planned(StepError::Cache(_)))
            | Self::Request(RequestError::DeviceMemory(_)) => 4,
            Self::StepRefused(_) | Self::Request(_) | Self::Conversation(_) | Self::Signals(_) | Self::Stdin(_) => 1,
            Self::Engine(EngineError::Cache(_)) => 3,
            Self::Engine(_) => 2,
            Self::Step(_) | Self::Forward(_) | Self::Pool(_) | Self::Io { .. } | Self::Stdout(_) => 1,
        })
    }

    /// True if the reader of standard output closed the pipe, as `head` does; such a failure is not reported.
    pub fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Stdout(reason) if reason.kind() == io::ErrorKind::BrokenPipe)
    }

    /// For `map_err` on files.
    pub fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |reason| Self::Io { path: path.to_owned(), reason }
    }
}

impl From<MemberError> for Failure {
    fn from(reason: MemberError) -> Self {
        Self::Member(Box::new(reason))
    }
}

/// A request is refused for what the user asked, or because it needs more than there is.
fn of_request(reason: &SubmitError) -> u8 {
    match reason {
        SubmitError::EmptyPrompt
        | SubmitError::UnknownToken { .. }
        | SubmitError::PromptTooLong { .. }
        | SubmitError::ContextTooLong { .. }
        | SubmitError::Sampling(_) => 2,
        SubmitError::NeverFits { .. } => 4,
        _ => 1,
    }
}
