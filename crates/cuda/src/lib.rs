//! The operations of the layer graph on an NVIDIA GPU, with the bits of `muser-kernels`.
//!
//! [`driver`] wraps the CUDA driver API, which is loaded at run time: the crate builds without a toolkit, and
//! [`driver::Context::open`] answers with a typed error where there is no usable GPU.

pub mod driver;

pub use driver::{Context, DeviceBuffer, DriverError};
