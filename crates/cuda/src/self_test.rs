//! Self-test of a device: the operations on which exactness hangs, at the limits of their arithmetic, against the scalar
//! references, and then a whole small model against checked-in digests (`golden_pass`).
//!
//! Products run by every kernel that this device has for them, over tensors whose integer sums come as close to 2^24 as
//! rule 1 lets them, so that a matrix unit that keeps fewer bits than it should is seen; SiLU and the norm divide and take
//! roots of numbers of all sizes, sums keep subnormal numbers, and codes are rounded at ties. Takes a fraction of a second.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use muser_kernels::activations::ActivationFormat;
use muser_kernels::cpu::Kernels as CpuKernels;
use muser_kernels::dot::reference::{self, Quantisation};
use muser_kernels::formats::{WeightClass, WeightType};
use muser_kv::KvLayout;
use muser_model::{Executor, Model};

use crate::activations::{DeviceActivations, Forms};
use crate::device::{CudaDevice, CudaLimits, Gpu, device_error};
use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::golden_pass::{self, Digests, GOLDEN};
use crate::kernels::GpuKernels;
use crate::matrix::{DeviceMatrix, DeviceMatrixError};
use crate::queue::matmul::QueueProduct;
use crate::queue::quantise::{DeviceNorm, NormRows};
use crate::queue::{FINE, Failures, Queue};

pub use crate::golden_pass::GoldenPassError;

/// Columns of the products.
const COLS: usize = 512;
/// Outputs of the products: more than a tile of any kernel.
const OUTPUTS: usize = 200;
/// Activation rows: for the kernels of one row, of few and of many.
const ROWS: [usize; 4] = [1, 7, 32, 65];

/// Failure of the self-test.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelfTestError {
    /// The device computed other bits than the reference: it must not be used for exact work.
    #[error(
        "{operation} on {device}: element {index} is {got:#010x}, the reference says {expected:#010x}; the device is not \
         used"
    )]
    WrongBits {
        /// Name of the device.
        device: String,
        /// The operation and its shape.
        operation: String,
        /// Index of the first wrong element.
        index: usize,
        /// Bits of the reference.
        expected: u32,
        /// Bits of the device.
        got: u32,
    },
    /// A whole model on the device has other bits than everywhere else.
    #[error(
        "a model of two layers on {device}: the digest of its {part} in layout {layout:?} is {got:#018x}, the right one is \
         {expected:#018x}; the device is not used"
    )]
    WrongModel {
        /// Name of the device.
        device: String,
        /// `logits` or `pages`.
        part: &'static str,
        /// Layout of the pages.
        layout: KvLayout,
        /// The checked-in digest.
        expected: u64,
        /// The device's digest.
        got: u64,
    },
    /// The whole model could not be computed.
    #[error("a model of two layers on {device}: {reason}; the device is not used")]
    Model {
        /// Name of the device.
        device: String,
        /// The reason.
        reason: Box<GoldenPassError>,
    },
    /// The device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A test tensor was refused: a fault of this program.
    #[error(transparent)]
    Matrix(#[from] DeviceMatrixError),
}

/// Runs the self-test on `context`.
///
/// # Errors
/// [`SelfTestError`].
pub fn self_test(context: &Context, kernels: Arc<GpuKernels>) -> Result<(), SelfTestError> {
    let mut test = Test { queue: Queue::new(context, kernels)?, random: 0x9e37_79b9 };
    for ty in
        [WeightType::Q4_K, WeightType::Q5_K, WeightType::Q6_K, WeightType::Q8_0, WeightType::Q5_1, WeightType::F16]
    {
        test.products(ty)?;
    }
    test.silu()?;
    test.sums()?;
    test.codes()?;
    test.norm()
}

/// Computes the whole small model on `gpu`, and compares its digests.
///
/// # Errors
/// [`SelfTestError::WrongModel`] or [`SelfTestError::Model`].
pub(crate) fn test_model(gpu: &Gpu) -> Result<(), SelfTestError> {
    let device = || gpu.context().name().to_owned();
    let failed = |reason| SelfTestError::Model { device: device(), reason: Box::new(reason) };
    let mut executor = executor(gpu).map_err(failed)?;
    for golden in GOLDEN {
        let found = golden_pass::run(&mut executor, golden.layout).map_err(failed)?;
        let Digests { layout, logits, pages } = golden;
        for (part, expected, got) in [("logits", logits, found.logits), ("pages", pages, found.pages)] {
            if expected != got {
                return Err(SelfTestError::WrongModel { device: device(), part, layout, expected, got });
            }
        }
    }
    Ok(())
}

