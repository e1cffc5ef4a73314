//! A decoder layer's weights: as they lie in the file, or in the form of a device.

use std::fmt::Debug;

use muser_kernels::rope::Rotation;

use crate::config::LayerConfig;
use crate::feed_forward::FeedForward;

/// Form of a model's weights: the file's, or a device's.
pub trait Form {
    /// A weight matrix, `[outputs, inputs]`.
    type Matrix: Debug;
    /// Weights of one f32 each: factors of a norm, biases.
    type Vector: Debug;
}

/// A norm's factors and its epsilon.
#[derive(Debug)]
pub struct Norm<V = Vec<f32>> {
    /// One factor per element.
    pub weight: V,
    /// Elements of the vector that is normed.
    pub width: usize,
    /// Added to the mean square.
    pub eps: f32,
}

/// A matrix and, where the architecture has one, a bias per output.
#[derive(Debug)]
pub struct Linear<F: Form> {
    /// `[outputs, inputs]`.
    pub matrix: F::Matrix,
    /// `[outputs]`.
    pub bias: Option<F::Vector>,
}

/// The attention half of a layer.
#[derive(Debug)]
pub struct Attention<F: Form> {
    /// Before the projections.
    pub norm: Norm<F::Vector>,
    /// `[query_heads * head_dim, hidden]`.
    pub query: Linear<F>,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Linear<F>,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Linear<F>,
    /// Rotation of query and key heads.
    pub rotation: Option<Rotation>,
    /// Norm of each query head, before rotation.
    pub query_norm: Option<Norm<F::Vector>>,
    /// Norm of each key head, before rotation.
    pub key_norm: Option<Norm<F::Vector>>,
    /// Sigmoid gate on the heads' outputs, `[query_heads * head_dim, hidden]`.
    pub gate: Option<Linear<F>>,
    /// `[hidden, query_heads * head_dim]`.
    pub output: Linear<F>,
    /// On the output, before it joins the residual stream.
    pub post_norm: Option<Norm<F::Vector>>,
}

/// One decoder layer.
#[derive(Debug)]
pub struct Layer<F: Form> {
    /// What may differ from layer to layer.
    pub config: LayerConfig,
    /// Mixes positions.
    pub attention: Attention<F>,
    /// Mixes elements.
    pub feed_forward: FeedForward<F>,
}

/// A change of form: every matrix and every vector, in the order of [`Layer::matrices`].
pub(crate) trait Reform {
    type From: Form;
    type To: Form;
    type Error;

    fn matrix(&mut self, matrix: <Self::From as Form>::Matrix) -> Result<<Self::To as Form>::Matrix, Self::Error>;
    fn vector(&mut self, vector: <Self::From as Form>::Vector) -> Result<<Self::To as Form>::Vector, Self::Error>;

    fn norm(
        &mut self,
        norm: Norm<<Self::From as Form>::Vector>,
    ) -> Result<Norm<<Self::To as Form>::Vector>, Self::Error> {
        Ok(Norm { weight: self.vector(norm.weight)?, width: norm.width, eps: norm.eps })
    }

    fn linear(&mut self, linear: Linear<Self::From>) -> Result<Linear<Self::To>, Self::Error> {
        let matrix = self.matrix(linear.matrix)?;
        Ok(Linear { matrix, bias: linear.bias.map(|bias| self.vector(bias)).transpose()? })
    }
}

impl<F: Form> Layer<F> {
    /// The same layer in another form.
    pub(crate) fn reform<R: Reform<From = F>>(self, to: &mut R) -> Result<Layer<R::To>, R::Error> {
        let Self { config, attention: a, feed_forward: f } = self;
        let attention = Attention {
            norm: to.norm(a.norm)?,
            query: to.linear(a.query)?,
            key: to.linear(a.key)?,
            value: to.linear(a.value)?,
            rotation: a.rotation,
            query_norm: a.query_norm.map(|norm| to.norm(norm)).transpose()?,
            key_norm: a.key_norm.map(|norm| to.norm(norm)).transpose()?,
            gate: a.gate.map(|gate| to.linear(gate)).transpose()?,
            output: to.linear(a.output)?,
            post_norm: a.post_norm.map(|norm| to.norm(norm)).transpose()?,
        };
        Ok(Layer { config, attention, feed_forward: f.reform(to)? })
    }

    /// Every matrix, in the order in which [`Self::reform`] meets them.
    pub fn matrices(&self) -> impl Iterator<Item = &F::Matrix> {
        let Self { attention: a, feed_forward: f, .. } = self;
        let first = [&a.query, &a.key, &a.value].into_iter().chain(&a.gate);
        first.chain([&a.output]).map(|linear| &linear.matrix).chain(f.network.matrices())
    }
}
