//! Repacking of weights on the device, once at load.

use super::{Queue, dimension};
use crate::driver::{Arguments, DeviceBuffer, DriverError, Launch};
use crate::matrix::{DeviceMatrix, Path};

pub(crate) const KERNELS: &[&str] = &["check_half", "prepare_half", "prepare_planes", "prepare_scaled"];

impl Queue {
    /// True if the f16 product of `matrix`, a `Q4_K` tensor, is exact (`kernels/prepare.cu`). Waits for the answer.
    pub(crate) fn half_tiles_fit(&mut self, matrix: &DeviceMatrix) -> Result<bool, DriverError> {
        let mut refused = DeviceBuffer::<u32>::new(self.context(), 1)?;
        self.fill(&mut refused, 0);
        let blocks = matrix.rows() * matrix.cols() / 256;
        let arguments = Arguments::new()
            .buffer(matrix.weights(Path::Integer))
            .structure(&[blocks as u64])
            .u32(matrix.form())
            .buffer(&refused);
        // SAFETY: the kernel's parameters in order; the matrix has so many blocks.
        unsafe { self.launch("check_half", &Launch::of(dimension(blocks.div_ceil(256)), 256), arguments) };
        self.sync()?;
        let mut found = [0];
        self.stream().download(&refused, 0, &mut found)?;
        Ok(found == [0])
    }

    /// The layout of `path` for `matrix`, `bytes` long, enqueued to be filled.
    pub(crate) fn layout(
        &mut self,
        matrix: &DeviceMatrix,
        path: Path,
        bytes: usize,
    ) -> Result<DeviceBuffer<u8>, DriverError> {
        let layout = DeviceBuffer::<u8>::new(self.context(), bytes)?;
        let (rows, blocks) = (matrix.rows(), matrix.cols().div_ceil(256));
        let start = Arguments::new().buffer(matrix.weights(Path::Integer)).buffer(&layout).size(rows).size(blocks);
        let launch = Launch::of(dimension(rows.div_ceil(path.tile_outputs())), 256).rows(dimension(blocks));
        let (kernel, arguments) = match path {
            Path::Half => ("prepare_half", start.u32(matrix.form())),
            Path::ScaledTiles | Path::ScaledMinTiles => {
                let start = start.u32(matrix.spec().ty as u32).size(matrix.cols() / 32);
                ("prepare_scaled", start.size(matrix.row_bytes()))
            }
            _ => ("prepare_planes", start.u32(matrix.spec().ty as u32).u32(matrix.form())),
        };
        // SAFETY: the kernel's parameters in order; `bytes` is what the layout of this matrix takes.
        unsafe { self.launch(kernel, &launch, arguments) };
        Ok(layout)
    }
}
