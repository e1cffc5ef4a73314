//! Weight matrices in device memory.

use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::{Form, MatrixError, Scan};

use crate::activations::Forms;
use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::queue::Queue;
use crate::queue::matmul::has_one_row_kernel;

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

/// Most rows of a product by the kernels for small batches.
const SMALL_ROWS_MAX: usize = 32;
/// Layout for many rows beside the rows as in the file; `kernels/prepared.cuh` and `scaled_tiles.cuh` have the bytes.
#[derive(Debug)]
enum Tiles {
    /// No such layout.
    Nothing,
    /// 4-bit codes in the order of f16 matrix instructions.
    Half(DeviceBuffer<u8>),
    /// Two 8-bit planes.
    Planes(DeviceBuffer<u8>),
    /// 8-bit codes with float scales and mins.
    Scaled(DeviceBuffer<u8>),
}

/// Kernels that compute a product. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `matmul_half`: `Q4_K` and many rows.
    Half,
    /// `matmul_planes`: integer sub-scales and many rows.
    Planes,
    /// `matmul_scaled_tiles`: float scales and many rows.
    ScaledTiles,
    /// `matmul_scaled_min_tiles`: float scales, mins and many rows.
    ScaledMinTiles,
    /// `matmul_half_8` to `_32`: the same tiles and few rows.
    SmallHalf,
    /// `matmul_planes_8` to `_32`: the same tiles and few rows.
    SmallPlanes,
    /// `gemv`: integer sub-scales and one row.
    OneRow,
    /// `gemv_scaled`: float scales and one row.
    OneRowScaled,
    /// `matmul_integer`: integer sub-scales.
    Integer,
    /// `matmul_scaled`: float scales.
    Scaled,
    /// `matmul_float`: float weights.
    Float,
}

impl Path {
    /// Every path, in the order in which they are launched.
    pub(crate) const ALL: [Self; 11] = [
        Self::Half,
        Self::Planes,
        Self::ScaledTiles,
        Self::ScaledMinTiles,
        Self::SmallHalf,
        Self::SmallPlanes,
        Self::OneRow,
        Self::OneRowScaled,
        Self::Integer,
        Self::Scaled,
        Self::Float,
    ];

    /// Outputs of a tile.
    pub(crate) fn tile_outputs(self) -> usize {
        match self {
            Self::Half => 192,
            Self::Planes | Self::ScaledTiles | Self::ScaledMinTiles => 128,
            Self::OneRow | Self::OneRowScaled => 1,
            Self::SmallHalf | Self::SmallPlanes | Self::Integer | Self::Scaled | Self::Float => 64,
        }
    }

    /// Bytes of the layout that is made for the path, for a matrix of `rows` outputs and `cols` inputs.
    fn bytes(self, [rows, cols]: [usize; 2]) -> usize {
        let blocks = cols.div_ceil(256);
        let tiles = rows.div_ceil(self.tile_outputs()) * blocks;
        match self {
            Self::Half => tiles * 192 * (128 + 32 + 4),
            Self::Planes => tiles * 128 * (2 * 256 + 4),
            Self::ScaledTiles => tiles * 128 * (256 + 8 * 4),
            Self::ScaledMinTiles => tiles * 128 * (256 + 8 * 8),
            _ => 0,
        }
    }
}

/// Path for many rows of a matrix of type `ty`, if there is a layout for it.
fn layout_path(ty: WeightType) -> Option<Path> {
    match (ty, ty.class()) {
        (WeightType::NVFP4, _) | (_, WeightClass::Float) => None,
        (WeightType::Q4_1 | WeightType::Q5_1, _) => Some(Path::ScaledMinTiles),
        (_, WeightClass::FloatScales) => Some(Path::ScaledTiles),
        (WeightType::Q4_K, _) => Some(Path::Half),
        (_, WeightClass::IntegerScales) => Some(Path::Planes),
    }
}

/// Path for many rows of a matrix of `spec`: sums of a tensor without an integer form have no layout.
fn path_of_many_rows(spec: &MatrixSpec) -> Option<Path> {
    let has_form = spec.ty.class() != WeightClass::IntegerScales || spec.scan.form() != Form::General;
    layout_path(spec.ty).filter(|_| has_form)
}

/// Bytes of device memory for the rows of a matrix as in the file, `[rows, cols]`; `None` if the columns are no whole blocks.
pub fn raw_bytes(ty: WeightType, [rows, cols]: [usize; 2]) -> Option<usize> {
    // Copies of 16 bytes may reach past the last row.
    ty.row_bytes(cols)?.checked_mul(rows).map(|bytes| bytes.next_multiple_of(16))
}

