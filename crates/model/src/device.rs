//! The operations that the layer graph is written in, and the form of weights that each device wants.
//!
//! A device either executes an operation at once (the CPU) or enqueues it (a GPU). Nothing but [`Device::read_rows`],
//! [`Device::logits`], [`Device::row_status`] and [`Device::store_pending`] waits. Each operation is a rule of
//! `docs/numerics.md`, so every device gives the same bits.

use std::fmt::Debug;
use std::ops::BitOr;

use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kernels::cpu::{HeadTransform, LogitsBend, RowStatus};
use muser_kernels::formats::WeightType;
use muser_kernels::rope::Rotation;

use crate::layer::{Form, Norm};
use crate::load::LoadError;
use crate::step::SequenceInput;

/// A device that computes steps. Rows are rows of the step last begun; buffers are made for the largest step.
pub trait Device: Form<Matrix: Send + Sync, Vector: Send + Sync> + Sized + Send + Debug {
    /// The embedding table, `[vocab, hidden]`.
    type Table: Send + Sync + Debug;
    /// f32 rows, `[rows, width]`.
    type Rows: Send + Debug;
    /// Rows in the forms that matrices want them in.
    type Activations: Send + Debug;
    /// The heads' outputs, `[rows, query_heads * head_dim]` in the device's own order.
    type Mixed: Send + Debug;
    /// Set of forms in which the consumers of one vector want it.
    type Needs: Copy + Default + BitOr<Output = Self::Needs>;

    /// The forms in which `matrix` wants `rows` rows that it is multiplied with.
    fn needs(matrix: &Self::Matrix, rows: usize) -> Self::Needs;

    /// A buffer of `rows` rows of `width` f32 each.
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no memory for it. The same holds for the other two kinds of buffer.
    fn new_rows(&mut self, rows: usize, width: usize) -> Result<Self::Rows, DeviceError>;

    /// Room for `rows` rows of up to `cols` elements.
    ///
    /// # Errors
    /// As [`Self::new_rows`].
    fn new_activations(&mut self, rows: usize, cols: usize) -> Result<Self::Activations, DeviceError>;

    /// Room for the heads' outputs of `rows` rows.
    ///
    /// # Errors
    /// As [`Self::new_rows`].
    fn new_mixed(&mut self, shape: &AttentionShape, rows: usize) -> Result<Self::Mixed, DeviceError>;

