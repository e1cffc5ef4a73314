//! Who runs next: requests, chunked prefill, decode and sampling.

mod generate;
mod sampler;
mod vocabulary;

pub use generate::{Finish, GenerateError, Generation, Outcome, Request};
pub use sampler::{
    LogitBias, Logprobs, Sampler, SamplerWorkspace, Sampling, SamplingError, SamplingSettings, TokenLogprob,
};
pub use vocabulary::{VocabularyLoadError, load_tokenizer};
