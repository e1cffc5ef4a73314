//! Small random models: complete GGUF files, tokenizer included.
//!
//! The same [`ModelSpec`] gives the same bytes on every machine: numbers come from integers of the module's own generator,
//! scaled by operations that IEEE 754 rounds in one way only. The weights are noise of a size that keeps activations near
//! one, so a model says nothing sensible but exercises every tensor.

mod random;
mod spec;
mod tensors;
mod tokenizer;

pub(crate) use tokenizer::{byte_character, byte_characters};

pub use spec::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, repeating_pattern};
pub use tensors::{GenerateError, Quantise, Storage, generate, glimmer_30b, header};
