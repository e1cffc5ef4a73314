//! Every metadata key that an architecture may carry, and its effect on the numbers.
//!
//! A key in no table is refused by name, as an unknown tensor is: it may ask for arithmetic that the graph does not have.
//! The tables cover what public engines read in their common loader and in the graphs of these architectures, and what
//! converters are known to write.

use muser_weights::gguf::Value;

use super::{ConfigError, Keys};
use crate::config::ModelConfig;

/// A key without its architecture's prefix, and its effect.
pub(super) type Row = (&'static str, Effect);

/// Effect of a key on the numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// Read into the configuration.
    Used,
    /// None in any model that loads: a note of the converter, or a parameter of something that is refused by another key.
    None,
    /// Arithmetic that the graph does not have: refused unless the value switches it off.
    RefusedUnless(Neutral),
}

/// True if the value changes no number of the model.
type Neutral = fn(&Keys<'_>, &ModelConfig, &Value<'_>) -> bool;

use Effect::{RefusedUnless, Used};

/// The keys of every architecture.
pub(super) const COMMON: &[Row] = &[
    ("vocab_size", Used),
    ("context_length", Used),
    ("block_count", Used),
    ("embedding_length", Used),
    ("feed_forward_length", Used),
    ("attention.head_count", Used),
    ("attention.head_count_kv", Used),
    ("attention.key_length", Used),
    ("attention.value_length", Used),
    ("attention.layer_norm_rms_epsilon", Used),
    ("rope.dimension_count", Used),
    ("rope.freq_base", Used),
    // No layer has a norm that subtracts the mean.
    ("attention.layer_norm_epsilon", Effect::None),
    ("rope.scaling.finetuned", Effect::None),
    // For YaRN and LongRoPE, which `rope.scaling.type` refuses.
    ("rope.scaling.original_context_length", Effect::None),
    // Applied to hidden states that are read as embeddings, never to logits.
    ("pooling_type", Effect::None),
    ("tensor_data_layout", Effect::None),
    ("attention.causal", RefusedUnless(is_true)),
    ("attention.scale", RefusedUnless(is_usual_scale)),
    ("attention.clamp_kqv", RefusedUnless(is_zero)),
    ("attention.max_alibi_bias", RefusedUnless(is_zero)),
    ("attention.temperature_scale", RefusedUnless(is_zero)),
    ("attention.key_length_swa", RefusedUnless(is_head_dim)),
    ("attention.value_length_swa", RefusedUnless(is_head_dim)),
    ("attn_logit_softcapping", RefusedUnless(is_zero)),
    ("embedding_scale", RefusedUnless(is_one)),
    ("residual_scale", RefusedUnless(is_one)),
    ("hidden_activation", RefusedUnless(is_silu)),
    ("use_parallel_residual", RefusedUnless(is_false)),
    ("rope.dimension_count_swa", RefusedUnless(is_rotated)),
    ("rope.scale_linear", RefusedUnless(is_no_factor)),
    ("rope.scaling.type", RefusedUnless(is_unscaled)),
    ("rope.scaling.factor", RefusedUnless(is_no_factor)),
    ("rope.scaling.attn_factor", RefusedUnless(is_one)),
    // Some mixtures of experts share their architecture's name with the plain decoder.
    ("expert_count", RefusedUnless(is_zero)),
    ("expert_used_count", RefusedUnless(is_zero)),
    ("expert_shared_count", RefusedUnless(is_zero)),
    ("expert_group_count", RefusedUnless(is_zero)),
    ("expert_group_used_count", RefusedUnless(is_zero)),
    ("expert_feed_forward_length", RefusedUnless(is_zero)),
    ("expert_shared_feed_forward_length", RefusedUnless(is_zero)),
    ("nextn_predict_layers", RefusedUnless(is_zero)),
];

/// Further keys of the plain decoders.
pub(super) const DENSE: &[Row] = &[
    ("attention.sliding_window", RefusedUnless(is_no_window)),
    ("final_logit_softcapping", RefusedUnless(is_zero)),
    ("logit_scale", RefusedUnless(is_one)),
    ("rope.freq_base_swa", RefusedUnless(is_rope_base)),
];

