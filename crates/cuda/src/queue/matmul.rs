//! Products of activation rows with weight matrices (rules 3, 4 and 4b of `docs/numerics.md`).

use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::Form;

use super::{Queue, dimension};
use crate::activations::DeviceActivations;
use crate::driver::{Arguments, Context, DeviceBuffer, Launch};
use crate::matrix::{DeviceMatrix, MatrixSpec, Path};

/// Kernels of `matmul.cu`.
pub(crate) const KERNELS: &[&str] = &[
    "matmul_integer_8",
    "matmul_integer_64",
    "matmul_scaled_8",
    "matmul_scaled_64",
    "matmul_float_1",
    "matmul_float_8",
];
/// The kernel of `matmul_half.cu`.
pub(crate) const HALF_KERNELS: &[&str] = &["matmul_half"];
/// The kernel of `matmul_planes.cu`.
pub(crate) const PLANES_KERNELS: &[&str] = &["matmul_planes"];
/// Kernels of `matmul_scaled_tiles.cu`.
pub(crate) const SCALED_TILES_KERNELS: &[&str] = &["matmul_scaled_tiles", "matmul_scaled_min_tiles"];

/// Kernels of `matmul_small.cu`.
pub(crate) const SMALL_KERNELS: &[&str] =
    &["matmul_half_8", "matmul_half_16", "matmul_half_32", "matmul_planes_8", "matmul_planes_16", "matmul_planes_32"];
/// The kernel of `gemv.cu`.
pub(crate) const ONE_ROW_KERNELS: &[&str] = &["gemv"];
/// The kernel of `gemv_scaled.cu`.
pub(crate) const ONE_ROW_SCALED_KERNELS: &[&str] = &["gemv_scaled"];

/// Most products of one operation.
pub const PRODUCTS_MAX: usize = 4;

/// Bytes between rows of codes in the shared memory of `kernels/matmul.cu`.
const PITCH: usize = 272;
/// Bytes between groups of 32 codes in the shared memory of `kernels/gemv_scaled.cu`.
const SCALED_PITCH: usize = 48;
/// Threads of a block of the kernels of `matmul_small.cu`: four warpgroups that multiply and four warps that copy.
const SMALL_THREADS: u32 = 4 * 128 + 4 * 32;
/// Tokens of a tile of the Hopper kernels.
const HOPPER_TOKENS: usize = 128;
/// Shared memory of `matmul_half`: eight chunks of activations, two slots of weights, barriers.
const HALF_SHARED_BYTES: u32 = 8 * 16384 + 2 * (31488 + 512) + 160;
/// Shared memory of `matmul_planes`: two stages, four slots of scales, barriers.
const PLANES_SHARED_BYTES: u32 = 2 * (65536 + 32768) + 4 * 1024 + 32;
/// Shared memory of `matmul_scaled_tiles`: four slots of codes and scales, barriers.
const SCALED_SHARED_BYTES: u32 = 4 * 2 * (16384 + 2048) + 64;
/// Shared memory of `matmul_scaled_min_tiles`: four slots of codes, scales, and mins or sums, barriers.
const SCALED_MIN_SHARED_BYTES: u32 = 4 * 2 * (16384 + 4096) + 64;

/// One product of a step's activations: `out = matrix * activations + bias`.
#[derive(Debug)]
pub struct QueueProduct<'a> {
    /// `[outputs, cols]`.
    pub matrix: &'a DeviceMatrix,
    /// `[outputs]`, added to every row.
    pub bias: Option<&'a DeviceBuffer<f32>>,
    /// `[rows, outputs]`.
    pub out: &'a mut DeviceBuffer<f32>,
}

