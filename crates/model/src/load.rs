//! From a model file to a graph that can run: names to layers, weights brought into a device's form once.

use std::collections::HashSet;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::arena::ArenaError;
use muser_kernels::attention::{AttentionError, AttentionShape};
use muser_kernels::cpu::Cpu;
use muser_kernels::formats::{dequantise_row, first_non_finite};
use muser_kernels::matrix::MatrixError;
use muser_kernels::pool::PoolError;
use muser_kernels::rope::{RopeError, RopeTable, Rotation};
use muser_kv::{CacheSpec, KvLayout, LayerSpec, LayoutError, PageLayout, SpecError};
use muser_weights::gguf::{ModelFiles, TensorError, Weight};

use crate::arch::{ConfigError, read_config};
use crate::config::{ModelConfig, Part, RopeConfig};
use crate::cost::{GraphProducts, SequenceRows, StepCost};
use crate::cpu::{Planned, PrepareForCpu};
use crate::device::{Device, DeviceError, FileForm, Prepare, PreparedWeights, RawMatrix};
use crate::feed_forward::{DenseNetwork, FeedForward};
use crate::layer::{Attention, Form, Layer, Linear, Norm, Reform};

/// Error of loading a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor is missing or of a type without kernels.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor has another shape than the configuration asks for.
    #[error("tensor {name:?} is {rows} x {cols}, the configuration asks for {want_rows} x {want_cols}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its rows.
        rows: usize,
        /// Its row length.
        cols: usize,
        /// Rows asked for.
        want_rows: usize,
        /// Row length asked for.
        want_cols: usize,
    },
    /// A tensor that the architecture's graph does not compute: running on without it would give another model's text.
    #[error("tensor {name:?} is not part of the {architecture} architecture as muser knows it")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A matrix cannot be prepared.
    #[error("tensor {name:?}: {reason}")]
    Matrix {
        /// The tensor.
        name: String,
        /// Defect of the matrix.
        reason: MatrixError,
    },
    /// A vector or the embedding holds a NaN or an infinity.
    #[error("tensor {name:?}: block {block} is not finite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The first such block.
        block: usize,
    },
    /// The heads cannot be computed.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// The rotary angles cannot be computed.
    #[error(transparent)]
    Rope(#[from] RopeError),
    /// Not enough memory for the weights.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The device has no room for the weights, or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refuses the threads that pack the weights.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Configuration and geometry of a model: everything but its weights.
#[derive(Debug)]
pub struct ModelSpec {
    config: ModelConfig,
    attention_shape: AttentionShape,
    angles: Vec<RopeTable>,
    parameters: u64,
    products: GraphProducts,
}

impl ModelSpec {
    /// The effective configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Heads of every layer.
    pub fn attention_shape(&self) -> AttentionShape {
        self.attention_shape
    }

    /// Elements of all tensors together.
    pub fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Arithmetic and memory traffic of a step over `sequences`, with caches of `layout`, by kind of operation.
    pub fn step_cost(&self, layout: KvLayout, sequences: &[SequenceRows]) -> StepCost {
        self.products.step_cost(&self.config, layout, sequences)
    }

    /// The shape of a cache for `context` positions.
    ///
    /// # Errors
    /// [`CacheError`] if such a cache cannot be addressed.
    pub fn cache_spec(&self, layout: KvLayout, context: usize) -> Result<Arc<CacheSpec>, CacheError> {
        let page = PageLayout::new(layout, self.config.kv_heads, self.config.head_dim)?;
        Ok(Arc::new(CacheSpec::new(self.layer_specs().collect(), page, context, CacheSpec::EXTRA_PAGES_DEFAULT)?))
    }

    /// The model's rotary angles: a table without positions for each of [`ModelConfig::rotations`].
    pub fn angles(&self) -> Vec<RopeTable> {
        self.angles.clone()
    }

    /// True if a cache of this shape has the model's heads, head length and windows.
    pub(crate) fn accepts(&self, spec: &CacheSpec) -> bool {
        let layout = spec.layout();
        layout.kv_heads() == self.config.kv_heads
            && layout.head_dim() == self.config.head_dim
            && self.layer_specs().eq(spec.layers().iter().copied())
    }

    fn layer_specs(&self) -> impl Iterator<Item = LayerSpec> {
        self.config.layers.iter().map(|layer| LayerSpec { window: layer.window })
    }
}

/// A model that can run on a device. Nothing of it is read from the file any more.
#[derive(Debug)]
pub struct Model<D: Device = Cpu> {
    spec: Arc<ModelSpec>,
    table: D::Table,
    layers: Vec<Layer<D>>,
    output_norm: Norm<D::Vector>,
    head: Linear<D>,
    weight_bytes: usize,
}

/// The tensor that holds one row per token.
const EMBEDDING: &str = "token_embd.weight";

impl Model {
    /// Reads the configuration, checks every tensor against it, and packs the matrices for the CPU with `threads` threads.
    ///
    /// # Errors
    /// [`LoadError`] names the key or tensor that is wrong.
    pub fn load(files: Arc<ModelFiles>, threads: NonZeroUsize) -> Result<Self, LoadError> {
        Self::load_with(&files, &mut PrepareForCpu { threads })
    }

    /// Everything [`Self::load`] checks, without taking the memory. The bytes that the packed weights would take.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn check(files: &ModelFiles) -> Result<usize, LoadError> {
        let file = FileModel::read(files)?;
        let planned = Planned::new(&file.table, &file.matrices(), &mut |name| files.release(name))?;
        Ok(planned.arena.bytes())
    }
}

