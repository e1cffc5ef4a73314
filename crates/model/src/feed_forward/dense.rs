//! The dense network: `down(activation(gate(x)) * up(x))`, every weight for every row.

use muser_kernels::formats::WeightType;

use crate::config::Part;
use crate::cost::{Cost, ProductShape, StepCost};
use crate::device::{Device, FileForm};
use crate::graph::{needs, needs_of, product};
use crate::layer::{Form, Linear, Reform};
use crate::load::{LoadError, Loader};
use crate::workspace::Workspace;

/// Configuration of a dense network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseConfig {
    /// Outputs of gate and up.
    pub width: usize,
    /// Between gate and down.
    pub activation: Activation,
}

/// Function applied to each output of the gate, one operation of a [`Device`] each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `SiLU(x) = x * sigmoid(x)`: the network is a SwiGLU.
    Silu,
}

/// Tensors of a dense network.
#[derive(Debug)]
pub struct DenseNetwork<F: Form> {
    /// Width and activation.
    pub config: DenseConfig,
    /// `[width, hidden]`.
    pub gate: Linear<F>,
    /// `[width, hidden]`.
    pub up: Linear<F>,
    /// `[hidden, width]`.
    pub down: Linear<F>,
}

impl<'a> DenseNetwork<FileForm<'a>> {
    /// The network of layer `layer`, whose projections have biases as `biases` says.
    pub(crate) fn read(
        loader: &mut Loader<'a, '_>,
        layer: usize,
        config: DenseConfig,
        biases: Part,
    ) -> Result<Self, LoadError> {
        let (hidden, width) = (loader.config().hidden, config.width);
        let name = |part: &str| format!("blk.{layer}.{part}");
        Ok(Self {
            config,
            gate: loader.linear(&name("ffn_gate"), [width, hidden], biases)?,
            up: loader.linear(&name("ffn_up"), [width, hidden], biases)?,
            down: loader.linear(&name("ffn_down"), [hidden, width], biases)?,
        })
    }
}

impl<F: Form> DenseNetwork<F> {
    pub(super) fn reform<R: Reform<From = F>>(self, to: &mut R) -> Result<DenseNetwork<R::To>, R::Error> {
        let Self { config, gate, up, down } = self;
        Ok(DenseNetwork { config, gate: to.linear(gate)?, up: to.linear(up)?, down: to.linear(down)? })
    }

    /// Every matrix, in the order in which [`Self::reform`] meets them.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &F::Matrix> {
        [&self.gate, &self.up, &self.down].into_iter().map(|linear| &linear.matrix)
    }
}

impl<D: Device> DenseNetwork<D> {
    /// The forms in which the network wants its `rows` inputs.
    pub(crate) fn needs(&self, rows: usize) -> D::Needs {
        needs([&self.gate, &self.up], rows)
    }

    /// From the step's activations, `[rows, hidden]`, to its output, `[rows, hidden]`.
    pub(crate) fn forward(&self, device: &mut D, work: &mut Workspace<D>) {
        let Workspace { activations, output, ffn_gate, ffn_up, positions, .. } = work;
        let DenseConfig { width, activation } = self.config;
        device.matmul(activations, [product(&self.gate, ffn_gate), product(&self.up, ffn_up)]); // [rows, width]
        let needs = needs_of(&self.down, positions.len());
        match activation {
            Activation::Silu => device.silu_mul_quantise(ffn_gate, ffn_up, width, needs, activations),
        }
        device.matmul(activations, [product(&self.down, output)]); // [rows, hidden]
    }
}

/// Products of a dense network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DenseProducts {
    gate_and_up: [ProductShape; 2],
    down: ProductShape,
}

impl DenseProducts {
    /// Products with the matrices that `product(part, outputs, inputs)` finds; `None` where one is missing.
    pub(crate) fn new(
        config: DenseConfig,
        hidden: usize,
        product: impl Fn(&str, usize, usize) -> Option<ProductShape>,
    ) -> Option<Self> {
        Some(Self {
            gate_and_up: [product("ffn_gate", config.width, hidden)?, product("ffn_up", config.width, hidden)?],
            down: product("ffn_down", hidden, config.width)?,
        })
    }

    /// Every product, in the order of the graph.
    pub(crate) fn all(&self) -> [ProductShape; 3] {
        let [gate, up] = self.gate_and_up;
        [gate, up, self.down]
    }

    /// Type of the weights that the network's inputs are quantised for.
    pub(crate) fn consumer(&self) -> WeightType {
        self.gate_and_up[0].ty
    }

    /// Adds what `rows` rows cost.
    pub(crate) fn add_cost(&self, rows: usize, cost: &mut StepCost) {
        cost.products += Cost::products(&self.gate_and_up, rows);
        cost.silu += Cost::silu_mul_quantise([rows, self.down.inputs], self.down.ty);
        cost.products += Cost::products(&[self.down], rows);
    }
}
