//! No key of an architecture is passed over: its value shows in the logits, or the model does not load.

mod common;

use std::num::NonZeroUsize;
use std::sync::Arc;

use common::{file, glimmer, llama, spec, with_keys};
use muser_kernels::cpu::Kernels;
use muser_kv::{KvLayout, PagePool, SequenceCache};
use muser_model::{ConfigError, Executor, LoadError, LogitsWanted, Model, SequenceInput};
use muser_synthetic::small::Architecture;
use muser_weights::gguf::{Gguf, ModelFiles, Value};

/// Keys that may change without a trace in any logit, each for a reason that the loader's table states.
const HARMLESS: [&str; 6] = [
    "context_length",
    "vocab_size",
    "pooling_type",
    "attention.layer_norm_epsilon",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
];

/// Numeric keys that public engines read for one architecture or another, none of which the small files have.
const OTHERS: [&str; 44] = [
    "attention.clamp_kqv",
    "attention.compress_rope_freq_base",
    "attention.indexer.top_k",
    "attention.key_length_mla",
    "attention.key_length_swa",
    "attention.layer_norm_epsilon",
    "attention.max_alibi_bias",
    "attention.output_scale",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length_swa",
    "attention.value_scale",
    "attn_logit_softcapping",
    "embedding_length_out",
    "embedding_scale",
    "expert_count",
    "expert_used_count",
    "expert_weights_scale",
    "final_logit_softcapping",
    "full_attention_interval",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "pooling_type",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "swiglu_clamp_exp",
];