impl<D: Device> Model<D> {
    /// Reads the configuration, checks every tensor against it, and brings the weights into the form of a device.
    ///
    /// # Errors
    /// [`LoadError`] names the key or tensor that is wrong, or the memory that is missing.
    pub fn load_with(files: &ModelFiles, prepare: &mut impl Prepare<Device = D>) -> Result<Self, LoadError> {
        let file = FileModel::read(files)?;
        let PreparedWeights { table, matrices, bytes } =
            prepare.prepare(&file.table, &file.matrices(), &mut |name| files.release(name))?;
        let FileModel { spec, layers, output_norm, head, .. } = file;
        let mut form = ToDevice { prepare, matrices: matrices.into_iter(), file: PhantomData };
        let layers = layers.into_iter().map(|layer| layer.reform(&mut form)).collect::<Result<_, _>>()?;
        let head = form.linear(head)?;
        let output_norm = form.norm(output_norm)?;
        Ok(Self { spec: Arc::new(spec), table, layers, output_norm, head, weight_bytes: bytes })
    }

    /// Configuration and geometry.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.spec
    }

    /// The effective configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.spec.config
    }

    /// As [`ModelSpec::cache_spec`].
    ///
    /// # Errors
    /// As [`ModelSpec::cache_spec`].
    pub fn cache_spec(&self, layout: KvLayout, context: usize) -> Result<Arc<CacheSpec>, CacheError> {
        self.spec.cache_spec(layout, context)
    }

    /// Bytes of the weights in the device's form, most of which are read for every step.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    pub(crate) fn table(&self) -> &D::Table {
        &self.table
    }

    pub(crate) fn layers(&self) -> &[Layer<D>] {
        &self.layers
    }

    pub(crate) fn output_norm(&self) -> &Norm<D::Vector> {
        &self.output_norm
    }

    pub(crate) fn head(&self) -> &Linear<D> {
        &self.head
    }
}

/// Exchanges the file's form of each weight for the device's. Matrices were prepared in the order in which the layers ask.
struct ToDevice<'p, 'a, P: Prepare> {
    prepare: &'p mut P,
    matrices: std::vec::IntoIter<<P::Device as Form>::Matrix>,
    file: PhantomData<&'a ()>,
}

impl<'a, P: Prepare> Reform for ToDevice<'_, 'a, P> {
    type From = FileForm<'a>;
    type To = P::Device;
    type Error = LoadError;

    fn matrix(&mut self, _raw: RawMatrix<'a>) -> Result<<P::Device as Form>::Matrix, LoadError> {
        Ok(self.matrices.next().expect("one prepared matrix for each of the file's"))
    }

    fn vector(&mut self, vector: Vec<f32>) -> Result<<P::Device as Form>::Vector, LoadError> {
        self.prepare.vector(vector)
    }
}

/// Error of shaping a cache for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The heads make no page.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The layers or the context make no cache.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// A model whose tensors are checked and still lie in the file.
struct FileModel<'a> {
    spec: ModelSpec,
    table: RawMatrix<'a>,
    layers: Vec<Layer<FileForm<'a>>>,
    output_norm: Norm,
    head: Linear<FileForm<'a>>,
}

