//! A build without the feature `cuda`: there is no GPU to run on.

use std::num::NonZeroUsize;

use muser_model::Forward;
use muser_weights::gguf::ModelFiles;

use crate::commands::conformance::Report;
use crate::failure::Failure;
use crate::settings::conformance::ConformanceArgs;

/// Reason why no GPU can be used.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The build has no GPU support.
    #[error("this build has no GPU support: build it with `--features cuda`")]
    NotBuilt,
}

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
    Err(GpuError::NotBuilt.into())
}

/// Refuses.
pub fn conform(
    _args: &ConformanceArgs,
    _named: Vec<(String, ModelFiles)>,
    _report: &mut Report,
) -> Result<(), Failure> {
    Err(GpuError::NotBuilt.into())
}

/// The reason why no GPU can be used.
pub fn describe() -> String {
    GpuError::NotBuilt.to_string()
}
