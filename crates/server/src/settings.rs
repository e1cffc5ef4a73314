//! What a server is told once, when it is made.

use std::path::PathBuf;
use std::time::Duration;

use muser_engine::SamplingSettings;

/// Limits and names that hold for every request.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// The model's name in answers and in the list of models.
    pub alias: String,
    /// Where the model came from, as `/props` tells it; `None` for the model inside the program.
    pub model_path: Option<PathBuf>,
    /// What the sampler does where a request says nothing. The seed is not used: without one, a request gets a random seed.
    pub sampling: SamplingSettings,
    /// Tokens to generate where a request says nothing; `None` goes on until the model ends or the context is full.
    pub tokens_max: Option<usize>,
    /// Name and version of the program.
    pub build: String,
    /// How long a stream may be silent before a comment is sent, so that nobody on the way takes it for dead.
    pub ping: Duration,
    /// The most prompts of one request, and answers to one prompt, together.
    pub answers_max: usize,
}
