//! Arithmetic and memory traffic of each operation of a [`Device`](crate::Device), from its shape, and of whole steps.
//!
//! These are the model's figures, not a kernel's: what has to be computed, and what has to be read and written at least, each
//! operand once. A device that reads a matrix again for every tile, or keeps vectors in caches, has others. Biases and
//! factors of norms are left out.
//!
//! A multiplication and an addition are two operations. Element by element, an operator of the formula is one, and so are a
//! root, an exponential and a rounding; a Hadamard transform of `d` elements is `d * log2(d)`.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Range};

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};
use muser_kernels::formats::{WeightClass, WeightType};

use crate::config::{LayerConfig, ModelConfig};
use crate::feed_forward::DenseProducts;

/// Bytes of an activation, a logit or an element of the residual stream.
const FLOAT: usize = size_of::<f32>();
/// Operations of a norm of one element: square, sum, and two factors.
const NORM: usize = 4;
/// Operations of the quantisation of one element: largest magnitude, factor and rounding.
const QUANTISE: usize = 3;
/// Operations of the rotation of one element: two products and a sum.
const ROTATE: usize = 3;

/// Arithmetic and memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Operations, of integers or of floats.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// One product of a vector with a matrix, `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Type of the weights.
    pub ty: WeightType,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Columns of the matrix.
    pub inputs: usize,
}

/// Keys and values of one layer, as attention reads them.
#[derive(Clone, Copy, Debug)]
pub struct AttentionCost {
    /// Heads.
    pub shape: AttentionShape,
    /// Storage of keys and values.
    pub layout: KvLayout,
    /// Positions that a query sees, its own included; `None` for all.
    pub window: Option<u32>,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceRows {
    /// Rows that were computed before.
    pub position: usize,
    /// Rows of the step.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub logits: usize,
}

/// Products of one layer, in the order of the graph.
#[derive(Clone, Debug, PartialEq)]
struct LayerProducts {
    config: LayerConfig,
    /// Queries, keys, values, and the gate where there is one.
    projections: Vec<ProductShape>,
    output: ProductShape,
    feed_forward: DenseProducts,
}

/// Products of a model and the type of its embeddings: with the configuration, all that the cost of a step depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphProducts {
    table: WeightType,
    layers: Vec<LayerProducts>,
    head: ProductShape,
}

/// Cost of a step by kind of operation, each summed over the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Rows of embeddings.
    pub embed: Cost,
    /// Sums into the residual stream, norms and quantisations before products.
    pub norms: Cost,
    /// Products with the layers' matrices.
    pub products: Cost,
    /// Head vectors made and stored.
    pub place: Cost,
    /// Attention over stored keys and values.
    pub attention: Cost,
    /// Gates on the heads' outputs, and their quantisation.
    pub gates: Cost,
    /// SiLU, and its quantisation.
    pub silu: Cost,
    /// Norm, product and scale of the rows whose logits are wanted.
    pub head: Cost,
}

impl Cost {
    /// Products of `rows` vectors, which are the same for all `shapes`; every matrix is read once.
    pub fn products(shapes: &[ProductShape], rows: usize) -> Self {
        let activations = shapes.iter().map(|shape| activation_bytes(shape.ty, shape.inputs)).max().unwrap_or(0);
        let operations = shapes.iter().map(|shape| 2 * rows * shape.outputs * shape.inputs).sum();
        let bytes = shapes.iter().map(|shape| shape.weight_bytes() + rows * shape.outputs * FLOAT).sum::<usize>();
        Self::of(operations, bytes + rows * activations)
    }

    /// Embeddings of `rows` tokens, `[rows, cols]`, normed or not.
    pub fn embed(table: WeightType, [rows, cols]: [usize; 2], is_normed: bool) -> Self {
        let norm = if is_normed { NORM - 1 } else { 0 };
        Self::of(rows * cols * (1 + norm), rows * (row_bytes(table, cols) + cols * FLOAT))
    }

