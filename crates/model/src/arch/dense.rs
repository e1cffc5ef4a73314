//! Configuration of the plain decoders (`llama`, `qwen2`, `qwen3`): every layer sees everything and rotates, no part is
//! unusual.

use muser_kernels::rope::RopeStyle;

use super::{CONTEXT_MAX, COUNT_MAX, ConfigError, Keys, LAYERS_MAX};
use crate::config::{LayerConfig, LayerParts, ModelConfig, RopeConfig};
use crate::feed_forward::{Activation, DenseConfig};

/// Differences between plain decoders.
pub(super) struct Dense {
    /// GGUF's name.
    pub(super) architecture: &'static str,
    /// Pairing of the dimensions that rotate together.
    pub(super) rope_style: RopeStyle,
    /// The base of files that do not state one; `None` where it must be stated.
    pub(super) default_rope_base: Option<f32>,
    /// Optional parts of the layers.
    pub(super) parts: LayerParts,
}

impl Dense {
    pub(super) fn read(self, keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
        let layers = keys.count("block_count", LAYERS_MAX)?;
        let hidden = keys.count("embedding_length", COUNT_MAX)?;
        let heads = keys.heads(hidden, layers)?;
        let rotated = keys.optional_count("rope.dimension_count", COUNT_MAX)?.unwrap_or(heads.dim);
        if rotated != heads.dim {
            return Err(keys.mismatch(("rope.dimension_count", rotated), ("attention.key_length", heads.dim)));
        }
        let base = match (keys.optional_positive("rope.freq_base")?, self.default_rope_base) {
            (Some(base), _) | (None, Some(base)) => base,
            (None, None) => keys.positive("rope.freq_base")?,
        };
        let rope = RopeConfig { base, rotated, style: self.rope_style };
        let width = keys.required_uniform_count("feed_forward_length", layers)?;
        let feed_forward = DenseConfig { width, activation: Activation::Silu };
        let norm_eps = keys.positive("attention.layer_norm_rms_epsilon")?;
        Ok(ModelConfig {
            architecture: self.architecture,
            hidden,
            vocab: keys.vocab()?,
            context: keys.count("context_length", CONTEXT_MAX)?,
            query_heads: heads.query,
            kv_heads: heads.kv,
            head_dim: heads.dim,
            layers: vec![LayerConfig { window: None, rope: Some(rope), feed_forward }; layers],
            parts: self.parts,
            norm_eps,
            post_norm_eps: norm_eps,
            embedding_norm: false,
            logit_scale: None,
            logit_soft_cap: None,
            suppressed_tokens: keys.suppressed_tokens()?,
        })
    }
}
