//! Configuration of a model, as data: sizes, and what may differ from layer to layer.

use std::sync::Arc;

use muser_kernels::rope::RopeStyle;

use crate::feed_forward::DenseConfig;

/// The effective configuration of a model: everything besides tensors that its logits depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// GGUF's name of the architecture.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Query heads of each layer.
    pub query_heads: usize,
    /// Key/value heads of each layer; divides `query_heads`.
    pub kv_heads: usize,
    /// Elements per head, for queries, keys and values alike.
    pub head_dim: usize,
    /// One entry per layer, in order.
    pub layers: Vec<LayerConfig>,
    /// Optional parts of the layers, besides projections and the norms before them.
    pub parts: LayerParts,
    /// Epsilon of every norm but the post norms.
    pub norm_eps: f32,
    /// Epsilon of the norms after attention and after the feed-forward network, where the architecture has them.
    pub post_norm_eps: f32,
    /// True if embeddings pass a norm without weight before the first layer.
    pub embedding_norm: bool,
    /// Logits are multiplied by this.
    pub logit_scale: Option<f32>,
    /// Then bent into (-cap, cap) by `cap * tanh(z / cap)`.
    pub logit_soft_cap: Option<f32>,
    /// Tokens that are never chosen, ascending; each exists, and some other does. Logits have their values all the same.
    pub suppressed_tokens: Arc<[u32]>,
}

/// Configuration of one layer. Window and position embedding are separate facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// A query at position p sees keys p - window + 1 ..= p; `None` sees all.
    pub window: Option<u32>,
    /// Rotation of queries and keys by position; without one the layer has no position embedding (NoPE).
    pub rope: Option<RopeConfig>,
    /// The feed-forward network.
    pub feed_forward: DenseConfig,
}

/// Parts that some architectures have. A file that lacks a required one, or has one that is absent here, is refused: the
/// graph would compute another model than the one that was trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerParts {
    /// Biases of queries, keys and values.
    pub qkv_biases: Part,
    /// Biases of the other projections.
    pub other_biases: Part,
    /// Norms of query and key heads.
    pub qk_norms: Part,
    /// The sigmoid gate on attention.
    pub attention_gate: Part,
    /// Norms after attention and after the feed-forward network.
    pub post_norms: Part,
}

/// Presence of a part in an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Never.
    Absent,
    /// Present if the file has it.
    Optional,
    /// Always.
    Required,
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the angles' geometric series.
    pub base: f32,
    /// Rotated elements of each head; the rest pass through.
    pub rotated: usize,
    /// Pairing of the rotated elements.
    pub style: RopeStyle,
}

impl RopeConfig {
    /// True if the angles of every position are those of `other`.
    pub fn shares_angles(&self, other: &Self) -> bool {
        (self.base, self.rotated) == (other.base, other.rotated)
    }
}

impl ModelConfig {
    /// Widths that tensors and buffers derive from the above.
    pub fn query_dim(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// Width of one row of keys, or of values, of one layer.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The longest vector that a matrix is multiplied with.
    pub fn widest_input(&self) -> usize {
        self.hidden.max(self.query_dim()).max(self.widest_feed_forward())
    }

    /// The largest width of a feed-forward network.
    pub fn widest_feed_forward(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed_forward.width).max().unwrap_or(0)
    }

    /// Rotations with angles of their own, in the order of the first layers that have them.
    pub fn rotations(&self) -> Vec<RopeConfig> {
        let mut rotations: Vec<RopeConfig> = Vec::new();
        for rope in self.layers.iter().filter_map(|layer| layer.rope) {
            if !rotations.iter().any(|other| other.shares_angles(&rope)) {
                rotations.push(rope);
            }
        }
        rotations
    }
}
