//! Weight matrices in device memory.

use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::{Form, MatrixError, Scan};

use crate::activations::Forms;
use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::queue::Queue;

/// Failure to make a matrix of a tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMatrixError {
    /// The tensor is at fault.
    #[error(transparent)]
    Tensor(#[from] MatrixError),
    /// The device is at fault.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Shape and meaning of a matrix, known before it has memory.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSpec {
    /// Type as stored in the file.
    pub ty: WeightType,
    /// Output rows.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Merged scan of the whole tensor (rule 1 of `docs/numerics.md`).
    pub scan: Scan,
    /// Multiplies every finished output element: the `.scale` of `NVFP4` tensors.
    pub scale: Option<f32>,
}

impl MatrixSpec {
    /// Bytes of a row as in the file.
    ///
    /// # Errors
    /// [`MatrixError::Columns`] if the columns are not one or more whole blocks.
    pub fn row_bytes(&self) -> Result<usize, MatrixError> {
        let Self { ty, cols, .. } = *self;
        ty.row_bytes(cols).filter(|&bytes| bytes > 0).ok_or(MatrixError::Columns { ty, cols })
    }
}

/// A weight matrix in device memory, `rows` outputs by `cols` inputs.
#[derive(Debug)]
pub struct DeviceMatrix {
    spec: MatrixSpec,
    row_bytes: usize,
    /// The rows as in the file, one after the other.
    raw: DeviceBuffer<u8>,
}

impl DeviceMatrix {
    /// Room for a matrix, to be filled through [`DeviceMatrix::raw_mut`].
    ///
    /// # Errors
    /// If the shape is impossible or does not fit the device.
    pub fn new(context: &Context, spec: MatrixSpec) -> Result<Self, DeviceMatrixError> {
        let row_bytes = spec.row_bytes()?;
        let bytes = row_bytes.checked_mul(spec.rows).ok_or(MatrixError::Bytes { expected: usize::MAX, got: 0 })?;
        Ok(Self { spec, row_bytes, raw: DeviceBuffer::new(context, bytes)? })
    }

    /// The matrix of `raw`, a whole tensor as in the file: for tests and tools.
    ///
    /// # Errors
    /// If `raw` does not fit the shape, holds a scale that is NaN or infinite, or does not fit the device.
    pub fn of_tensor(
        queue: &mut Queue,
        ty: WeightType,
        (rows, cols): (usize, usize),
        raw: &[u8],
    ) -> Result<Self, DeviceMatrixError> {
        let spec = MatrixSpec { ty, rows, cols, scan: Scan::of(ty, cols, 0, raw)?, scale: None };
        let mut matrix = Self::new(queue.context(), spec)?;
        if raw.len() != matrix.raw.len() {
            return Err(MatrixError::Bytes { expected: matrix.raw.len(), got: raw.len() }.into());
        }
        queue.stream().upload(raw, &mut matrix.raw, 0)?;
        Ok(matrix)
    }

    /// This matrix with every finished output element multiplied by `scale`.
    #[must_use]
    pub fn with_scale(mut self, scale: f32) -> Self {
        self.spec.scale = Some(scale);
        self
    }

    /// The bytes of the rows as in the file, to be uploaded in any order and any pieces.
    pub fn raw_mut(&mut self) -> &mut DeviceBuffer<u8> {
        &mut self.raw
    }

    /// Shape and meaning.
    pub fn spec(&self) -> &MatrixSpec {
        &self.spec
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.spec.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.spec.cols
    }

    /// Bytes of device memory that the matrix takes.
    pub fn bytes(&self) -> usize {
        self.raw.bytes()
    }

    /// Layouts in which this matrix wants its activations.
    pub fn forms(&self) -> Forms {
        match self.spec.ty.class() {
            WeightClass::IntegerScales => Forms::CODES_256,
            WeightClass::FloatScales => Forms::CODES_32,
            WeightClass::Float => Forms::FLOATS,
        }
    }

    pub(crate) fn raw(&self) -> &DeviceBuffer<u8> {
        &self.raw
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Type and form as the kernels read them.
    pub(crate) fn type_and_form(&self) -> u64 {
        let form = match self.spec.scan.form() {
            Form::HalfSteps => 0,
            Form::WholeSteps => 1,
            Form::General => 2u64,
        };
        u64::from(self.spec.ty as u32) | form << 32
    }
}
