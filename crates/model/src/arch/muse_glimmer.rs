//! `muse-glimmer`: three windowed layers with rotary positions, then one global layer without, over and over.

use muser_kernels::rope::RopeStyle;

use super::{Architecture, CONTEXT_MAX, COUNT_MAX, ConfigError, Keys, LAYERS_MAX, table};
use crate::config::{LayerConfig, LayerParts, ModelConfig, Part, RopeConfig};
use crate::feed_forward::{Activation, DenseConfig};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "muse-glimmer", keys: [table::COMMON, table::MUSE_GLIMMER], read };

/// Epsilon of the norms after attention and after the feed-forward network: a constant of the architecture without a key.
const POST_NORM_EPS: f32 = 1e-8;

fn read(keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
    let layers = keys.count("block_count", LAYERS_MAX)?;
    let hidden = keys.count("embedding_length", COUNT_MAX)?;
    let heads = keys.heads(hidden, layers)?;
    let rotated = keys.optional_count("rope.dimension_count", COUNT_MAX)?.unwrap_or(heads.dim);
    if rotated > heads.dim || !rotated.is_multiple_of(2) {
        return Err(keys.mismatch(("rope.dimension_count", rotated), ("attention.key_length", heads.dim)));
    }
    // Only windowed layers rotate, so that their base is the only one.
    let base = match keys.optional_positive("rope.freq_base_swa")? {
        Some(base) => base,
        None => keys.positive("rope.freq_base")?,
    };
    let window = keys.count("attention.sliding_window", CONTEXT_MAX)?;
    let window = u32::try_from(window).expect("CONTEXT_MAX fits a u32");
    // In this architecture exactly the windowed layers rotate; the graph keeps the two facts apart.
    let rope = RopeConfig { base, rotated, style: RopeStyle::Norm };
    let width = keys.required_uniform_count("feed_forward_length", layers)?;
    let feed_forward = DenseConfig { width, activation: Activation::Silu };
    let layer =
        |local: bool| LayerConfig { window: local.then_some(window), rope: local.then_some(rope), feed_forward };
    Ok(ModelConfig {
        architecture: ARCHITECTURE.name,
        hidden,
        vocab: keys.vocab()?,
        context: keys.count("context_length", CONTEXT_MAX)?,
        query_heads: heads.query,
        kv_heads: heads.kv,
        head_dim: heads.dim,
        layers: keys.local_layers(layers)?.into_iter().map(layer).collect(),
        parts: LayerParts {
            qkv_biases: Part::Absent,
            other_biases: Part::Absent,
            qk_norms: Part::Required,
            attention_gate: Part::Required,
            post_norms: Part::Required,
        },
        norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
        post_norm_eps: POST_NORM_EPS,
        embedding_norm: true,
        logit_scale: Some(keys.positive("logit_scale")?),
        logit_soft_cap: keys.optional_cap("final_logit_softcapping")?,
        suppressed_tokens: keys.suppressed_tokens()?,
    })
}
