//! The layer graph: configuration, tensors and one forward pass for prefill and decode.

mod arch;
mod config;
mod executor;
mod graph;
mod identity;
mod layer;
mod load;
mod step;
mod workspace;

pub use arch::{ARCHITECTURES, Architecture, ConfigError, read_config};
pub use config::{LayerConfig, LayerParts, ModelConfig, Part, RopeConfig};
pub use executor::Executor;
pub use graph::LogitsRow;
pub use identity::{ARITHMETIC_VERSION, Component, Identity};
pub use load::{CacheError, LoadError, Model};
pub use step::{ForwardError, LogitsWanted, Place, SequenceInput, StepError};