    /// A norm and a quantisation of `[rows, cols]`, for products with weights of type `consumer`, after the sum with an addend
    /// where there is one.
    pub fn norm_quantise([rows, cols]: [usize; 2], addend: Option<AddendCost>, consumer: WeightType) -> Self {
        let sum = addend.map_or(Self::default(), |addend| Self::add_residual([rows, cols], addend));
        // The sum is normed where it is: it is not read again.
        let read = if addend.is_some() { 0 } else { rows * cols * FLOAT };
        sum + Self::of(rows * cols * (NORM + QUANTISE), read + rows * activation_bytes(consumer, cols))
    }

    /// A sum into the residual stream, `[rows, cols]`.
    pub fn add_residual([rows, cols]: [usize; 2], addend: AddendCost) -> Self {
        let operations = match addend {
            AddendCost::Plain => 1,
            AddendCost::Normed => 1 + NORM,
        };
        Self::of(rows * cols * operations, rows * cols * 3 * FLOAT)
    }

    /// Head vectors of `rows` rows: queries in place, keys and values into their pages. `norms` counts those of queries and
    /// keys.
    pub fn place_and_store(layer: &AttentionCost, rows: usize, has_norms: bool, rotates: bool) -> Self {
        let AttentionCost { shape, layout, .. } = layer;
        let (query, kv) = (shape.query_heads() * shape.head_dim(), shape.kv_heads() * shape.head_dim());
        let of_query_and_key = usize::from(has_norms) * NORM + usize::from(rotates) * ROTATE;
        let of_all = transform_operations(*layout, shape.head_dim());
        let stored = match layout {
            KvLayout::Q8 => QUANTISE,
            KvLayout::F16 => 1,
        };
        let operations = (query + kv) * of_query_and_key + (query + 2 * kv) * of_all + 2 * kv * stored;
        let bytes = (2 * query + 2 * kv) * FLOAT + layout.page_bytes(shape) / PAGE_ROWS;
        Self::of(rows * operations, rows * bytes)
    }

    /// Attention of the rows at `positions` of one sequence: four operations for each element of a visible key, softmax left
    /// out; every stored row that any of them sees is read once.
    pub fn attend(layer: &AttentionCost, positions: Range<usize>) -> Self {
        let AttentionCost { shape, layout, .. } = layer;
        let rows = positions.len();
        let query = shape.query_heads() * shape.head_dim();
        let stored = layer.seen(&positions).len() * layout.page_bytes(shape) / PAGE_ROWS;
        Self::of(4 * query * layer.pairs(positions), stored + 2 * rows * query * FLOAT)
    }

    /// The heads' outputs, `[rows, heads * head_dim]`, gated or not, and quantised for `consumer`.
    pub fn gate_quantise(layer: &AttentionCost, rows: usize, is_gated: bool, consumer: WeightType) -> Self {
        let AttentionCost { shape, layout, .. } = layer;
        let cols = shape.query_heads() * shape.head_dim();
        // Exponential, sum, division and product.
        let gate = if is_gated { 4 } else { 0 };
        let operations = transform_operations(*layout, shape.head_dim()) + gate + QUANTISE;
        let read = FLOAT * if is_gated { 2 } else { 1 };
        Self::of(rows * cols * operations, rows * (cols * read + activation_bytes(consumer, cols)))
    }

    /// `SiLU(gate) * up`, `[rows, cols]`, quantised for `consumer`: exponential, sum, division and product.
    pub fn silu_mul_quantise([rows, cols]: [usize; 2], consumer: WeightType) -> Self {
        Self::of(rows * cols * (4 + QUANTISE), rows * (2 * cols * FLOAT + activation_bytes(consumer, cols)))
    }

