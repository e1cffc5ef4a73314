//! The layer graph: configuration, tensors and one forward pass for prefill and decode.

#![forbid(unsafe_code)]

mod arch;
mod config;
pub mod cost;
mod cpu;
mod device;
mod executor;
mod feed_forward;
mod graph;
mod identity;
mod layer;
mod load;
mod step;
pub mod testing;
mod workspace;

pub use arch::{ARCHITECTURES, Architecture, ConfigError, read_config};
pub use config::{LayerConfig, LayerParts, ModelConfig, Part, RopeConfig};
pub use cpu::PrepareForCpu;
pub use device::{
    Addend, Device, DeviceDescription, DeviceError, DeviceProduct, KvLayer, Placement, Prepare, PreparedWeights,
    RawMatrix,
};
pub use executor::{Executor, Forward};
pub use feed_forward::{Activation, DenseConfig};
pub use graph::LogitsRow;
pub use identity::{ARITHMETIC_VERSION, Component, Identity};
pub use layer::{Form, Norm};
pub use load::{CacheError, LoadError, Model, ModelSpec};
pub use step::{ForwardError, LogitsWanted, Place, SequenceInput, StepError};
pub use workspace::WorkspaceShape;
