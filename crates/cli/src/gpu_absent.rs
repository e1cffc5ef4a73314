//! A build without the feature `cuda`: there is no GPU to run on.

use std::num::NonZeroUsize;

use muser_model::Forward;
use muser_weights::gguf::ModelFiles;

use crate::commands::conformance::Report;
use crate::failure::Failure;
use crate::settings::conformance::ConformanceArgs;

/// Reason why no GPU can be used.
const ABSENT: &str = "this build has no GPU support: build it with `--features cuda`";

/// False: nothing is looked for.
pub fn is_there() -> bool {
    false
}

/// Refuses.
pub fn executor(
    _files: &ModelFiles,
    _rows_max: NonZeroUsize,
    _threads: NonZeroUsize,
) -> Result<Box<dyn Forward>, Failure> {
    Err(Failure::Device(ABSENT.into()))
}

/// Refuses.
pub fn conform(
    _args: &ConformanceArgs,
    _named: Vec<(String, ModelFiles)>,
    _report: &mut Report,
) -> Result<(), Failure> {
    Err(Failure::Device(ABSENT.into()))
}

/// The reason why no GPU can be used.
pub fn describe() -> String {
    ABSENT.into()
}