fn models() -> [(&'static str, Vec<u8>); 4] {
    [
        ("llama", llama()),
        ("qwen2", file(&spec(Architecture::Qwen2 { tied_output: true }))),
        ("qwen3", file(&spec(Architecture::Qwen3 { tied_output: false }))),
        ("muse-glimmer", glimmer()),
    ]
}

/// Bits of the logits after a prompt that is longer than the window of `muse-glimmer`.
fn logits(file: &[u8]) -> Result<Vec<u32>, LoadError> {
    let (one, tokens): (_, Vec<u32>) = (NonZeroUsize::MIN, (0..40).map(|at| (at * 37 + 11) % 256).collect());
    let model = Arc::new(Model::load(Arc::new(ModelFiles::from_bytes(file.to_vec()).unwrap()), one)?);
    let rows = NonZeroUsize::new(tokens.len()).unwrap();
    let mut executor = Executor::new(Arc::clone(&model), Kernels::detected(), one, rows).unwrap();
    let spec = model.cache_spec(KvLayout::F16, tokens.len()).unwrap();
    let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
    let mut batch = [SequenceInput::new(&mut cache, &tokens, LogitsWanted::Last)];
    let mut bits = Vec::new();
    executor.forward(&mut batch, &mut |_, z| bits = z.iter().map(|z| z.to_bits()).collect()).unwrap();
    batch[0].outcome.unwrap();
    Ok(bits)
}

/// Values that differ from `value` a little and a lot.
fn others(value: &Value<'_>) -> Vec<Value<'static>> {
    match *value {
        Value::F32(x) => [x * 1.5, x * 100.0, x + 1.0].map(Value::F32).to_vec(),
        Value::U32(x) => [x - 1, x + 1, x * 2].map(Value::U32).to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn a_numeric_key_of_a_model_shows_in_its_logits_or_the_model_is_refused() {
    for (architecture, file) in models() {
        let plain = logits(&file).unwrap();
        let parsed = Gguf::parse(&file).unwrap();
        let metadata = parsed.metadata();
        let own = metadata.iter().filter(|(key, _)| key.starts_with(architecture));
        let own = own.flat_map(|(key, value)| others(&value).into_iter().map(|value| (key.to_owned(), value)));
        let names = OTHERS.into_iter().map(|name| format!("{architecture}.{name}"));
        let present = |key: &String| metadata.get(key).is_some();
        let absent = names.filter(|key| !present(key)).flat_map(|key| {
            let values = [Value::F32(0.37), Value::F32(3.0), Value::U32(7), Value::I32(-1), Value::F64(2.5)];
            values.map(|value| (key.clone(), value))
        });
        let mut tried = 0;
        for (key, value) in own.chain(absent) {
            let name = &key[architecture.len() + 1..];
            match logits(&with_keys(&file, &[(&key, Some(value))])) {
                Ok(changed) => assert!(HARMLESS.contains(&name) || changed != plain, "{key} = {value} is ignored"),
                Err(LoadError::Config(_) | LoadError::Shape { .. } | LoadError::UnknownTensor { .. }) => {}
                Err(LoadError::Tensor(_) | LoadError::Attention(_)) => {}
                Err(other) => panic!("{key} = {value}: {other}"),
            }
            tried += 1;
        }
        assert!(tried > 200, "{architecture}: {tried}");
    }
}

#[test]
fn a_key_that_nobody_knows_is_refused_by_name_and_one_of_another_prefix_is_not_looked_at() {
    for (architecture, file) in models() {
        let with = |key: &str, value| logits(&with_keys(&file, &[(key, Some(value))]));
        for (name, value) in [
            ("rope.scaling.invented", Value::F32(1.0)),
            ("invented", Value::Bool(false)),
            ("", Value::String(b"")),
            ("Rope.freq_base", Value::F32(1.0)),
        ] {
            let key = format!("{architecture}.{name}");
            let refused = with(&key, value).unwrap_err();
            assert!(
                matches!(&refused, LoadError::Config(ConfigError::UnknownKey { key: k, architecture: a })
                    if *k == key && *a == architecture),
                "{refused}"
            );
        }
        let plain = logits(&file).unwrap();
        for key in ["general.invented", "gpt9.rope.freq_base", "invented", &format!("{architecture}s.x"), architecture]
        {
            assert_eq!(with(key, Value::F32(2.0)).unwrap(), plain, "{key}");
        }
    }
}

#[test]
fn neutral_values_of_settings_that_muser_lacks_change_nothing() {
    let everywhere = [
        ("rope.scaling.type", Value::String(b"linear")),
        ("rope.scaling.factor", Value::F32(1.0)),
        ("rope.scaling.factor", Value::F32(0.0)),
        ("rope.scale_linear", Value::F32(1.0)),
        ("rope.scaling.attn_factor", Value::F32(1.0)),
        ("rope.scaling.finetuned", Value::Bool(true)),
        ("rope.freq_base_swa", Value::F32(10_000.0)),
        ("rope.dimension_count_swa", Value::U32(32)),
        ("attention.key_length_swa", Value::U32(32)),
        ("attention.causal", Value::Bool(true)),
        ("attention.scale", Value::F32(1.0 / 32f32.sqrt())),
        ("attention.clamp_kqv", Value::F32(0.0)),
        ("hidden_activation", Value::String(b"silu")),
        ("expert_count", Value::U32(0)),
        ("tensor_data_layout", Value::String(b"Meta AI original pth")),
    ];
    let dense = [
        ("final_logit_softcapping", Value::F32(0.0)),
        ("logit_scale", Value::F32(1.0)),
        ("attention.sliding_window", Value::U32(0)),
        ("attention.sliding_window", Value::U32(128)),
    ];
    for (architecture, file) in models() {
        let plain = logits(&file).unwrap();
        let own = if architecture == "muse-glimmer" { &[] } else { dense.as_slice() };
        for &(name, value) in everywhere.iter().chain(own) {
            let key = format!("{architecture}.{name}");
            assert_eq!(logits(&with_keys(&file, &[(&key, Some(value))])).unwrap(), plain, "{key} = {value}");
        }
        // Without scaling, a factor is a leftover.
        let (kind, factor) =
            (format!("{architecture}.rope.scaling.type"), format!("{architecture}.rope.scaling.factor"));
        let none = [(kind.as_str(), Some(Value::String(b"none"))), (factor.as_str(), Some(Value::F32(4.0)))];
        assert_eq!(logits(&with_keys(&file, &none)).unwrap(), plain, "{architecture}");
    }
}

#[test]
fn windowed_layers_of_muse_glimmer_rotate_with_their_own_base() {
    let (own, general) = ("muse-glimmer.rope.freq_base_swa", "muse-glimmer.rope.freq_base");
    let hundred = Some(Value::F32(100.0));
    let both = logits(&with_keys(&glimmer(), &[(own, hundred)])).unwrap();
    assert_eq!(both, logits(&with_keys(&glimmer(), &[(general, hundred)])).unwrap());
    assert_eq!(both, logits(&with_keys(&glimmer(), &[(own, hundred), (general, None)])).unwrap());
    assert_ne!(both, logits(&glimmer()).unwrap());
    for wrong in [0.0, -1.0, f32::NAN] {
        let refused = logits(&with_keys(&glimmer(), &[(own, Some(Value::F32(wrong)))])).unwrap_err();
        assert!(matches!(&refused, LoadError::Config(ConfigError::BadFloat { key, .. }) if key == own), "{refused}");
    }
}