impl<'a> FileModel<'a> {
    fn read(files: &'a ModelFiles) -> Result<Self, LoadError> {
        let config = read_config(&files.metadata())?;
        let attention_shape = AttentionShape::new(config.query_heads, config.kv_heads, config.head_dim)?;
        let mut loader = Loader { files, config: &config, used: HashSet::new() };
        let table = loader.embedding()?;
        let layers = (0..config.layers.len()).map(|index| loader.layer(index)).collect::<Result<_, _>>()?;
        let output_norm = loader.norm("output_norm", config.hidden, config.norm_eps)?;
        // Without a head of its own, a model multiplies with its embeddings.
        let head = if files.tensor("output.weight").is_some() { "output" } else { "token_embd" };
        let head = loader.linear(head, [config.vocab, config.hidden], Part::Absent)?;
        let angles = loader.angles()?;
        loader.refuse_unknown_tensors()?;
        let parameters = files.tensors().map(|tensor| tensor.elements()).sum();
        let products = GraphProducts::new(&config, &|name| Some(files.weight(name).ok()?.ty));
        let products = products.expect("every matrix of the graph was read above");
        let spec = ModelSpec { config, attention_shape, angles, parameters, products };
        Ok(Self { spec, table, layers, output_norm, head })
    }

    /// Every matrix, in the order in which [`Layer::reform`] meets them, the head last.
    fn matrices(&self) -> Vec<RawMatrix<'a>> {
        self.layers.iter().flat_map(Layer::matrices).chain([&self.head.matrix]).cloned().collect()
    }
}

/// Reads tensors.
pub(crate) struct Loader<'a, 'c> {
    files: &'a ModelFiles,
    config: &'c ModelConfig,
    /// Names of the tensors that the graph uses.
    used: HashSet<String>,
}

