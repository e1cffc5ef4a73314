//! Device memory that a model takes, predicted from its shapes before anything is copied.
//!
//! Every figure comes from the function that sizes the buffer. The driver gives memory in pieces of 2 MiB: larger buffers are
//! rounded up to whole pieces, and smaller ones share pieces.

use std::fmt;

use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_model::cost::{GraphProducts, ProductShape};
use muser_model::{ModelConfig, WorkspaceShape};

use crate::activations::{DeviceActivations, Forms};
use crate::attention::{AttentionWorkspace, PlanLimits};
use crate::device::staging_bytes;
use crate::matrix::{layout_bytes, raw_bytes};

/// Bytes of a piece of device memory.
const PIECE: usize = 2 << 20;
/// Bytes by which the driver's measure may differ in a model of any size: which buffers share pieces is the driver's choice.
/// An H200 took 30 MB less for SmolLM2-135M than the 510 MB planned.
const DRIVER_SLACK: usize = 64 << 20;
/// Buffers from here on have pieces of their own.
const OWN_PIECES_MIN: usize = 1 << 20;

/// A model and the largest step, by their shapes.
#[derive(Clone, Copy, Debug)]
pub struct PlannedModel<'a> {
    /// Configuration.
    pub config: &'a ModelConfig,
    /// Matrices and embeddings.
    pub products: &'a GraphProducts,
    /// Elements of all norms, biases and other vectors.
    pub vector_elements: usize,
    /// Rows of a step.
    pub rows_max: usize,
}

/// The device has no room for a model, whatever is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs {needed} bytes of GPU memory ({plan}) and at least {pages} for pages of keys and values, {free} are free"
)]
pub struct NoRoom {
    /// Bytes without the layouts for fast products.
    pub needed: usize,
    /// Bytes of pages at least.
    pub pages: usize,
    /// Bytes that are free.
    pub free: usize,
    /// Bytes by purpose.
    pub plan: MemoryPlan,
}

/// Bytes of device memory by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights as in the file.
    pub weights: usize,
    /// The layouts for fast products beside them. Without room for one, its products are slower and the same.
    pub layouts: usize,
    /// Buffers of a step, made when the model is loaded.
    pub workspace: usize,
    /// Taken by the first step besides: room for attention, staging and new rows, with pages of the larger layout.
    pub first_step: usize,
}

impl MemoryPlan {
    /// The plan of a model on a chip that has the fast kernels' layouts (Hopper), or has not.
    ///
    /// A type with integer sub-scales is taken to have a layout, as every trained tensor does.
    pub fn new(model: PlannedModel<'_>, is_hopper: bool) -> Self {
        let PlannedModel { config, products, vector_elements, rows_max } = model;
        let matrices = || products.matrices();
        let of_weights = matrices().chain([products.table()]).map(|matrix| raw_bytes_of(&matrix));
        let weights = in_pieces(of_weights.chain([vector_elements * size_of::<f32>()]));
        let layouts = if is_hopper { in_pieces(matrices().map(|matrix| layout_bytes_of(&matrix))) } else { 0 };
        let shape = WorkspaceShape::new(config, products.is_gated(), rows_max);
        let [rows, cols] = shape.activations;
        let activations = DeviceActivations::buffers(rows, cols, Forms::ALL);
        let status_and_positions = [rows_max * size_of::<u32>(); 3];
        let buffers = shape.buffers().map(|[rows, width]| rows * width * size_of::<f32>());
        let workspace = in_pieces(buffers.chain(activations).chain(status_and_positions));
        Self { weights, layouts, workspace, first_step: first_step(config, rows_max, is_hopper) }
    }

    /// Bytes that are taken once the model is loaded, with all layouts.
    pub fn loaded(&self) -> usize {
        self.weights + self.layouts + self.workspace
    }

    /// The plan for a device with `free` bytes, of which pages get at least `pages_min`: with fewer layouts where not all fit.
    ///
    /// # Errors
    /// [`NoRoom`] if it does not fit without any.
    pub fn fit(self, free: usize, pages_min: usize) -> Result<Self, NoRoom> {
        let refused = NoRoom { needed: self.least(), pages: pages_min, free, plan: self };
        let left = free.checked_sub(self.least() + pages_min).ok_or(refused)?;
        Ok(Self { layouts: self.layouts.min(left), ..self })
    }