/// Bytes of the layout that [`DeviceMatrix::prepare`] makes of a matrix, `[rows, cols]`, on a device that has the layouts: two
/// per weight, 0.64 for `Q4_K`, and 1.125 or (with mins) 1.25 for types with a float scale per 32 weights.
pub fn layout_bytes(ty: WeightType, shape: [usize; 2]) -> usize {
    layout_path(ty).map_or(0, |path| path.bytes(shape))
}

/// A weight matrix in device memory, `rows` outputs by `cols` inputs.
#[derive(Debug)]
pub struct DeviceMatrix {
    spec: MatrixSpec,
    row_bytes: usize,
    /// The rows as in the file, one after the other.
    raw: DeviceBuffer<u8>,
    tiles: Tiles,
    /// True if there is a kernel for one row and the type, and this device has the shared memory for its columns.
    has_one_row_kernel: bool,
}

impl DeviceMatrix {
    /// Room for a matrix, to be filled through [`DeviceMatrix::raw_mut`].
    ///
    /// # Errors
    /// If the shape is impossible or does not fit the device.
    pub fn new(context: &Context, spec: MatrixSpec) -> Result<Self, DeviceMatrixError> {
        let row_bytes = spec.row_bytes()?;
        let bytes = raw_bytes(spec.ty, [spec.rows, spec.cols]);
        let bytes = bytes.ok_or(MatrixError::Bytes { expected: usize::MAX, got: 0 })?;
        let has_one_row_kernel = has_one_row_kernel(context, &spec);
        let raw = DeviceBuffer::new(context, bytes)?;
        Ok(Self { spec, row_bytes, raw, tiles: Tiles::Nothing, has_one_row_kernel })
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
        let expected = rows * matrix.row_bytes;
        if raw.len() != expected {
            return Err(MatrixError::Bytes { expected, got: raw.len() }.into());
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

    /// The bytes of the rows as in the file, to be uploaded in any order and any pieces. The copies must have ended
    /// ([`Queue::sync`] or an event) before the first product, which reads weights ahead of the kernels before it.
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

    /// Bytes of device memory that the matrix takes, prepared layouts included.
    pub fn bytes(&self) -> usize {
        let tiles = match &self.tiles {
            Tiles::Nothing => 0,
            Tiles::Half(tiles) | Tiles::Planes(tiles) | Tiles::Scaled(tiles) => tiles.bytes(),
        };
        self.raw.bytes() + tiles
    }

    /// Makes the layout for products with more than one row from the uploaded rows, where this device and the type have
    /// one, and waits for it. It costs memory ([`DeviceMatrix::prepared_bytes`]) and changes no result. A matrix that
    /// is only used for decoding does without.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], which leaves the matrix usable as it was, or the error of earlier work.
    pub fn prepare(&mut self, queue: &mut Queue) -> Result<(), DriverError> {
        let path = path_of_many_rows(&self.spec).filter(|_| queue.context().capability().is_hopper());
        if let Some(mut path) = path {
            if path == Path::Half && !queue.half_tiles_fit(self)? {
                path = Path::Planes;
            }
            let tiles = queue.layout(self, path, path.bytes([self.spec.rows, self.spec.cols]))?;
            self.tiles = match path {
                Path::Half => Tiles::Half(tiles),
                Path::Planes => Tiles::Planes(tiles),
                _ => Tiles::Scaled(tiles),
            };
        }
        queue.sync()
    }

    /// Bytes that [`DeviceMatrix::prepare`] takes on a device that has the layouts: [`layout_bytes`], or none for a tensor of
    /// integer sub-scales without an integer form. (A `Q4_K` tensor beyond the limits of the f16 product takes two per weight;
    /// no trained one is known.)
    pub fn prepared_bytes(spec: &MatrixSpec) -> usize {
        path_of_many_rows(spec).map_or(0, |path| path.bytes([spec.rows, spec.cols]))
    }

    /// Layouts in which this matrix wants `rows` rows of activations.
    pub fn forms(&self, rows: usize) -> Forms {
        match self.path(rows) {
            Path::Half | Path::SmallHalf => Forms::HALF_TILES,
            Path::Planes | Path::SmallPlanes => Forms::BYTE_TILES,
            Path::ScaledTiles | Path::ScaledMinTiles => Forms::SCALED_TILES,
            Path::OneRow | Path::Integer => Forms::CODES_256,
            Path::OneRowScaled | Path::Scaled => Forms::CODES_32,
            Path::Float => Forms::FLOATS,
        }
    }

    /// The kernels that multiply this matrix with `rows` rows.
    pub(crate) fn path(&self, rows: usize) -> Path {
        match self.spec.ty.class() {
            WeightClass::FloatScales if rows == 1 && self.has_one_row_kernel => Path::OneRowScaled,
            WeightClass::FloatScales => match (&self.tiles, path_of_many_rows(&self.spec)) {
                (Tiles::Scaled(_), Some(path)) if rows > SMALL_ROWS_MAX => path,
                _ => Path::Scaled,
            },
            WeightClass::Float => Path::Float,
            WeightClass::IntegerScales if rows == 1 && self.has_one_row_kernel => Path::OneRow,
            WeightClass::IntegerScales => match &self.tiles {
                Tiles::Half(_) if rows <= SMALL_ROWS_MAX => Path::SmallHalf,
                Tiles::Half(_) => Path::Half,
                Tiles::Planes(_) if rows <= SMALL_ROWS_MAX => Path::SmallPlanes,
                Tiles::Planes(_) => Path::Planes,
                Tiles::Nothing | Tiles::Scaled(_) => Path::Integer,
            },
        }
    }

    /// The weights in the layout of `path`, which is one of this matrix's.
    pub(crate) fn weights(&self, path: Path) -> &DeviceBuffer<u8> {
        match (path, &self.tiles) {
            (Path::Half | Path::SmallHalf, Tiles::Half(tiles)) => tiles,
            (Path::Planes | Path::SmallPlanes, Tiles::Planes(tiles)) => tiles,
            (Path::ScaledTiles | Path::ScaledMinTiles, Tiles::Scaled(tiles)) => tiles,
            _ => &self.raw,
        }
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The form as the kernels number it.
    pub(crate) fn form(&self) -> u32 {
        match self.spec.scan.form() {
            Form::HalfSteps => 0,
            Form::WholeSteps => 1,
            Form::General => 2,
        }
    }

    /// Type and form as the kernels read them.
    pub(crate) fn type_and_form(&self) -> u64 {
        u64::from(self.spec.ty as u32) | u64::from(self.form()) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ty: WeightType, rows: usize, cols: usize) -> usize {
        let raw = vec![0; ty.row_bytes(cols).unwrap() * rows];
        let scan = Scan::of(ty, cols, 0, &raw).unwrap();
        DeviceMatrix::prepared_bytes(&MatrixSpec { ty, rows, cols, scan, scale: None })
    }

    #[test]
    fn prepared_layouts_take_whole_tiles_of_164_or_516_bytes_per_output_and_block() {
        assert_eq!(bytes(WeightType::Q4_K, 192, 512), 192 * 2 * 164);
        assert_eq!(bytes(WeightType::Q4_K, 193, 512), 384 * 2 * 164);
        assert_eq!(bytes(WeightType::Q6_K, 129, 256), 256 * 516);
        assert_eq!(bytes(WeightType::IQ4_XS, 1, 256), 128 * 516);
        assert_eq!(bytes(WeightType::F16, 64, 256) + bytes(WeightType::NVFP4, 64, 256), 0);
    }

    #[test]
    fn layouts_of_float_scales_take_whole_blocks_of_256_columns_with_a_scale_and_perhaps_a_min_per_32() {
        assert_eq!(bytes(WeightType::Q8_0, 64, 256), 128 * (256 + 32));
        assert_eq!(bytes(WeightType::MXFP4, 129, 288), 256 * 2 * (256 + 32));
        assert_eq!(bytes(WeightType::Q4_1, 128, 512) + bytes(WeightType::Q5_1, 1, 32), 128 * 3 * (256 + 64));
    }

    #[test]
    fn a_tensor_without_an_integer_form_has_no_layout_but_the_file_s() {
        // d = 0 and dmin = 1: class GEN.
        let mut raw = vec![0; 144];
        raw[2..4].copy_from_slice(&half::f16::ONE.to_le_bytes());
        let scan = Scan::of(WeightType::Q4_K, 256, 0, &raw).unwrap();
        let spec = MatrixSpec { ty: WeightType::Q4_K, rows: 1, cols: 256, scan, scale: None };
        assert_eq!(DeviceMatrix::prepared_bytes(&spec), 0);
    }

    #[test]
    fn columns_that_are_no_whole_blocks_are_refused() {
        let scan = Scan::of(WeightType::Q4_K, 256, 0, &[0; 144]).unwrap();
        let spec = MatrixSpec { ty: WeightType::Q4_K, rows: 1, cols: 128, scan, scale: None };
        assert_eq!(spec.row_bytes(), Err(MatrixError::Columns { ty: WeightType::Q4_K, cols: 128 }));
    }
}