/// Further keys of `muse-glimmer`.
pub(super) const MUSE_GLIMMER: &[Row] = &[
    ("attention.sliding_window", Used),
    ("attention.sliding_window_pattern", Used),
    ("final_logit_softcapping", Used),
    ("logit_scale", Used),
    ("rope.freq_base_swa", Used),
];

/// Refuses the first key of the architecture that is in no table or asks for arithmetic that the graph of `config` does
/// not have.
pub(super) fn check(keys: &Keys<'_>, tables: [&[Row]; 2], config: &ModelConfig) -> Result<(), ConfigError> {
    for (key, value) in keys.metadata.iter() {
        let Some(name) = key.strip_prefix(keys.prefix).and_then(|rest| rest.strip_prefix('.')) else { continue };
        match tables.into_iter().flatten().find(|row| row.0 == name) {
            None => return Err(ConfigError::UnknownKey { key: key.into(), architecture: config.architecture }),
            Some((_, RefusedUnless(neutral))) if !neutral(keys, config, &value) => {
                let found = match value {
                    Value::String(text) => String::from_utf8_lossy(text).into_owned(),
                    other => other.to_string(),
                };
                return Err(ConfigError::UnsupportedSetting { key: key.into(), found });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn number(value: &Value<'_>) -> Option<f64> {
    match *value {
        Value::F32(value) => Some(value.into()),
        Value::F64(value) => Some(value),
        // Rounding keeps every integer away from the small ones it is compared with.
        _ => value.integer().map(|value| value as f64),
    }
}

fn is_zero(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    number(value) == Some(0.0)
}

fn is_one(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    number(value) == Some(1.0)
}

fn is_true(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    *value == Value::Bool(true)
}

fn is_false(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    *value == Value::Bool(false)
}

fn is_silu(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    matches!(value, Value::String(b"silu" | b"swish"))
}

/// Without a factor other than 1, which has a key of its own, `linear` changes nothing.
fn is_unscaled(_: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    matches!(value, Value::String(b"none" | b"linear"))
}

/// llama.cpp divides angles by a factor even where no type is stated; 0 stands for none.
fn is_no_factor(keys: &Keys<'_>, _: &ModelConfig, value: &Value<'_>) -> bool {
    let unscaled = keys.metadata.get(&keys.key("rope.scaling.type")) == Some(Value::String(b"none"));
    unscaled || matches!(number(value), Some(0.0 | 1.0))
}

/// The graph's own 1 / sqrt(head_dim), or 0, which stands for it.
fn is_usual_scale(_: &Keys<'_>, config: &ModelConfig, value: &Value<'_>) -> bool {
    let usual = 1.0 / (config.head_dim as f64).sqrt();
    number(value).is_some_and(|scale| scale == 0.0 || (scale - usual).abs() <= usual * f64::from(f32::EPSILON))
}

/// A window as long as the context hides nothing; 0 stands for none.
fn is_no_window(_: &Keys<'_>, config: &ModelConfig, value: &Value<'_>) -> bool {
    number(value).is_some_and(|window| window == 0.0 || window >= config.context as f64)
}

fn is_head_dim(_: &Keys<'_>, config: &ModelConfig, value: &Value<'_>) -> bool {
    number(value) == Some(config.head_dim as f64)
}

fn is_rotated(_: &Keys<'_>, config: &ModelConfig, value: &Value<'_>) -> bool {
    let mut rotations = config.layers.iter().filter_map(|layer| layer.rope);
    rotations.all(|rope| number(value) == Some(rope.rotated as f64))
}

fn is_rope_base(_: &Keys<'_>, config: &ModelConfig, value: &Value<'_>) -> bool {
    let mut rotations = config.layers.iter().filter_map(|layer| layer.rope);
    rotations.all(|rope| number(value) == Some(rope.base.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_has_a_key_twice() {
        for own in [DENSE, MUSE_GLIMMER] {
            let names: Vec<_> = COMMON.iter().chain(own).map(|row| row.0).collect();
            for (index, name) in names.iter().enumerate() {
                assert!(!names[..index].contains(name), "{name}");
            }
        }
    }
}