    /// Bytes of `free` that page copies may take, where of what is left beside the plan one part in `spare` stays free.
    pub fn page_bytes(&self, free: usize, spare: usize) -> usize {
        let left = free.saturating_sub(self.least() + self.layouts);
        left - left / spare
    }

    /// True if `measured` bytes were taken by what [`Self::loaded`] predicts, to one in a hundred or what the driver's pieces
    /// can make of a small model.
    pub fn agrees_with(&self, measured: usize) -> bool {
        self.loaded().abs_diff(measured) <= (self.loaded() / 100).max(DRIVER_SLACK)
    }

    /// Bytes without which no step can be run: everything but the layouts and page copies.
    pub fn least(&self) -> usize {
        self.weights + self.workspace + self.first_step
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, layouts, workspace, first_step } = *self;
        let gigabytes = |bytes: usize| bytes as f64 / 1e9;
        let [weights, layouts, workspace, first_step] = [weights, layouts, workspace, first_step].map(gigabytes);
        write!(
            f,
            "weights {weights:.2} GB, their layouts for fast products {layouts:.2} GB, workspace {workspace:.2} GB, attention \
             and transfers {first_step:.2} GB"
        )
    }
}

/// Bytes that the first step takes, in the layout of pages that needs more.
fn first_step(config: &ModelConfig, rows_max: usize, is_hopper: bool) -> usize {
    let Ok(shape) = AttentionShape::new(config.query_heads, config.kv_heads, config.head_dim) else { return 0 };
    let limits = PlanLimits { rows_max, sequences_max: rows_max, positions_max: config.context };
    let of_layout = |layout: KvLayout| {
        let rows_out = config.layers.len() * rows_max * layout.page_bytes(&shape) / muser_kv::PAGE_ROWS;
        let rotated: usize = config.rotations().iter().map(|rope| rope.rotated).sum();
        let angles = config.context * rotated * size_of::<f32>();
        let scratch = AttentionWorkspace::bytes(shape, layout, limits, is_hopper);
        in_pieces([scratch, staging_bytes(layout.page_bytes(&shape)), rows_out, angles].into_iter())
    };
    of_layout(KvLayout::Q8).max(of_layout(KvLayout::F16))
}

fn raw_bytes_of(matrix: &ProductShape) -> usize {
    // Columns are whole blocks in every file that is read.
    raw_bytes(matrix.ty, [matrix.outputs, matrix.inputs]).unwrap_or(0)
}

fn layout_bytes_of(matrix: &ProductShape) -> usize {
    layout_bytes(matrix.ty, [matrix.outputs, matrix.inputs])
}

/// Bytes of the pieces that hold buffers of these sizes.
fn in_pieces(buffers: impl Iterator<Item = usize>) -> usize {
    let (mut own, mut shared) = (0, 0);
    for bytes in buffers {
        if bytes < OWN_PIECES_MIN {
            shared += bytes.next_multiple_of(512);
        } else {
            own += bytes.next_multiple_of(PIECE);
        }
    }
    own + shared.next_multiple_of(PIECE)
}

#[cfg(test)]
mod tests {
    use muser_kernels::formats::WeightType;
    use muser_model::read_config;
    use muser_synthetic::small::{glimmer_30b, header};
    use muser_weights::gguf::HeaderOnly;

    use super::*;

    /// The plan of the 30B model with all weights in `Q4_K`.
    fn plan(rows_max: usize, is_hopper: bool) -> MemoryPlan {
        let bytes = header(&glimmer_30b(), &|_| WeightType::Q4_K).unwrap();
        let config = read_config(&HeaderOnly::parse(&bytes).unwrap().metadata()).unwrap();
        let products = GraphProducts::new(&config, &|_| Some(WeightType::Q4_K)).unwrap();
        let vector_elements = 52 * (4 * 6656 + 2 * 128) + 6656;
        MemoryPlan::new(PlannedModel { config: &config, products: &products, vector_elements, rows_max }, is_hopper)
    }

    #[test]
    fn buffers_are_rounded_to_pieces_and_small_ones_share_them() {
        assert_eq!(in_pieces([].into_iter()), 0);
        assert_eq!(in_pieces([1, 512, 513].into_iter()), PIECE);
        assert_eq!(in_pieces([PIECE, PIECE + 1, OWN_PIECES_MIN].into_iter()), 4 * PIECE);
        assert_eq!(in_pieces([OWN_PIECES_MIN - 1; 3].into_iter()), 2 * PIECE);
    }

