//! Who runs next: requests, chunked prefill, decode and sampling.

mod generate;
mod sampler;
mod vocabulary;

pub use generate::{Finish, GenerateError, Generation, Outcome, Request};
pub use sampler::{Sampler, Sampling, SamplingError};
pub use vocabulary::{VocabularyLoadError, load_tokenizer};
