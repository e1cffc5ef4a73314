//! Weights on the GPU: the file's rows, and beside them the layouts for fast products.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use muser_kernels::formats::WeightType;
use muser_kernels::matrix::{MatrixError, Scan};
use muser_model::{LoadError, Prepare, PreparedWeights, RawMatrix};

use super::{CudaDevice, device_error};
use crate::driver::{DeviceBuffer, DriverError};
use crate::matrix::{DeviceMatrix, DeviceMatrixError, MatrixSpec};
use crate::queue::Queue;

/// The embedding table on the device, as in the file.
#[derive(Debug)]
pub struct Table {
    pub(super) bytes: DeviceBuffer<u8>,
    pub(super) ty: WeightType,
    pub(super) cols: usize,
}

/// Brings a model's weights to a GPU.
#[derive(Debug)]
pub struct PrepareForCuda {
    queue: Queue,
    /// Bytes that further layouts for fast products may take.
    layout_bytes_left: usize,
}

impl PrepareForCuda {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, layout_bytes_left: usize::MAX }
    }

    /// With layouts for fast products that take no more than `bytes`: the matrices that come first get theirs.
    #[must_use]
    pub fn with_layout_bytes(self, bytes: usize) -> Self {
        Self { layout_bytes_left: bytes, ..self }
    }

    fn matrix(&mut self, raw: &RawMatrix<'_>, scan: Scan) -> Result<DeviceMatrix, DeviceMatrixError> {
        let spec = MatrixSpec { ty: raw.ty, rows: raw.rows, cols: raw.cols, scan, scale: raw.scale };
        let mut matrix = DeviceMatrix::new(self.queue.context(), spec)?;
        self.queue.stream().upload(raw.bytes, matrix.raw_mut(), 0)?;
        let layout_bytes = DeviceMatrix::prepared_bytes(&spec);
        if layout_bytes > self.layout_bytes_left {
            self.queue.sync()?;
            return Ok(matrix);
        }
        self.layout_bytes_left -= layout_bytes;
        match matrix.prepare(&mut self.queue) {
            // The layouts for fast products change no result: without room for them products are slower.
            Ok(()) | Err(DriverError::OutOfMemory { .. }) => Ok(matrix),
            Err(failed) => Err(failed.into()),
        }
    }
}

impl Prepare for PrepareForCuda {
    type Device = CudaDevice;

    fn prepare(
        &mut self,
        table: &RawMatrix<'_>,
        matrices: &[RawMatrix<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<PreparedWeights<CudaDevice>, LoadError> {
        let scans = scans(matrices)?;
        let failed = |error: DriverError| LoadError::Device(device_error(error));
        let mut bytes = DeviceBuffer::new(self.queue.context(), table.bytes.len()).map_err(failed)?;
        self.queue.stream().upload(table.bytes, &mut bytes, 0).map_err(failed)?;
        progress(&table.name);
        let mut prepared = Vec::with_capacity(matrices.len());
        for (raw, scan) in matrices.iter().zip(scans) {
            let matrix = self.matrix(raw, scan).map_err(|error| match error {
                DeviceMatrixError::Tensor(reason) => LoadError::Matrix { name: raw.name.clone(), reason },
                DeviceMatrixError::Driver(error) => failed(error),
            })?;
            prepared.push(matrix);
            progress(&raw.name);
        }
        self.queue.sync().map_err(failed)?;
        let taken = table.bytes.len() + prepared.iter().map(DeviceMatrix::bytes).sum::<usize>();
        let table = Table { bytes, ty: table.ty, cols: table.cols };
        Ok(PreparedWeights { table, matrices: prepared, bytes: taken })
    }

    fn vector(&mut self, values: Vec<f32>) -> Result<DeviceBuffer<f32>, LoadError> {
        let upload = |queue: &Queue| {
            let mut buffer = DeviceBuffer::new(queue.context(), values.len())?;
            queue.stream().upload(&values, &mut buffer, 0)?;
            queue.stream().synchronize()?;
            Ok(buffer)
        };
        upload(&self.queue).map_err(|error: DriverError| LoadError::Device(device_error(error)))
    }
}

/// Looks at every value of every matrix, on all processors: the form of a tensor depends on its values (rule 1).
fn scans(matrices: &[RawMatrix<'_>]) -> Result<Vec<Scan>, LoadError> {
    let next = AtomicUsize::new(0);
    let threads = available_parallelism().map_or(1, usize::from).min(matrices.len().max(1));
    let scan = || {
        let mut found: Vec<(usize, Result<Scan, MatrixError>)> = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(raw) = matrices.get(index) else { return found };
            found.push((index, Scan::of(raw.ty, raw.cols, 0, raw.bytes)));
        }
    };
    let mut all: Vec<(usize, Result<Scan, MatrixError>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(scan)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a scan does not panic")).collect()
    });
    all.sort_unstable_by_key(|(index, _)| *index);
    let named = |(index, scan): (usize, Result<Scan, MatrixError>)| {
        scan.map_err(|reason| LoadError::Matrix { name: matrices[index].name.clone(), reason })
    };
    all.into_iter().map(named).collect()
}
