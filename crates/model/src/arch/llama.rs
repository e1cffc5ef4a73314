//! `llama`: Llama 2 and 3, Mistral, SmolLM2. Llama 3's long-context angles come as the tensor `rope_freqs.weight`.

use muser_kernels::rope::RopeStyle;

use super::{Architecture, CONTEXT_MAX, COUNT_MAX, ConfigError, Keys, LAYERS_MAX, uniform_layers};
use crate::config::{LayerParts, ModelConfig, Part, RopeConfig};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", read };

/// The base of files that do not state one: Llama 2's.
const DEFAULT_ROPE_BASE: f32 = 10_000.0;

fn read(keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
    keys.refuse_rope_scaling()?;
    refuse_experts(keys)?;
    let layers = keys.count("block_count", LAYERS_MAX)?;
    let hidden = keys.count("embedding_length", COUNT_MAX)?;
    let heads = keys.heads(hidden, layers)?;
    let rotated = keys.optional_count("rope.dimension_count", COUNT_MAX)?.unwrap_or(heads.dim);
    if rotated != heads.dim {
        return Err(keys.mismatch(("rope.dimension_count", rotated), ("attention.key_length", heads.dim)));
    }
    let norm_eps = keys.positive("attention.layer_norm_rms_epsilon")?;
    Ok(ModelConfig {
        architecture: ARCHITECTURE.name,
        hidden,
        feed_forward: keys.required_uniform_count("feed_forward_length", layers)?,
        vocab: keys.vocab()?,
        context: keys.count("context_length", CONTEXT_MAX)?,
        query_heads: heads.query,
        kv_heads: heads.kv,
        head_dim: heads.dim,
        layers: uniform_layers(layers),
        parts: LayerParts {
            qkv_biases: Part::Optional,
            other_biases: Part::Optional,
            qk_norms: Part::Absent,
            attention_gate: Part::Absent,
            post_norms: Part::Absent,
        },
        norm_eps,
        post_norm_eps: norm_eps,
        rope: RopeConfig {
            base: keys.optional_positive("rope.freq_base")?.unwrap_or(DEFAULT_ROPE_BASE),
            rotated,
            style: RopeStyle::Norm,
        },
        embedding_norm: false,
        logit_scale: None,
        logit_soft_cap: None,
    })
}

/// Mixtral and its kin use the same architecture name with experts, which are not implemented.
fn refuse_experts(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let key = keys.key("expert_count");
    match keys.metadata.get(&key).and_then(|value| value.integer()) {
        None | Some(0) => Ok(()),
        Some(found) => Err(ConfigError::UnsupportedSetting { key, found: found.to_string() }),
    }
}