    #[test]
    fn weights_of_the_30b_model_are_144_bytes_per_block_and_layouts_164_in_tiles_of_192_outputs() {
        let found = plan(2048, true);
        let mib = 1 << 20;
        // A layer, in MiB of whole pieces: queries and gate 14.625 (16), keys and values 0.914 (shared), output 14.625 (16),
        // and the three of the feed-forward network 71.3 (72) each.
        let shared = 52 * 2 * (256 * 26 * 144);
        let vectors = (52 * (4 * 6656 + 2 * 128) + 6656) * 4;
        // Head and embeddings: 202,048 * 26 * 144 bytes, 721.4 (722) MiB each.
        let own = 52 * (3 * 16 + 3 * 72) + 2 * 722;
        // The vectors together are more than a piece.
        let small = usize::next_multiple_of(shared, 2 * mib);
        assert_eq!(found.weights, own * mib + small + usize::next_multiple_of(vectors, 2 * mib));
        // In tiles of 192: 22 * 26 of queries and gate (17.2: 18), 2 * 26 of keys and values (1.56: 2), 35 * 16 of the output
        // (16.8: 18), 104 * 26 (81.2: 82) twice and 35 * 78 (81.98: 82), and 1053 * 26 of the head (822.1: 824).
        assert_eq!(found.layouts, (52 * (2 * 18 + 2 * 2 + 18 + 3 * 82) + 824) * mib);
        assert_eq!(plan(2048, false).layouts, 0);
        assert_eq!(plan(2048, false).weights, found.weights);
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_the_numbers_and_layouts_that_do_not_are_left_out() {
        let plan = MemoryPlan { weights: 700, layouts: 300, workspace: 50, first_step: 50 };
        let roomy = plan.fit(1900, 64).unwrap();
        assert_eq!((roomy, roomy.page_bytes(1900, 16)), (plan, 750));
        // 800 without layouts and 64 for pages leave 296.
        let tight = plan.fit(1160, 64).unwrap();
        assert_eq!((tight.layouts, tight.loaded(), tight.page_bytes(1160, 16)), (296, 1046, 60));
        assert_eq!(plan.fit(864, 64).unwrap().layouts, 0);
        let refused = plan.fit(863, 64).unwrap_err();
        assert_eq!((refused.needed, refused.pages, refused.free), (800, 64, 863));
        assert!(
            refused.to_string().contains("needs 800 bytes") && refused.to_string().contains("863 are free"),
            "{refused}"
        );
        assert!(plan.fit(0, 64).is_err());
    }

    #[test]
    fn a_measure_agrees_within_a_hundredth_or_the_slack_of_the_drivers_pieces() {
        let of_weights = |weights| MemoryPlan { weights, layouts: 0, workspace: 0, first_step: 0 };
        let small = of_weights(500 << 20);
        assert!(small.agrees_with((500 << 20) + DRIVER_SLACK) && small.agrees_with((500 << 20) - DRIVER_SLACK));
        assert!(
            !small.agrees_with((500 << 20) + DRIVER_SLACK + 1) && !small.agrees_with((500 << 20) - DRIVER_SLACK - 1)
        );
        let large = of_weights(40_000_000_000);
        assert!(large.agrees_with(40_400_000_000) && large.agrees_with(39_600_000_000));
        assert!(!large.agrees_with(40_400_000_001) && !large.agrees_with(39_599_999_999));
    }

    #[test]
    fn buffers_grow_with_the_rows_of_a_step_and_the_sums_are_those_of_the_parts() {
        let (small, large) = (plan(512, true), plan(2048, true));
        assert_eq!((small.weights, small.layouts), (large.weights, large.layouts));
        // Floats: the residual stream and the output 6656 each, queries, gate and mixed 4096, keys and values 256, and twice
        // 19968. Activations of 19968: bytes 1, 1, 4, 2 and 1 a value, with scales and sums.
        let floats = 4 * (2 * 6656 + 3 * 4096 + 2 * 256 + 2 * 19_968);
        let activations = 19_968 * 9 + 78 * (4 + 16) + 624 * 6 + 78 * 4;
        let per_row = floats + activations;
        let grown = large.workspace - small.workspace;
        assert!(grown.abs_diff(1536 * per_row) < 40 * PIECE, "{grown} {}", 1536 * per_row);
        assert_eq!(large.loaded(), large.weights + large.layouts + large.workspace);
        assert_eq!(large.least(), large.weights + large.workspace + large.first_step);
        assert!(large.first_step > small.first_step);
    }
}
