//! Wrong use of flags and variables that the parser of arguments cannot see.

use std::io;
use std::path::PathBuf;

use muser_enrol::TicketTextError;
use muser_hub::{HttpAddressError, TokenError};
use muser_server::{ApiKeyError, NoOrigin};
use muser_text::EmptyStopString;
use muser_trust::identity::CertificateError;

use crate::input::EscapeError;
use crate::settings::KvType;

/// Wrong use of a flag or variable. Nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// Neither an argument nor a flag has a prompt.
    #[error("there is no prompt")]
    NoPrompt,
    /// A prompt of nothing, for a model that begins texts with nothing.
    #[error("the prompt has no tokens, and this model adds none at the start")]
    EmptyPrompt,
    /// A prompt that a handoff cannot be made of, or that does not fit the context.
    #[error("the prompt has {tokens} tokens, it needs to have 2 to {max}")]
    PromptLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// Most tokens that leave room for the answer.
        max: usize,
    },
    /// A prompt to plan that has too few tokens, or more than the context.
    #[error("a prompt of {tokens} tokens: it needs to have 2 to {max}")]
    PlannedLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// The context.
        max: usize,
    },
    /// More tokens are said to be held than the prompt has in whole pages.
    #[error("{held} tokens held: of {tokens}, at most {whole} are in whole pages")]
    HeldTokens {
        /// Tokens held.
        held: usize,
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the prompt in whole pages.
        whole: usize,
    },
    /// The prompt of an enrolment is too short.
    #[error("--tokens: a prompt of {tokens} tokens has nothing to bring")]
    NothingToBring {
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// An instruction set was chosen for a GPU.
    #[error("--kernels chooses an instruction set of the CPU: it cannot be used with --device cuda")]
    KernelsOfGpu,
    /// Keys and values in different layouts.
    #[error(
        "-ctk is {keys} and -ctv is {values}: keys and values are kept in one layout, so give both flags the same value"
    )]
    Layouts {
        /// Layout of keys.
        keys: KvType,
        /// Layout of values.
        values: KvType,
    },
    /// A stop string is empty once its escapes are read.
    #[error(transparent)]
    StopString(#[from] EmptyStopString),
    /// An escape that stands for nothing.
    #[error("--escape: {0}")]
    Escape(#[from] EscapeError),
    /// More measurements than run at once.
    #[error("{depths} depths of {tests} tests: at most {max} run")]
    TooManyTests {
        /// Depths.
        depths: usize,
        /// Tests at each depth.
        tests: usize,
        /// Most measurements.
        max: usize,
    },
    /// A measurement beyond the model's context.
    #[error("a test of {tokens} tokens at depth {depth} does not fit the model's context of {context}")]
    TestBeyondContext {
        /// Tokens of the longest test.
        tokens: usize,
        /// The deepest depth.
        depth: usize,
        /// The context.
        context: usize,
    },
    /// More sequences than a step has rows.
    #[error("{sequences} sequences at once: a step has at most {rows} rows")]
    TooManySequences {
        /// Sequences.
        sequences: usize,
        /// Most rows of a step.
        rows: usize,
    },
    /// No measurement is left.
    #[error("there is nothing to measure: both -p and -n are 0")]
    NothingToMeasure,
    /// Several sequences are given, which only decode tests have.
    #[error("--parallel is about decode tests, and -n is 0: there is none")]
    ParallelWithoutDecode,
    /// No part of a comparison has the name.
    #[error("no part of the comparison is called {0:?}")]
    NoSuchPart(String),
    /// No command with flags has the name.
    #[error("there is no command {0:?} with flags; muser --help names all")]
    NoSuchCommand(String),
    /// There is no place for downloads.
    #[error("there is no folder for downloads: set HOME or XDG_CACHE_HOME")]
    NoDownloadFolder,
    /// A variable of the environment is not UTF-8.
    #[error("the variable {0} is not UTF-8")]
    Variable(String),
    /// The token in the environment cannot be sent.
    #[error("HF_TOKEN: {0}")]
    HubToken(TokenError),
    /// The token in a file cannot be sent.
    #[error("{path:?}: {reason}")]
    HubTokenFile {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: TokenError,
    },
    /// The hub's address cannot be used.
    #[error("HF_ENDPOINT: {0}")]
    HubEndpoint(HttpAddressError),
    /// A key of the server cannot be used.
    #[error("{flag}: {reason}")]
    Key {
        /// The flag that has it.
        flag: &'static str,
        /// The error, without the key.
        reason: ApiKeyError,
    },
    /// A file of keys without one: the server would be open to all.
    #[error("{0:?} has no keys")]
    NoKeys(PathBuf),
    /// An origin to allow is none.
    #[error("--cors-origins: {0}")]
    Origin(#[from] NoOrigin),
    /// A ticket cannot be read.
    #[error(transparent)]
    Ticket(#[from] TicketTextError),
    /// A name for a node that has names in its certificates.
    #[error("--name: {0:?} is there, and has its names in its certificates")]
    NameOfExisting(PathBuf),
    /// The folder's name cannot be a node's.
    #[error("give a --name, the folder's does not do: {0}")]
    FolderName(CertificateError),
    /// No address of this machine is known that others could connect to.
    #[error("--advertise is needed, this machine has no way out: {0}")]
    NoAdvertisedAddress(io::Error),
    /// A path cannot be written into a configuration file.
    #[error("{0:?} is not UTF-8 and cannot be put into a configuration")]
    PathNotUtf8(PathBuf),
}
