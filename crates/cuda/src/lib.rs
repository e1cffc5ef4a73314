//! The operations of the layer graph on an NVIDIA GPU, with the bits of `muser-kernels`.
//!
//! [`driver`] wraps the CUDA driver API, which is loaded at run time: the crate builds without a toolkit, and
//! [`driver::Context::open`] answers with a typed error where there is no usable GPU. [`kernels::GpuKernels`] is the machine
//! code of `kernels/*.cu`, built by `scripts/build_cuda_kernels.sh` and checked in. A [`queue::Queue`] enqueues operations on
//! one stream; none waits, and the first error is reported by [`queue::Queue::sync`].

pub mod activations;
pub mod attention;
pub mod device;
pub mod driver;
mod golden_pass;
pub mod kernels;
pub mod matrix;
pub mod memory_plan;
pub mod queue;
pub mod self_test;

pub use device::{CudaDevice, CudaLimits, Gpu};
pub use driver::{Context, DeviceBuffer, DriverError};
pub use queue::Queue;