impl Queue {
    /// Computes up to [`PRODUCTS_MAX`] products of the same activations.
    ///
    /// # Panics
    /// If a length is wrong, there are too many products, or the activations lack a layout that a matrix wants.
    pub fn matmul(&mut self, activations: &DeviceActivations, products: &mut [QueueProduct<'_>]) {
        assert!(products.len() <= PRODUCTS_MAX, "{} products at once", products.len());
        let (rows, cols) = (activations.rows(), activations.cols());
        for QueueProduct { matrix, bias, out } in products.iter() {
            let outputs = matrix.rows();
            assert_eq!(matrix.cols(), cols, "columns of a matrix and its activations");
            assert!(out.len() >= rows * outputs, "{rows} rows of {outputs} outputs in room for {}", out.len());
            assert!(bias.is_none_or(|bias| bias.len() >= outputs), "a bias of {outputs} outputs");
            let forms = matrix.forms(rows);
            assert!(activations.forms().contains(forms), "{forms:?} of a product from {:?}", activations.forms());
        }
        for path in Path::ALL {
            if products.iter().all(|product| product.matrix.path(rows) != path) {
                continue;
            }
            match path {
                Path::Half | Path::Planes | Path::ScaledTiles | Path::ScaledMinTiles => {
                    self.hopper(path, activations, products);
                }
                Path::SmallHalf | Path::SmallPlanes => self.small(path, activations, products),
                Path::OneRow | Path::OneRowScaled => self.one_row(path, activations, products),
                Path::Integer | Path::Scaled | Path::Float => self.general(path, activations, products),
            }
        }
    }

    /// The products of one path by the kernels that take every type and shape.
    fn general(&mut self, path: Path, x: &DeviceActivations, products: &[QueueProduct<'_>]) {
        let (rows, blocks, outputs) = (x.rows(), x.blocks(), path.tile_outputs());
        let (items, tiles) = items(products, path, |matrix| matrix.path(x.rows()) == path);
        let start = Arguments::new().structure(&items);
        // Few rows take narrow tiles: the work of a tile hardly depends on how many of its rows there are.
        let (narrow, wide) = if path == Path::Float { (1, 8) } else { (8, 64) };
        let tile_rows = if rows <= narrow { narrow } else { wide };
        let is_wide = tile_rows == wide;
        let (kernel, arguments, shared) = match path {
            Path::Integer => (
                if is_wide { "matmul_integer_64" } else { "matmul_integer_8" },
                start.buffer(&x.codes256).buffer(&x.scales256).buffer(&x.sums256).size(rows).size(blocks),
                (2 * outputs + tile_rows) * PITCH + 4 * (2 * outputs + tile_rows) + 16 * tile_rows + 8 * outputs,
            ),
            Path::Scaled => (
                if is_wide { "matmul_scaled_64" } else { "matmul_scaled_8" },
                start.buffer(&x.codes32).buffer(&x.scales32).buffer(&x.sums32).size(rows).size(blocks).size(x.cols()),
                (outputs + tile_rows) * PITCH + 4 * (24 * outputs + 16 * tile_rows),
            ),
            _ => (
                if is_wide { "matmul_float_8" } else { "matmul_float_1" },
                start.buffer(&x.floats).size(rows).size(x.cols()),
                0,
            ),
        };
        let threads = if path != Path::Float && !is_wide { 128 } else { 256 };
        let launch = Launch::of(dimension(tiles), threads).rows(dimension(rows.div_ceil(tile_rows)));
        // SAFETY: the kernel's parameters in order; `matmul` checked all lengths, and the activations are of this path.
        unsafe { self.launch(kernel, &self.early(launch.shared(dimension(shared))), arguments) };
    }

    /// The products of one path by a kernel for one row.
    fn one_row(&mut self, path: Path, x: &DeviceActivations, products: &[QueueProduct<'_>]) {
        let of_path = |matrix: &DeviceMatrix| matrix.path(1) == path;
        let stages = products.iter().filter(|product| of_path(product.matrix));
        let stage_bytes = stages.filter_map(|product| one_row_stage_bytes(product.matrix.spec())).max().unwrap_or(0);
        let plan = OneRowPlan::of(self.context(), path, x.cols(), stage_bytes);
        let plan = plan.expect("each matrix fits, so the one with the longest stages does");
        let (items, rows) = items(products, path, of_path);
        let start = Arguments::new().structure(&items);
        let (kernel, arguments) = match path {
            Path::OneRow => {
                ("gemv", start.buffer(&x.codes256).buffer(&x.scales256).buffer(&x.sums256).size(x.blocks()))
            }
            _ => ("gemv_scaled", start.buffer(&x.codes32).buffer(&x.scales32).buffer(&x.sums32).size(x.cols() / 32)),
        };
        let arguments = arguments.size(rows).size(plan.pass_rows).size(stage_bytes);
        let thread_blocks = dimension(rows).min(self.context().processors() * plan.blocks_per_processor);
        let launch = self.early(Launch::of(thread_blocks, 256).shared(dimension(plan.shared_bytes)));
        // SAFETY: the kernel's parameters in order; `matmul` checked all lengths, the activations are of this path, and there
        // is one row.
        unsafe { self.launch(kernel, &launch, arguments) };
    }

    /// The products of one path by a kernel for Hopper and 1 to 32 rows.
    fn small(&mut self, path: Path, x: &DeviceActivations, products: &[QueueProduct<'_>]) {
        let (items, tiles) = items(products, path, |matrix| matrix.path(x.rows()) == path);
        let is_half = path == Path::SmallHalf;
        let activation_tiles = if is_half { &x.half_tiles } else { &x.byte_tiles };
        let (kernel, shared_bytes) = small_kernel(path, x.rows());
        // No more thread blocks than tiles, or a tile would be cut twice.
        let thread_blocks = dimension(tiles).min(self.context().processors());
        let arguments = Arguments::new()
            .structure(&items)
            .buffer(activation_tiles)
            .buffer(&x.tile_scales)
            .buffer(&self.hand_over.sums)
            .buffer(&self.hand_over.flags)
            .size(x.rows())
            .size(x.blocks())
            .size(tiles);
        let launch = self.early(Launch::of(thread_blocks, SMALL_THREADS).shared(shared_bytes));
        // SAFETY: the kernel's parameters in order; `matmul` checked all lengths, the activations are of this path, and the
        // hand-over has room for a thread block on every processor.
        unsafe { self.launch(kernel, &launch, arguments) };
    }

    /// The products of one path by a kernel for Hopper and many rows.
    fn hopper(&mut self, path: Path, x: &DeviceActivations, products: &[QueueProduct<'_>]) {
        let rows = x.rows();
        let (items, output_tiles) = items(products, path, |matrix| matrix.path(rows) == path);
        // `steps` of 256 or 128 columns.
        let start = Arguments::new().structure(&items);
        let (kernel, start, steps, threads, shared) = match path {
            Path::Half => {
                let start = start.buffer(&x.half_tiles).buffer(&x.tile_scales);
                ("matmul_half", start, x.blocks(), 512, HALF_SHARED_BYTES)
            }
            Path::Planes => {
                let start = start.buffer(&x.byte_tiles).buffer(&x.tile_scales);
                ("matmul_planes", start, x.blocks(), 384, PLANES_SHARED_BYTES)
            }
            Path::ScaledTiles => {
                ("matmul_scaled_tiles", start.buffer(&x.scaled_tiles), 2 * x.blocks(), 384, SCALED_SHARED_BYTES)
            }
            _ => {
                ("matmul_scaled_min_tiles", start.buffer(&x.scaled_tiles), 2 * x.blocks(), 384, SCALED_MIN_SHARED_BYTES)
            }
        };
        // No more thread blocks than tiles, or a tile would be cut twice.
        let tiles_in_all = output_tiles * rows.div_ceil(HOPPER_TOKENS);
        let thread_blocks = dimension(tiles_in_all).min(self.context().processors());
        let arguments =
            start.buffer(&self.hand_over.sums).buffer(&self.hand_over.flags).size(rows).size(steps).size(output_tiles);
        // SAFETY: the kernel's parameters in order; `matmul` checked all lengths, the activations are of this path, and the
        // hand-over has room for a thread block on every processor.
        unsafe { self.launch(kernel, &self.early(Launch::of(thread_blocks, threads).shared(shared)), arguments) };
    }
}

/// Bytes of a stage of `gemv.cu` or `gemv_scaled.cu` for a matrix of `spec`; `None` if neither can multiply it.
fn one_row_stage_bytes(spec: &MatrixSpec) -> Option<usize> {
    use WeightType::{IQ4_NL, MXFP4, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    let blocks_of_a_run = match spec.ty {
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 => 128,
        _ if spec.scan.form() == Form::General => return None,
        Q4_K | Q5_K => 32,
        Q6_K => 16,
        _ => return None,
    };
    // A lane may read a few bytes past its block.
    Some(blocks_of_a_run * spec.ty.block_bytes() + 16)
}

/// True if `gemv.cu` or `gemv_scaled.cu` multiplies matrices of `spec` on this device.
pub(crate) fn has_one_row_kernel(context: &Context, spec: &MatrixSpec) -> bool {
    let is_scaled = spec.ty.class() == WeightClass::FloatScales;
    let path = if is_scaled { Path::OneRowScaled } else { Path::OneRow };
    one_row_stage_bytes(spec).is_some_and(|bytes| OneRowPlan::of(context, path, spec.cols, bytes).is_some())
}

/// Shared memory of a kernel for one row.
struct OneRowPlan {
    shared_bytes: usize,
    /// Outputs whose terms fit together.
    pass_rows: usize,
    blocks_per_processor: u32,
}

impl OneRowPlan {
    /// Plan for rows of `cols` columns; `None` if the device has too little shared memory.
    fn of(context: &Context, path: Path, cols: usize, stage_bytes: usize) -> Option<Self> {
        // Codes, sums and scales of the row; then what an output's terms take.
        let (row, row_bytes) = match path {
            Path::OneRowScaled => {
                let groups = cols / 32;
                let scales_and_sums = groups.next_multiple_of(4) * 4 + groups.next_multiple_of(8) * 2;
                (groups * SCALED_PITCH + scales_and_sums, 4 * (groups | 1))
            }
            _ => {
                let blocks = cols / 256;
                (blocks * (PITCH + 16) + blocks.next_multiple_of(4) * 4, 8 * (blocks + 1))
            }
        };
        // Two stages of eight warps.
        let fixed = 8 * 2 * stage_bytes + row;
        let all = context.shared_bytes_max() as usize;
        // Two thread blocks share a processor where at least 16 rows fit each; the system keeps 1 KB of each for itself.
        let rows_in = |room: usize| room.saturating_sub(fixed) / row_bytes;
        let (blocks_per_processor, room) = [(2, all / 2 - 1024), (1, all)]
            .into_iter()
            .find(|&(blocks_per_processor, room)| rows_in(room) >= if blocks_per_processor == 2 { 16 } else { 1 })?;
        let pass_rows = rows_in(room).min(256);
        Some(Self { shared_bytes: fixed + pass_rows * row_bytes, pass_rows, blocks_per_processor })
    }
}

/// A kernel of `matmul_small.cu` for tiles of some rows, and its shared memory.
fn small_kernel(path: Path, rows: usize) -> (&'static str, u32) {
    let (kernel, width, stages) = match (path, rows) {
        (Path::SmallHalf, ..=8) => ("matmul_half_8", 8, 12),
        (Path::SmallHalf, ..=16) => ("matmul_half_16", 16, 10),
        (Path::SmallHalf, _) => ("matmul_half_32", 32, 7),
        (_, ..=8) => ("matmul_planes_8", 8, 6),
        (_, ..=16) => ("matmul_planes_16", 16, 5),
        (_, _) => ("matmul_planes_32", 32, 5),
    };
    // Activations, weights of 64 outputs, their D, and the activations' scales, by stage.
    let stage: u32 = match path {
        Path::SmallHalf => width * 512 + 64 * (128 + 32 + 4) + width * 4,
        _ => width * 256 + 64 * (512 + 4) + width * 4,
    };
    // Then barriers, and the sums of the tile.
    (kernel, stages * stage.next_multiple_of(1024) + 256 + 64 * width * 4)
}

/// The kernels' `MatmulItems` for the products over `wanted` matrices, which take `path`, and the number of their tiles.
fn items(
    products: &[QueueProduct<'_>],
    path: Path,
    wanted: impl Fn(&DeviceMatrix) -> bool,
) -> ([u64; 8 * PRODUCTS_MAX], usize) {
    let products = products.iter().filter(|product| wanted(product.matrix));
    // A first tile that no block reaches marks the items past the last.
    let mut items = [0; 8 * PRODUCTS_MAX];
    items.iter_mut().skip(7).step_by(8).for_each(|first_tile| *first_tile = u64::MAX);
    let mut tiles = 0;
    for (item, QueueProduct { matrix, bias, out }) in items.chunks_exact_mut(8).zip(products) {
        let scale = matrix.spec().scale.map_or(0, |scale| u64::from(scale.to_bits()) | 1 << 32);
        item.copy_from_slice(&[
            matrix.weights(path).address(),
            bias.map_or(0, DeviceBuffer::address),
            out.address(),
            matrix.rows() as u64,
            matrix.row_bytes() as u64,
            matrix.type_and_form(),
            scale,
            tiles as u64,
        ]);
        tiles += matrix.rows().div_ceil(path.tile_outputs());
    }
    (items, tiles)
}