/// The small model on `gpu`.
fn executor(gpu: &Gpu) -> Result<Executor<CudaDevice>, GoldenPassError> {
    let rows_max = golden_pass::ROWS_MAX;
    let of_driver = |error| GoldenPassError::Step(device_error(error).into());
    let mut preparer = gpu.preparer().map_err(of_driver)?;
    let model = Model::<CudaDevice>::load_with(&golden_pass::model_file()?, &mut preparer)?;
    let limits = CudaLimits { page_slab_bytes: 1 << 20, ..CudaLimits::new(rows_max.get(), 1 << 20, NonZeroUsize::MIN) };
    let device = CudaDevice::new(gpu, model.spec(), limits).map_err(of_driver)?;
    Executor::on(Arc::new(model), device, rows_max).map_err(|error| GoldenPassError::Step(error.into()))
}

struct Test {
    queue: Queue,
    random: u32,
}

impl Test {
    /// The next number of a fixed sequence (xorshift).
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    /// `len` floats of both signs whose exponents (as stored, 0 for subnormals) lie in `exponents`.
    fn floats(&mut self, len: usize, exponents: Range<u32>) -> Vec<f32> {
        let mut float = || {
            let bits = self.random();
            let exponent = exponents.start + (bits >> 8) % (exponents.end - exponents.start);
            f32::from_bits(bits & 0x8000_0000 | exponent << 23 | self.random() >> 9)
        };
        (0..len).map(|_| float()).collect()
    }

    fn upload(&self, values: &[f32]) -> Result<DeviceBuffer<f32>, DriverError> {
        let mut buffer = DeviceBuffer::new(self.queue.context(), values.len())?;
        self.queue.stream().upload(values, &mut buffer, 0)?;
        Ok(buffer)
    }

    fn status(&self, rows: usize) -> Result<DeviceBuffer<u32>, DriverError> {
        let mut status = DeviceBuffer::new(self.queue.context(), rows)?;
        self.queue.stream().upload(&vec![FINE; rows], &mut status, 0)?;
        Ok(status)
    }

    /// Compares by bits.
    fn compare(&mut self, operation: &str, expected: &[f32], got: &DeviceBuffer<f32>) -> Result<(), SelfTestError> {
        self.queue.sync()?;
        let mut values = vec![0.0; expected.len()];
        self.queue.stream().download(got, 0, &mut values)?;
        self.check(operation, expected, &values)
    }

    /// Compares values that have been downloaded by bits.
    fn check(&self, operation: &str, expected: &[f32], values: &[f32]) -> Result<(), SelfTestError> {
        let same = |(left, right): (&f32, &f32)| left.to_bits() == right.to_bits();
        match expected.iter().zip(values).position(|pair| !same(pair)) {
            None => Ok(()),
            Some(index) => Err(SelfTestError::WrongBits {
                device: self.queue.context().name().to_owned(),
                operation: operation.to_owned(),
                index,
                expected: expected[index].to_bits(),
                got: values[index].to_bits(),
            }),
        }
    }

    /// Products with rows of equal magnitudes, whose codes are all 127 or -127: the first row has the signs of the first
    /// output's weights, so that all of its terms add up.
    fn products(&mut self, ty: WeightType) -> Result<(), SelfTestError> {
        let raw = self.tensor(ty);
        let mut matrix = DeviceMatrix::of_tensor(&mut self.queue, ty, (OUTPUTS, COLS), &raw)?;
        matrix.prepare(&mut self.queue)?;
        for rows in ROWS {
            let mut x: Vec<f32> = (0..rows * COLS).map(|_| if self.random() & 1 == 0 { 1.0 } else { -1.0 }).collect();
            let weights = muser_kernels::formats::dequantise_row;
            let mut first = vec![0.0; COLS];
            weights(ty, &raw[..raw.len() / OUTPUTS], &mut first);
            first.iter().zip(&mut x).for_each(|(weight, x)| *x = 1f32.copysign(*weight));
            let quantisation = match ty.class() {
                WeightClass::IntegerScales => Quantisation::INT8X256,
                _ => Quantisation::INT8X32,
            };
            let products = x.chunks_exact(COLS).map(|x| reference::multiply(ty, COLS, &raw, x, quantisation));
            let expected: Vec<f32> = products.flat_map(|product| product.ok().flatten().unwrap_or_default()).collect();

            let forms = matrix.forms(rows);
            let mut activations = DeviceActivations::new(self.queue.context(), rows, COLS, forms)?;
            let (device_x, mut status) = (self.upload(&x)?, self.status(rows)?);
            let mut failures = Failures { status: &mut status, place: 0 };
            self.queue.quantise(&mut activations, &device_x, (rows, COLS), forms, &mut failures);
            let mut out = DeviceBuffer::new(self.queue.context(), rows * OUTPUTS)?;
            let product = QueueProduct { matrix: &matrix, bias: None, out: &mut out };
            self.queue.matmul(&activations, &mut [product]);
            self.compare(&format!("product of {ty} with {rows} rows"), &expected, &out)?;
        }
        Ok(())
    }