    /// Begins a step of the rows of `batch`, one per position; every row is fine. The rows are pending in the caches.
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no room for the pages that the rows see.
    fn begin_step(&mut self, positions: &[u32], batch: &[SequenceInput<'_>]) -> Result<(), DeviceError>;

    /// Sets the site of the graph that rows failing from here on are recorded with.
    fn set_site(&mut self, site: u32);

    /// Embeddings of `tokens` to the front of `out`, normed without factors where `norm_eps` is given (rule 6a).
    fn embed(&mut self, table: &Self::Table, tokens: &[u32], norm_eps: Option<f32>, out: &mut Self::Rows);

    /// `hidden += addend` where there is one (rule 6), then norms the rows and quantises them for their consumers (rules 5
    /// and 2). Rows that are not finite fail.
    fn norm_quantise(
        &mut self,
        hidden: &mut Self::Rows,
        addend: Option<Addend<'_, Self>>,
        norm: &Norm<Self::Vector>,
        needs: Self::Needs,
        out: &mut Self::Activations,
    );

    /// As [`Self::norm_quantise`] for the rows `selected` alone, in that order, without an addend.
    fn norm_quantise_selected(
        &mut self,
        hidden: &mut Self::Rows,
        selected: &[usize],
        norm: &Norm<Self::Vector>,
        needs: Self::Needs,
        out: &mut Self::Activations,
    );

    /// Up to four products of the same activations (rules 3 to 4b), each with its bias added.
    fn matmul<const N: usize>(&mut self, activations: &Self::Activations, products: [DeviceProduct<'_, Self>; N]);

    /// Turns queries, keys and values of the step into head vectors (rules 5, 7 and 8b), the queries in place, and stores keys
    /// and values in the pending pages of layer `layer.index` (rule 9). Rows that are not finite fail. The rows of keys and
    /// values are unspecified afterwards.
    fn place_and_store(
        &mut self,
        layer: &KvLayer,
        heads: [&mut Self::Rows; 3],
        placements: &[Placement<'_, Self::Vector>; 3],
        batch: &mut [SequenceInput<'_>],
    );

    /// Attends the rows over the pages of their sequences (rule 9). Rows that are not finite fail.
    fn attend(&mut self, layer: &KvLayer, query: &Self::Rows, batch: &[SequenceInput<'_>], out: &mut Self::Mixed);

    /// Quantises the heads' outputs, transformed back and gated where asked (rules 8b, 8 and 2). Rows that are not finite
    /// fail.
    fn gate_quantise(
        &mut self,
        mixed: &Self::Mixed,
        gate: Option<&Self::Rows>,
        transform: Option<HeadTransform>,
        needs: Self::Needs,
        out: &mut Self::Activations,
    );

    /// Quantises `SiLU(gate) * up`, `[rows, cols]` (rules 8 and 2). Rows that are not finite fail.
    fn silu_mul_quantise(
        &mut self,
        gate: &Self::Rows,
        up: &Self::Rows,
        cols: usize,
        needs: Self::Needs,
        out: &mut Self::Activations,
    );

    /// `hidden += addend`, both `[rows, cols]` (rule 6).
    fn add_residual(&mut self, hidden: &mut Self::Rows, addend: Addend<'_, Self>, cols: usize);

    /// Scales and bends the logits of the rows `selected` (rule 10). Rows with a logit that is not finite fail.
    fn bend_logits(&mut self, logits: &mut Self::Rows, selected: &[usize], bend: &LogitsBend);

    /// The first `values` logits, in memory of the host, and [`Self::row_status`].
    ///
    /// # Errors
    /// [`DeviceError`] if any operation enqueued so far has failed.
    fn logits<'a>(
        &'a mut self,
        logits: &'a Self::Rows,
        values: usize,
    ) -> Result<(&'a [f32], &'a [RowStatus]), DeviceError>;

    /// Status of each row of the step, after every operation enqueued so far.
    ///
    /// # Errors
    /// As [`Self::logits`].
    fn row_status(&mut self) -> Result<&[RowStatus], DeviceError>;

    /// Copies the front of `rows` into `out`.
    ///
    /// # Errors
    /// As [`Self::logits`].
    fn read_rows(&mut self, rows: &Self::Rows, out: &mut [f32]) -> Result<(), DeviceError>;

    /// Copies `values` to the front of `rows`.
    ///
    /// # Errors
    /// As [`Self::logits`].
    fn write_rows(&mut self, values: &[f32], rows: &mut Self::Rows) -> Result<(), DeviceError>;

    /// Waits until the bytes of all pending pages are in the caches, in canonical form: a device that keeps pages of its own
    /// writes them back here.
    ///
    /// # Errors
    /// As [`Self::logits`].
    fn store_pending(&mut self, batch: &mut [SequenceInput<'_>]) -> Result<(), DeviceError>;

    /// Name and size of the device, for people.
    fn describe(&self) -> DeviceDescription;
}

/// Brings a model's weights into a device's form. Weights come in the order of the graph and may be prepared in any.
pub trait Prepare {
    /// The device that will compute with them.
    type Device: Device;

    /// Prepares the weights of a whole model. `progress` is called with the name of each tensor whose raw bytes are no
    /// longer needed.
    ///
    /// # Errors
    /// [`LoadError`] names the tensor that cannot be prepared, or the memory that is missing.
    fn prepare(
        &mut self,
        table: &RawMatrix<'_>,
        matrices: &[RawMatrix<'_>],
        progress: &mut dyn FnMut(&str),
    ) -> Result<PreparedWeights<Self::Device>, LoadError>;

    /// Brings factors or biases to the device.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    fn vector(&mut self, values: Vec<f32>) -> Result<<Self::Device as Form>::Vector, LoadError>;
}

/// Weights of a model in a device's form.
#[derive(Debug)]
pub struct PreparedWeights<D: Device> {
    /// The embedding table.
    pub table: D::Table,
    /// The matrices, in the order in which they were given.
    pub matrices: Vec<D::Matrix>,
    /// Bytes that they take on the device.
    pub bytes: usize,
}

/// A matrix as it lies in the file: checked against the configuration, `[rows, cols]`, row by row.
#[derive(Clone, Debug)]
pub struct RawMatrix<'a> {
    /// Name of the tensor.
    pub name: String,
    /// Type of the tensor.
    pub ty: WeightType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The file's bytes.
    pub bytes: &'a [u8],
    /// Multiplied into every finished output element.
    pub scale: Option<f32>,
}

/// The form of a file: matrices as they lie there, vectors widened.
#[derive(Debug)]
pub(crate) struct FileForm<'a>(std::marker::PhantomData<&'a ()>);

impl<'a> Form for FileForm<'a> {
    type Matrix = RawMatrix<'a>;
    type Vector = Vec<f32>;
}

/// One product of [`Device::matmul`].
#[derive(Debug)]
pub struct DeviceProduct<'a, D: Device> {
    /// `[outputs, inputs]`.
    pub matrix: &'a D::Matrix,
    /// `[outputs]`, added to every row.
    pub bias: Option<&'a D::Vector>,
    /// `[rows, outputs]`.
    pub out: &'a mut D::Rows,
}

/// Rows to be added to the residual stream, normed first where the architecture says so.
#[derive(Debug)]
pub struct Addend<'a, D: Device> {
    /// `[rows, hidden]`.
    pub rows: &'a D::Rows,
    /// Norm of the rows before the sum (rule 5).
    pub post_norm: Option<&'a Norm<D::Vector>>,
}

/// Steps from a projection to head vectors, in this order, each where given.
#[derive(Debug)]
pub struct Placement<'a, V> {
    /// Elements of a row.
    pub width: usize,
    /// Elements of a head vector.
    pub head_dim: usize,
    /// Norm of each head vector.
    pub norm: Option<&'a Norm<V>>,
    /// Rotation by the row's position.
    pub rope: Option<Rotation>,
    /// Factor of the Hadamard transform.
    pub transform: Option<f32>,
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer {
    /// Index of the layer.
    pub index: usize,
    /// Heads.
    pub shape: AttentionShape,
    /// Storage of keys and values.
    pub layout: KvLayout,
    /// Positions that a query sees, its own included; `None` for all.
    pub window: Option<u32>,
}

/// Name and size of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// `cpu` or `cuda`.
    pub name: &'static str,
    /// Instruction set or model of the chip.
    pub kernels: String,
    /// Host threads that compute.
    pub threads: usize,
}

/// A device failed while it computed. No row of the step is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device has no room for a buffer.
    #[error("{device} has no {bytes} bytes of memory left")]
    OutOfMemory {
        /// Name of the device.
        device: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The driver reported an error; the device computes nothing any more.
    #[error("{device} failed: {reason}")]
    Failed {
        /// Name of the device.
        device: &'static str,
        /// The driver's words.
        reason: String,
    },
}
