//! Who runs next: requests, chunked prefill, decode and sampling.

mod generate;
mod sampler;

pub use generate::{Finish, GenerateError, Generation, Outcome, Request};
pub use sampler::{Sampler, Sampling, SamplingError};