    /// A tensor of `OUTPUTS` rows: codes, sub-scales and mins random, in `Q4_K` and `Q5_K` such that every `w'` is at most
    /// 516 and those of the first output are 515 or 516: their sum over a block times 127 is 2^24 less 5,088.
    fn tensor(&mut self, ty: WeightType) -> Vec<u8> {
        let blocks = OUTPUTS * COLS / ty.block_len();
        let mut raw: Vec<u8> = (0..blocks * ty.block_bytes()).map(|_| self.random().to_le_bytes()[2]).collect();
        let of_first_output = COLS / ty.block_len();
        for (number, block) in raw.chunks_exact_mut(ty.block_bytes()).enumerate() {
            let [low, high] = half::f16::from_f32(0.01).to_le_bytes();
            match ty {
                // Below the largest exponent: no NaN and no infinity.
                WeightType::F16 => block[1] &= 0xbf,
                WeightType::Q6_K => block[208..].copy_from_slice(&[low, high]),
                WeightType::Q5_1 => block[..4].copy_from_slice(&[low, high, low, high]),
                WeightType::Q4_K | WeightType::Q5_K => at_the_limit(ty, block, number < of_first_output),
                _ => block[..2].copy_from_slice(&[low, high]),
            }
        }
        raw
    }

    /// Division and the exponential's polynomial, subnormals included.
    fn silu(&mut self) -> Result<(), SelfTestError> {
        let (mut gate, up) = (self.floats(4 * COLS, 0..210), self.floats(4 * COLS, 107..147));
        let (device_gate, device_up) = (self.upload(&gate)?, self.upload(&up)?);
        (CpuKernels::scalar().rows.silu_mul)(&mut gate, &up);
        let mut out = DeviceActivations::new(self.queue.context(), 4, COLS, Forms::FLOATS)?;
        let mut status = self.status(4)?;
        let mut failures = Failures { status: &mut status, place: 0 };
        self.queue.silu_mul_quantise(&mut out, (&device_gate, &device_up), (4, COLS), Forms::FLOATS, &mut failures);
        self.compare("SiLU", &gate, &out.floats)
    }

    /// Sums that are subnormal, or lose bits to a term of another size.
    fn sums(&mut self) -> Result<(), SelfTestError> {
        let (mut x, y) = (self.floats(4 * COLS, 0..24), self.floats(4 * COLS, 0..24));
        let (mut device_x, device_y) = (self.upload(&x)?, self.upload(&y)?);
        x.iter_mut().zip(&y).for_each(|(x, y)| *x += y);
        self.queue.add_residual(&mut device_x, &device_y, (4, COLS), None);
        self.compare("sums", &x, &device_x)
    }

    /// Codes of rows whose largest value is 127, so that the inverse of the scale is one and every half is a tie, and the
    /// scales of rows of all sizes.
    fn codes(&mut self) -> Result<(), SelfTestError> {
        let rows = 4;
        let mut x: Vec<f32> =
            (0..rows * COLS).map(|_| f32::from(self.random().to_le_bytes()[1].cast_signed()) / 2.0).collect();
        x.iter_mut().step_by(32).for_each(|x| *x = 127.0);
        let sizes = self.floats(COLS / 2, 60..190);
        x[(rows - 1) * COLS..][..COLS / 2].copy_from_slice(&sizes);
        let forms = [
            (Forms::CODES_256, ActivationFormat::Int8x256, Quantisation::INT8X256),
            (Forms::CODES_32, ActivationFormat::Int8x32, Quantisation::INT8X32),
        ];
        for (form, format, quantisation) in forms {
            let mut out = DeviceActivations::new(self.queue.context(), rows, COLS, form)?;
            let (device_x, mut status) = (self.upload(&x)?, self.status(rows)?);
            let mut failures = Failures { status: &mut status, place: 0 };
            self.queue.quantise(&mut out, &device_x, (rows, COLS), form, &mut failures);
            let (codes, scales) = out.download(&mut self.queue, format)?;
            // Whole groups, so that rows follow each other without a gap.
            let Some(expected) = reference::quantise(&x, quantisation) else { continue };
            self.check(&format!("scales of {format:?}"), &expected.scales, &scales)?;
            #[expect(clippy::cast_precision_loss, reason = "at most 127")]
            let expected: Vec<f32> = expected.codes.into_iter().map(|code| code as f32).collect();
            let codes: Vec<f32> = codes.into_iter().map(f32::from).collect();
            self.check(&format!("codes of {format:?}"), &expected, &codes)?;
        }
        Ok(())
    }

