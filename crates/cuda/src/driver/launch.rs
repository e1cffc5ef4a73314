//! Launching kernels: shapes, arguments, and the overlap of a kernel with the one before it.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::buffer::DeviceBuffer;
use super::error::{DriverError, check};
use super::module::Function;
use super::stream::Stream;

/// Start of a kernel relative to the one before it in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// After it has finished.
    None,
    /// As soon as all its blocks have said `griddepcontrol.launch_dependents` or ended: programmatic dependent launch. The
    /// kernel itself says `griddepcontrol.wait` before it touches anything that earlier kernels write.
    Early,
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Start relative to the kernel before.
    pub overlap: Overlap,
}

impl Launch {
    /// `blocks` blocks of `threads` threads, without dynamic shared memory.
    pub fn of(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], threads, shared_bytes: 0, overlap: Overlap::None }
    }

    /// This shape with `y` rows of blocks.
    #[must_use]
    pub fn rows(self, y: u32) -> Self {
        Self { grid: [self.grid[0], y, self.grid[2]], ..self }
    }

    /// This shape with dynamic shared memory.
    #[must_use]
    pub fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// This shape, started early.
    #[must_use]
    pub fn early(self) -> Self {
        Self { overlap: Overlap::Early, ..self }
    }
}

/// Arguments of a kernel, in the order of its parameters. A plain argument fills a slot of 8 bytes, of which the driver reads
/// as many as the parameter has; a structure of 64-bit fields is a parameter of several slots.
#[derive(Clone, Copy, Debug)]
pub struct Arguments {
    slots: [u64; Arguments::SLOTS_MAX],
    slots_used: usize,
    /// First slot of each parameter.
    starts: [usize; Arguments::PARAMETERS_MAX],
    parameters: usize,
}

impl Arguments {
    /// Most slots of all parameters together.
    pub const SLOTS_MAX: usize = 96;
    /// Most parameters of a kernel.
    pub const PARAMETERS_MAX: usize = 24;

    /// No argument yet.
    pub fn new() -> Self {
        Self { slots: [0; Self::SLOTS_MAX], slots_used: 0, starts: [0; Self::PARAMETERS_MAX], parameters: 0 }
    }

    /// Adds the address of `buffer`.
    #[must_use]
    pub fn buffer<T>(self, buffer: &DeviceBuffer<T>) -> Self {
        self.address(buffer.address())
    }

    /// Adds the address of `buffer`, or a null pointer.
    #[must_use]
    pub fn optional<T>(self, buffer: Option<&DeviceBuffer<T>>) -> Self {
        self.address(buffer.map_or(0, DeviceBuffer::address))
    }

    /// Adds a device address.
    #[must_use]
    pub fn address(self, address: u64) -> Self {
        self.structure(&[address])
    }

    /// Adds a 32-bit integer.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.structure(&[u64::from(value)])
    }

    /// Adds a size or an index of at most 32 bits.
    ///
    /// # Panics
    /// If it has more.
    #[must_use]
    pub fn size(self, value: usize) -> Self {
        self.u32(u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a kernel's 32-bit argument")))
    }

    /// Adds a float.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.u32(value.to_bits())
    }

    /// Adds a structure passed by value, all of whose fields have 64 bits.
    ///
    /// # Panics
    /// If there are too many arguments.
    #[must_use]
    pub fn structure(mut self, fields: &[u64]) -> Self {
        self.starts[self.parameters] = self.slots_used;
        self.parameters += 1;
        self.slots[self.slots_used..][..fields.len()].copy_from_slice(fields);
        self.slots_used += fields.len();
        self
    }
}

/// Two 32-bit fields of a structure that share a slot of [`Arguments::structure`]; `low` comes first in memory.
pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Default for Arguments {
    fn default() -> Self {
        Self::new()
    }
}

impl Stream {
    /// Enqueues `function` over `launch`.
    ///
    /// # Errors
    /// The driver's refusal, or the error of earlier work.
    ///
    /// # Safety
    /// `arguments` must agree with the kernel's parameters, and what they point to must be as large as the kernel assumes
    /// and stay allocated and otherwise untouched until it has run.
    pub unsafe fn launch(
        &self,
        function: &Function,
        launch: &Launch,
        arguments: &mut Arguments,
    ) -> Result<(), DriverError> {
        function.context().bind()?;
        let mut parameters = [std::ptr::null_mut::<c_void>(); Arguments::PARAMETERS_MAX];
        for (parameter, &start) in parameters.iter_mut().zip(&arguments.starts[..arguments.parameters]) {
            *parameter = (&raw mut arguments.slots[start]).cast();
        }
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.raw(),
            attrs: &raw mut early,
            numAttrs: u32::from(launch.overlap == Overlap::Early),
        };
        // SAFETY: `config` and the parameters outlive the call, which copies them; the caller answers for the kernel.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.raw(), parameters.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}