    /// Scaled and bent logits, `[rows, vocab]`, in place.
    pub fn bend_logits([rows, vocab]: [usize; 2], is_scaled: bool, is_capped: bool) -> Self {
        // A hyperbolic tangent is one operation, between a division and a product.
        let operations = usize::from(is_scaled) + 3 * usize::from(is_capped);
        Self::of(rows * vocab * operations, 2 * rows * vocab * FLOAT)
    }

    fn of(operations: usize, bytes: usize) -> Self {
        Self { operations: operations as u64, bytes: bytes as u64 }
    }
}

/// A sum into the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddendCost {
    /// A sum of rows as they are.
    Plain,
    /// A sum of rows that are normed first.
    Normed,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, bytes: self.bytes + other.bytes }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Self::add)
    }
}

impl ProductShape {
    /// Bytes of the matrix as in the file.
    pub fn weight_bytes(&self) -> usize {
        self.outputs * row_bytes(self.ty, self.inputs)
    }
}

impl AttentionCost {
    /// Positions that any of the rows at `positions` sees.
    fn seen(&self, positions: &Range<usize>) -> Range<usize> {
        let first = self.window.map_or(0, |window| (positions.start + 1).saturating_sub(window as usize));
        first..positions.end
    }

    /// Pairs of a row and a position that it sees.
    pub fn pairs(&self, positions: Range<usize>) -> usize {
        let Range { start, end } = positions;
        // 1 + 2 + ... + n, of the rows below the window, and then as many windows.
        let triangle = |n: usize| n * (n + 1) / 2;
        let window = self.window.map_or(usize::MAX, |window| window as usize);
        let (growing_start, growing_end) = (start.min(window), end.min(window));
        let full = (end - growing_end) - (start - growing_start);
        triangle(growing_end) - triangle(growing_start) + if full > 0 { full * window } else { 0 }
    }
}

impl LayerProducts {
    fn is_gated(&self) -> bool {
        self.projections.len() > 3
    }
}

impl GraphProducts {
    /// Products of a model whose matrices have the types that `ty` says for their names; `None` where one is missing.
    pub fn new(config: &ModelConfig, ty: &dyn Fn(&str) -> Option<WeightType>) -> Option<Self> {
        let product =
            |name: &str, outputs, inputs| Some(ProductShape { ty: ty(&format!("{name}.weight"))?, outputs, inputs });
        let (hidden, query, kv) = (config.hidden, config.query_dim(), config.kv_dim());
        let layer = |(index, layer): (usize, &LayerConfig)| {
            let product = |part: &str, outputs, inputs| product(&format!("blk.{index}.{part}"), outputs, inputs);
            let first =
                [product("attn_q", query, hidden)?, product("attn_k", kv, hidden)?, product("attn_v", kv, hidden)?];
            Some(LayerProducts {
                config: *layer,
                projections: first.into_iter().chain(product("attn_gate", query, hidden)).collect(),
                output: product("attn_output", hidden, query)?,
                feed_forward: DenseProducts::new(layer.feed_forward, hidden, product)?,
            })
        };
        let embedding = product("token_embd", config.vocab, hidden)?;
        Some(Self {
            table: embedding.ty,
            layers: config.layers.iter().enumerate().map(layer).collect::<Option<_>>()?,
            head: product("output", config.vocab, hidden).unwrap_or(embedding),
        })
    }

    /// The embeddings.
    pub fn table(&self) -> ProductShape {
        ProductShape { ty: self.table, ..self.head }
    }

    /// Every matrix in the order of the graph, the head last.
    pub fn matrices(&self) -> impl Iterator<Item = ProductShape> {
        let of_layer = |layer: &LayerProducts| {
            let LayerProducts { projections, output, feed_forward, .. } = layer.clone();
            projections.into_iter().chain([output]).chain(feed_forward.all())
        };
        self.layers.iter().flat_map(of_layer).chain([self.head])
    }

    /// True if a layer has a gate on its heads' outputs.
    pub fn is_gated(&self) -> bool {
        self.layers.iter().any(LayerProducts::is_gated)
    }