    /// The order of a sum, the root and its reciprocal.
    fn norm(&mut self) -> Result<(), SelfTestError> {
        let (x, weight) = (self.floats(4 * COLS, 70..180), self.floats(COLS, 120..130));
        let (mut device_x, device_weight) = (self.upload(&x)?, self.upload(&weight)?);
        let mut expected = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(COLS).zip(expected.chunks_exact_mut(COLS)) {
            (CpuKernels::scalar().rows.rms_norm)(x, Some(&weight), 1e-5, out);
        }
        let mut out = DeviceActivations::new(self.queue.context(), 4, COLS, Forms::FLOATS)?;
        let mut status = self.status(4)?;
        let norm = DeviceNorm { weight: &device_weight, eps: 1e-5 };
        let rows = NormRows { rows: 4, cols: COLS, indices: None, residual: None, norm, forms: Forms::FLOATS };
        self.queue.norm_quantise(&mut out, &mut device_x, &rows, &mut Failures { status: &mut status, place: 0 });
        self.compare("norm", &expected, &out.floats)
    }
}

/// Makes a block of `Q4_K` or `Q5_K` one whose sub-mins are 1 in the first sub-block and 0 elsewhere, with dmin = d / 2, so
/// that M is 1 and 0 with e = 1. In a `full` block every sub-scale is 43 and every code 6, in another at most that.
fn at_the_limit(ty: WeightType, block: &mut [u8], full: bool) {
    let (d, dmin) = (half::f16::from_f32(0.0078125), half::f16::from_f32(0.00390625));
    block[..2].copy_from_slice(&d.to_le_bytes());
    block[2..4].copy_from_slice(&dmin.to_le_bytes());
    for j in 0..4 {
        let scale = if full { 43 } else { block[4 + j] % 44 };
        // Sub-blocks j and j + 4 have the same scale, whose upper two bits go beside those of scale and min j.
        block[4 + j] = scale | (scale >> 4) << 6;
        block[8 + j] = u8::from(j == 0);
        block[12 + j] = scale & 15;
    }
    let codes_at = if ty == WeightType::Q4_K { 16 } else { 48 };
    // No code has a fifth bit.
    block[16..codes_at].fill(0);
    for codes in &mut block[codes_at..] {
        *codes = if full { 0x66 } else { (*codes % 7) | (((*codes >> 4) % 7) << 4) };
    }
}

#[cfg(test)]
mod tests {
    use muser_kernels::dot::reference::{IntegerForm, integer_form};
    use muser_kernels::formats::KBlock;

    use super::*;

    #[test]
    fn full_blocks_come_close_to_the_limit_and_keep_half_steps() {
        for ty in [WeightType::Q4_K, WeightType::Q5_K] {
            let mut blocks: Vec<u8> =
                (0..2 * ty.block_bytes()).map(|at| at.to_le_bytes()[0].wrapping_mul(37)).collect();
            let (full, other) = blocks.split_at_mut(ty.block_bytes());
            at_the_limit(ty, full, true);
            at_the_limit(ty, other, false);
            assert_eq!(integer_form(ty, 512, &blocks, Quantisation::INT8X256), IntegerForm::Exponent(1), "{ty}");
            let block = KBlock::decode(ty, &blocks, 0);
            let weight = |k: usize| {
                2 * i32::from(block.scales[k / 16]) * i32::from(block.codes[k]) - i32::from(block.mins[k / 16])
            };
            let sum: i32 = (0..256).map(weight).sum();
            assert_eq!(127 * sum, (1 << 24) - 5088, "{ty}");
        }
    }
}
