//! Products of activation rows with weight matrices (rules 3, 4 and 4b of `docs/numerics.md`).

use muser_kernels::formats::WeightClass;

use super::{Queue, dimension};
use crate::activations::Activations;
use crate::driver::{Arguments, DeviceBuffer, Launch};
use crate::matrix::DeviceMatrix;

pub(crate) const KERNELS: &[&str] = &[
    "matmul_integer_8",
    "matmul_integer_64",
    "matmul_scaled_8",
    "matmul_scaled_64",
    "matmul_float_1",
    "matmul_float_8",
];

/// Most products of one operation.
pub const PRODUCTS_MAX: usize = 4;

/// Outputs of a thread block, as in `kernels/matmul.cu`.
const TILE_OUTPUTS: usize = 64;
/// Bytes between rows of codes in shared memory.
const PITCH: usize = 272;

/// One product of a step's activations: `out = matrix * activations + bias`.
#[derive(Debug)]
pub struct DeviceProduct<'a> {
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
    pub fn matmul(&mut self, activations: &Activations, products: &mut [DeviceProduct<'_>]) {
        assert!(products.len() <= PRODUCTS_MAX, "{} products at once", products.len());
        let (rows, cols) = (activations.rows(), activations.cols());
        for DeviceProduct { matrix, bias, out } in products.iter() {
            let outputs = matrix.rows();
            assert_eq!(matrix.cols(), cols, "columns of a matrix and its activations");
            assert!(out.len() >= rows * outputs, "{rows} rows of {outputs} outputs in room for {}", out.len());
            assert!(bias.is_none_or(|bias| bias.len() >= outputs), "a bias of {outputs} outputs");
            assert!(activations.forms().contains(matrix.forms()), "{:?} of a product", matrix.forms());
        }
        for class in [WeightClass::IntegerScales, WeightClass::FloatScales, WeightClass::Float] {
            let of_class: Vec<&DeviceProduct<'_>> =
                products.iter().filter(|product| product.matrix.spec().ty.class() == class).collect();
            if !of_class.is_empty() {
                self.general(class, activations, &of_class);
            }
        }
    }

    /// The products of one class by the kernels that take every type and shape.
    fn general(&mut self, class: WeightClass, x: &Activations, products: &[&DeviceProduct<'_>]) {
        let (rows, blocks) = (x.rows(), x.blocks());
        let (items, tiles) = items(products, TILE_OUTPUTS);
        let start = Arguments::new().structure(&items);
        // Few rows take narrow tiles: the work of a tile hardly depends on how many of its rows there are.
        let (narrow, wide) = if class == WeightClass::Float { (1, 8) } else { (8, 64) };
        let tile_rows = if rows <= narrow { narrow } else { wide };
        let is_wide = tile_rows == wide;
        let (kernel, arguments, shared) = match class {
            WeightClass::IntegerScales => (
                if is_wide { "matmul_integer_64" } else { "matmul_integer_8" },
                start.buffer(&x.codes256).buffer(&x.scales256).buffer(&x.sums256).size(rows).size(blocks),
                (2 * TILE_OUTPUTS + tile_rows) * PITCH + 4 * (2 * TILE_OUTPUTS + tile_rows) + 16 * tile_rows + 512,
            ),
            WeightClass::FloatScales => (
                if is_wide { "matmul_scaled_64" } else { "matmul_scaled_8" },
                start.buffer(&x.codes32).buffer(&x.scales32).buffer(&x.sums32).size(rows).size(blocks).size(x.cols()),
                (TILE_OUTPUTS + tile_rows) * PITCH + 4 * (24 * TILE_OUTPUTS + 16 * tile_rows),
            ),
            WeightClass::Float => (
                if is_wide { "matmul_float_8" } else { "matmul_float_1" },
                start.buffer(&x.floats).size(rows).size(x.cols()),
                0,
            ),
        };
        let threads = if class != WeightClass::Float && !is_wide { 128 } else { 256 };
        let launch = Launch::of(dimension(tiles), threads).rows(dimension(rows.div_ceil(tile_rows)));
        // SAFETY: the kernel's parameters in order; `matmul` checked all lengths, and the activations are of this class.
        unsafe { self.launch(kernel, &launch.shared(dimension(shared)), arguments) };
    }
}

/// The kernels' `MatmulItems`, and the number of tiles of `tile_outputs` outputs in all of them.
fn items(products: &[&DeviceProduct<'_>], tile_outputs: usize) -> ([u64; 8 * PRODUCTS_MAX], usize) {
    // A first tile that no block reaches marks the items past the last.
    let mut items = [0; 8 * PRODUCTS_MAX];
    items.iter_mut().skip(7).step_by(8).for_each(|first_tile| *first_tile = u64::MAX);
    let mut tiles = 0;
    for (item, DeviceProduct { matrix, bias, out }) in items.chunks_exact_mut(8).zip(products) {
        let scale = matrix.spec().scale.map_or(0, |scale| u64::from(scale.to_bits()) | 1 << 32);
        item.copy_from_slice(&[
            matrix.raw().address(),
            bias.map_or(0, DeviceBuffer::address),
            out.address(),
            matrix.rows() as u64,
            matrix.row_bytes() as u64,
            matrix.type_and_form(),
            scale,
            tiles as u64,
        ]);
        tiles += matrix.rows().div_ceil(tile_outputs);
    }
    (items, tiles)
}