    /// Cost of a step over `sequences`, with caches of `layout`, by kind of operation.
    pub fn step_cost(&self, config: &ModelConfig, layout: KvLayout, sequences: &[SequenceRows]) -> StepCost {
        let rows: usize = sequences.iter().map(|sequence| sequence.rows).sum();
        let Ok(shape) = AttentionShape::new(config.query_heads, config.kv_heads, config.head_dim) else {
            return StepCost::default();
        };
        let mut cost = StepCost {
            embed: Cost::embed(self.table, [rows, config.hidden], config.embedding_norm),
            ..StepCost::default()
        };
        let has = |part| part == crate::config::Part::Required;
        let (hidden, normed) = ([rows, config.hidden], has(config.parts.post_norms));
        let addend = if normed { AddendCost::Normed } else { AddendCost::Plain };
        for (index, layer) in self.layers.iter().enumerate() {
            let attention = AttentionCost { shape, layout, window: layer.config.window };
            let first = (index > 0).then_some(addend);
            cost.norms += Cost::norm_quantise(hidden, first, layer.projections[0].ty);
            cost.products += Cost::products(&layer.projections, rows);
            cost.place +=
                Cost::place_and_store(&attention, rows, has(config.parts.qk_norms), layer.config.rope.is_some());
            let positions = |sequence: &SequenceRows| sequence.position..sequence.position + sequence.rows;
            cost.attention += sequences.iter().map(|sequence| Cost::attend(&attention, positions(sequence))).sum();
            let is_gated = layer.is_gated();
            cost.gates += Cost::gate_quantise(&attention, rows, is_gated, layer.output.ty);
            cost.products += Cost::products(&[layer.output], rows);
            cost.norms += Cost::norm_quantise(hidden, Some(addend), layer.feed_forward.consumer());
            layer.feed_forward.add_cost(rows, &mut cost);
        }
        cost.norms += Cost::add_residual(hidden, addend);
        cost.head = self.head_cost(config, sequences.iter().map(|sequence| sequence.logits).sum());
        cost
    }

    fn head_cost(&self, config: &ModelConfig, rows: usize) -> Cost {
        if rows == 0 {
            return Cost::default();
        }
        let (is_scaled, is_capped) = (config.logit_scale.is_some(), config.logit_soft_cap.is_some());
        Cost::norm_quantise([rows, config.hidden], None, self.head.ty)
            + Cost::products(&[self.head], rows)
            + Cost::bend_logits([rows, config.vocab], is_scaled, is_capped)
    }
}

impl StepCost {
    /// All kinds together.
    pub fn total(&self) -> Cost {
        let Self { embed, norms, products, place, attention, gates, silu, head } = *self;
        [embed, norms, products, place, attention, gates, silu, head].into_iter().sum()
    }
}

/// Bytes of a vector of `cols` values in the form in which matrices of `ty` are multiplied with it: 8-bit codes with a scale
/// per 256 or 32 values, or floats.
fn activation_bytes(ty: WeightType, cols: usize) -> usize {
    match ty.class() {
        WeightClass::IntegerScales => cols + cols.div_ceil(256) * FLOAT,
        WeightClass::FloatScales => cols + cols.div_ceil(32) * FLOAT,
        WeightClass::Float => cols * FLOAT,
    }
}

/// Operations of the Hadamard transform of one element, with its factor.
fn transform_operations(layout: KvLayout, head_dim: usize) -> usize {
    match layout {
        KvLayout::Q8 => head_dim.max(1).ilog2() as usize + 1,
        KvLayout::F16 => 0,
    }
}

/// Bytes of a row of `cols` weights, which are whole blocks in every file that was read.
fn row_bytes(ty: WeightType, cols: usize) -> usize {
    cols.div_ceil(ty.block_len()) * ty.block_bytes()
}
