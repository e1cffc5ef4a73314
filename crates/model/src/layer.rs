//! What a decoder layer holds. The matrices' type is a parameter because loading plans all of them before it packs any.

use muser_kernels::matrix::Matrix;

use crate::config::LayerConfig;

/// A norm's weights and its epsilon.
#[derive(Debug)]
pub struct Norm {
    /// One factor per element.
    pub weight: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
}

/// A matrix and, where the architecture has one, a bias per output.
#[derive(Debug)]
pub struct Linear<M = Matrix> {
    /// `[outputs, inputs]`.
    pub matrix: M,
    /// `[outputs]`.
    pub bias: Option<Vec<f32>>,
}

/// The attention half of a layer.
#[derive(Debug)]
pub struct Attention<M = Matrix> {
    /// Before the projections.
    pub norm: Norm,
    /// `[query_heads * head_dim, hidden]`.
    pub query: Linear<M>,
    /// `[kv_heads * head_dim, hidden]`.
    pub key: Linear<M>,
    /// `[kv_heads * head_dim, hidden]`.
    pub value: Linear<M>,
    /// Norm of each query head, before rotation.
    pub query_norm: Option<Norm>,
    /// Norm of each key head, before rotation.
    pub key_norm: Option<Norm>,
    /// Sigmoid gate on the heads' outputs, `[query_heads * head_dim, hidden]`.
    pub gate: Option<Linear<M>>,
    /// `[hidden, query_heads * head_dim]`.
    pub output: Linear<M>,
    /// On the output, before it joins the residual stream.
    pub post_norm: Option<Norm>,
}

/// The feed-forward half of a layer (SwiGLU).
#[derive(Debug)]
pub struct FeedForward<M = Matrix> {
    /// Before the projections.
    pub norm: Norm,
    /// `[feed_forward, hidden]`.
    pub gate: Linear<M>,
    /// `[feed_forward, hidden]`.
    pub up: Linear<M>,
    /// `[hidden, feed_forward]`.
    pub down: Linear<M>,
    /// On the output, before it joins the residual stream.
    pub post_norm: Option<Norm>,
}

/// One decoder layer.
#[derive(Debug)]
pub struct Layer<M = Matrix> {
    /// Window and position embedding.
    pub config: LayerConfig,
    /// Mixes positions.
    pub attention: Attention<M>,
    /// Mixes elements.
    pub feed_forward: FeedForward<M>,
}

impl<M> Linear<M> {
    /// The same with another form of the matrix.
    pub fn map<N>(self, form: &mut impl FnMut(M) -> N) -> Linear<N> {
        Linear { matrix: form(self.matrix), bias: self.bias }
    }
}

impl<M> Layer<M> {
    /// The same with another form of every matrix.
    pub fn map<N>(self, form: &mut impl FnMut(M) -> N) -> Layer<N> {
        let Self { config, attention, feed_forward } = self;
        Layer {
            config,
            attention: Attention {
                norm: attention.norm,
                query: attention.query.map(form),
                key: attention.key.map(form),
                value: attention.value.map(form),
                query_norm: attention.query_norm,
                key_norm: attention.key_norm,
                gate: attention.gate.map(|gate| gate.map(form)),
                output: attention.output.map(form),
                post_norm: attention.post_norm,
            },
            feed_forward: FeedForward {
                norm: feed_forward.norm,
                gate: feed_forward.gate.map(form),
                up: feed_forward.up.map(form),
                down: feed_forward.down.map(form),
                post_norm: feed_forward.post_norm,
            },
        }
    }

    /// Every matrix, in the order in which [`Self::map`] meets them.
    pub fn matrices(&self) -> impl Iterator<Item = &M> {
        let Self { attention: a, feed_forward: f, .. } = self;
        let first = [&a.query, &a.key, &a.value].into_iter().chain(&a.gate);
        first.chain([&a.output, &f.gate, &f.up, &f.down]).map(|linear| &linear.matrix)
    }
}