impl<'a> Loader<'a, '_> {
    fn layer(&mut self, index: usize) -> Result<Layer<FileForm<'a>>, LoadError> {
        let ModelConfig { hidden, head_dim, norm_eps: eps, post_norm_eps, parts, .. } = *self.config;
        let (query_dim, kv_dim) = (self.config.query_dim(), self.config.kv_dim());
        let name = |part: &str| format!("blk.{index}.{part}");
        let (qkv_biases, biases) = (parts.qkv_biases, parts.other_biases);
        let config = self.config.layers[index];
        let attention = Attention {
            norm: self.norm(&name("attn_norm"), hidden, eps)?,
            query: self.linear(&name("attn_q"), [query_dim, hidden], qkv_biases)?,
            key: self.linear(&name("attn_k"), [kv_dim, hidden], qkv_biases)?,
            value: self.linear(&name("attn_v"), [kv_dim, hidden], qkv_biases)?,
            rotation: config.rope.map(|rope| self.rotation(&rope)),
            query_norm: self.part(&name("attn_q_norm"), parts.qk_norms, |l, n| l.norm(n, head_dim, eps))?,
            key_norm: self.part(&name("attn_k_norm"), parts.qk_norms, |l, n| l.norm(n, head_dim, eps))?,
            gate: self
                .part(&name("attn_gate"), parts.attention_gate, |l, n| l.linear(n, [query_dim, hidden], biases))?,
            output: self.linear(&name("attn_output"), [hidden, query_dim], biases)?,
            post_norm: self
                .part(&name("post_attention_norm"), parts.post_norms, |l, n| l.norm(n, hidden, post_norm_eps))?,
        };
        let feed_forward = FeedForward {
            norm: self.norm(&name("ffn_norm"), hidden, eps)?,
            network: DenseNetwork::read(self, index, config.feed_forward, biases)?,
            post_norm: self.part(&name("post_ffw_norm"), parts.post_norms, |l, n| l.norm(n, hidden, post_norm_eps))?,
        };
        Ok(Layer { config, attention, feed_forward })
    }

    pub(crate) fn config(&self) -> &ModelConfig {
        self.config
    }

    /// The table of angles that `rope` needs, by its number among [`ModelConfig::rotations`], and the pairing.
    fn rotation(&self, rope: &RopeConfig) -> Rotation {
        let tables = self.config.rotations();
        let table =
            tables.iter().position(|other| other.shares_angles(rope)).expect("a layer's rotation is among them");
        Rotation { table, style: rope.style }
    }

    /// A table without positions for each of the model's rotations. The divisors of `rope_freqs.weight` hold for all.
    fn angles(&mut self) -> Result<Vec<RopeTable>, LoadError> {
        let rotations = self.config.rotations();
        let Some(first) = rotations.first() else { return Ok(Vec::new()) };
        let factors = self.optional_vector("rope_freqs.weight", first.rotated / 2)?;
        let table = |rope: &RopeConfig| Ok(RopeTable::new(rope.base, rope.rotated, 0, factors.as_deref())?);
        rotations.iter().map(table).collect()
    }

    fn embedding(&mut self) -> Result<RawMatrix<'a>, LoadError> {
        let Weight { ty, rows, cols, bytes, .. } = self.shaped(EMBEDDING, self.config.vocab, self.config.hidden)?;
        check_finite(EMBEDDING, Weight { ty, rows, cols, bytes })?;
        Ok(RawMatrix { name: EMBEDDING.to_owned(), ty, rows, cols, bytes, scale: None })
    }

    /// Result of `read` for `<name>.weight` and its companions; `None` if the architecture, or the file for an optional
    /// part, does not have it.
    fn part<T>(
        &mut self,
        name: &str,
        part: Part,
        read: impl FnOnce(&mut Self, &str) -> Result<T, LoadError>,
    ) -> Result<Option<T>, LoadError> {
        let there = match part {
            Part::Absent => false,
            Part::Optional => self.files.tensor(&format!("{name}.weight")).is_some(),
            Part::Required => true,
        };
        there.then(|| read(self, name)).transpose()
    }

    /// The matrix `<name>.weight`, `[rows, cols]`, with its `.bias` and `.scale` as far as it has them.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        shape: [usize; 2],
        bias: Part,
    ) -> Result<Linear<FileForm<'a>>, LoadError> {
        let [rows, cols] = shape;
        let tensor = format!("{name}.weight");
        let weight = self.shaped(&tensor, rows, cols)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Part::Absent => None,
            Part::Optional => self.optional_vector(&bias_name, rows)?,
            Part::Required => Some(self.vector(&bias_name, rows)?),
        };
        // Rows of embeddings are read without a scale, so that one is refused as an unknown tensor where they are the head.
        let scales = [format!("{name}.scale"), format!("{name}.weight.scale")];
        let scale = scales.iter().find(|scale| tensor != EMBEDDING && self.files.tensor(scale).is_some());
        let scale = scale.map(|scale| self.vector(scale, 1)).transpose()?;
        let scale = scale.map(|scale| scale[0]);
        Ok(Linear { matrix: RawMatrix { name: tensor, ty: weight.ty, rows, cols, bytes: weight.bytes, scale }, bias })
    }

    fn norm(&mut self, name: &str, len: usize, eps: f32) -> Result<Norm, LoadError> {
        Ok(Norm { weight: self.vector(&format!("{name}.weight"), len)?, width: len, eps })
    }

    fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, LoadError> {
        self.files.tensor(name).map(|_| self.vector(name, len)).transpose()
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.shaped(name, 1, len)?;
        check_finite(name, tensor)?;
        let mut values = vec![0.0; len];
        dequantise_row(tensor.ty, tensor.bytes, &mut values);
        Ok(values)
    }

    /// Scales of activations are for engines that compute in their type; here they have no effect (`docs/numerics.md`).
    fn refuse_unknown_tensors(&self) -> Result<(), LoadError> {
        let known = |name: &str| self.used.contains(name) || name.ends_with(".input_scale");
        match self.files.tensors().find(|tensor| !known(tensor.name())) {
            None => Ok(()),
            Some(tensor) => {
                let architecture = self.config.architecture;
                Err(LoadError::UnknownTensor { name: tensor.name().to_owned(), architecture })
            }
        }
    }

    fn shaped(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight<'a>, LoadError> {
        let weight = self.files.weight(name)?;
        self.used.insert(name.to_owned());
        if (weight.rows, weight.cols) != (rows, cols) {
            let name = name.into();
            return Err(LoadError::Shape {
                name,
                rows: weight.rows,
                cols: weight.cols,
                want_rows: rows,
                want_cols: cols,
            });
        }
        Ok(weight)
    }
}

fn check_finite(name: &str, weight: Weight<'_>) -> Result<(), LoadError> {
    match first_non_finite(weight.ty, weight.bytes) {
        None => Ok(()),
        Some(block) => Err(LoadError::NotFinite { name: name.into(), block }),
    }
}
