//! Models that cannot be run are refused with the name of what is wrong, before any memory is taken for them.

mod common;

use std::num::NonZeroUsize;
use std::sync::Arc;

use allocation_counter::measure;
use common::{Changes, glimmer, llama, rewritten, spec, with_keys};
use muser_kernels::formats::WeightType;
use muser_model::{ARCHITECTURES, ConfigError, LoadError, Model, ModelConfig, read_config};
use muser_synthetic::small::Architecture;
use muser_weights::gguf::{Gguf, GgufWriter, MetadataError, ModelFiles, TensorError, Value};

fn config(file: &[u8], changes: Changes<'_>) -> Result<ModelConfig, ConfigError> {
    read_config(&Gguf::parse(&with_keys(file, changes)).unwrap().metadata())
}

/// The file with a scale of 3 under this name.
fn with_scale(file: &[u8], name: &str) -> Vec<u8> {
    let parsed = Gguf::parse(file).unwrap();
    let mut writer = GgufWriter::new();
    parsed.metadata().iter().for_each(|(key, value)| writer.set(key, value).unwrap());
    for tensor in parsed.tensors() {
        writer.tensor(tensor.name(), tensor.weight().unwrap().ty, tensor.shape()).unwrap();
    }
    writer.tensor(name, WeightType::F32, &[1]).unwrap();
    let data = |name: &str| parsed.tensor(name).and_then(|tensor| tensor.bytes());
    let three = 3f32.to_le_bytes();
    let mut out = Vec::new();
    writer.write(&mut out, |tensor, out| out.write_all(data(tensor.name()).unwrap_or(&three))).unwrap();
    out
}

fn load(file: Vec<u8>) -> Result<Model, LoadError> {
    Model::load(Arc::new(ModelFiles::from_bytes(file).unwrap()), NonZeroUsize::MIN)
}

#[test]
fn unchanged_files_load() {
    for file in [llama(), glimmer()] {
        assert!(config(&file, &[]).is_ok());
        let files = Arc::new(ModelFiles::from_bytes(with_keys(&file, &[])).unwrap());
        let model = Model::load(Arc::clone(&files), NonZeroUsize::MIN).unwrap();
        assert_eq!(Model::check(&files).unwrap(), model.weight_bytes());
    }
}

#[test]
fn an_unknown_architecture_is_refused_with_the_list_of_known_ones() {
    let refused = config(&llama(), &[("general.architecture", Some(Value::String(b"gpt9")))]).unwrap_err();
    assert_eq!(refused, ConfigError::UnknownArchitecture { found: "gpt9".into() });
    let message = refused.to_string();
    assert!(message.contains("gpt9"), "{message}");
    for architecture in ARCHITECTURES {
        assert!(message.contains(architecture.name), "{message}");
    }
    let missing = ConfigError::Metadata(MetadataError::Missing { key: "general.architecture".into() });
    assert_eq!(config(&llama(), &[("general.architecture", None)]), Err(missing));
}

#[test]
fn a_missing_key_is_named() {
    let common = [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ];
    let of_glimmer = ["attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base", "logit_scale"];
    let llama = (llama(), common.map(|key| format!("llama.{key}")).to_vec());
    let keys = common.into_iter().chain(of_glimmer).map(|key| format!("muse-glimmer.{key}"));
    let glimmer = (glimmer(), keys.collect());
    for (file, keys) in [llama, glimmer] {
        for key in keys {
            let refused = config(&file, &[(&key, None)]);
            assert_eq!(refused, Err(ConfigError::Metadata(MetadataError::Missing { key: key.clone() })));
        }
    }
}

#[test]
fn keys_that_may_be_missing_have_the_values_of_the_format() {
    let optional = ["rope.freq_base", "rope.dimension_count", "attention.head_count_kv", "vocab_size"];
    let keys = optional.map(|key| format!("llama.{key}"));
    let found = config(&llama(), &keys.each_ref().map(|key| (key.as_str(), None))).unwrap();
    let rope = found.layers[0].rope.unwrap();
    assert_eq!((rope.base, rope.rotated, found.kv_heads, found.vocab), (10_000.0, 32, 4, 300));
    let no_lengths = [("llama.attention.key_length", None), ("llama.attention.value_length", None)];
    let sixteen = ("llama.rope.dimension_count", Some(Value::U32(16)));
    assert_eq!(config(&llama(), &[no_lengths[0], no_lengths[1], sixteen]).unwrap().head_dim, 16);
}

#[test]
fn counts_of_zero_or_beyond_reason_are_refused_by_key_and_number() {
    // Without its tokens, whose number would count.
    let llama = || with_keys(&llama(), &[("tokenizer.ggml.tokens", None)]);
    let keys = ["block_count", "embedding_length", "feed_forward_length", "context_length", "vocab_size"];
    let heads = ["attention.head_count", "attention.head_count_kv", "attention.key_length"];
    for key in keys.iter().chain(&heads).map(|key| format!("llama.{key}")) {
        for wrong in [0, u32::MAX] {
            match config(&llama(), &[(&key, Some(Value::U32(wrong)))]) {
                Err(ConfigError::OutOfRange { key: named, found, .. }) => {
                    assert_eq!((named, found), (key.clone(), wrong as usize));
                }
                other => panic!("{key} = {wrong}: {other:?}"),
            }
        }
    }
    for key in ["attention.sliding_window", "attention.sliding_window_pattern"] {
        let key = format!("muse-glimmer.{key}");
        let refused = config(&glimmer(), &[(&key, Some(Value::U32(0)))]);
        assert!(matches!(&refused, Err(ConfigError::OutOfRange { key: k, found: 0, .. }) if *k == key), "{refused:?}");
    }
    let wide = config(&llama(), &[("llama.embedding_length", Some(Value::U64(1 << 40)))]);
    assert!(wide.unwrap_err().to_string().contains("llama.embedding_length"));
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let refused = config(&llama(), &[("llama.attention.head_count_kv", Some(Value::U32(3)))]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "llama.attention.head_count = 4 does not go with llama.attention.head_count_kv = 3"
    );
    let values = config(&llama(), &[("llama.attention.value_length", Some(Value::U32(16)))]).unwrap_err();
    assert!(matches!(values, ConfigError::Mismatch { left: 32, right: 16, .. }), "{values}");
    let odd = config(&glimmer(), &[("muse-glimmer.rope.dimension_count", Some(Value::U32(31)))]).unwrap_err();
    assert!(matches!(odd, ConfigError::Mismatch { left: 31, right: 32, .. }), "{odd}");
    let lengths = [
        ("llama.attention.key_length", None),
        ("llama.attention.value_length", None),
        ("llama.embedding_length", Some(Value::U32(66))),
    ];
    let uneven = config(&llama(), &lengths).unwrap_err();
    assert!(matches!(uneven, ConfigError::Mismatch { left: 66, right: 4, .. }), "{uneven}");
}

#[test]
fn head_widths_without_kernels_are_refused() {
    let keys = ["attention.key_length", "attention.value_length", "rope.dimension_count"];
    for width in [16, 48, 512] {
        let keys = keys.map(|key| format!("llama.{key}"));
        let changes = keys.each_ref().map(|key| (key.as_str(), Some(Value::U32(width))));
        let refused = load(with_keys(&llama(), &changes)).unwrap_err();
        assert!(matches!(refused, LoadError::Attention(_)), "{refused}");
        assert!(refused.to_string().contains(&width.to_string()), "{refused}");
    }
}

#[test]
fn settings_that_would_give_wrong_text_are_refused() {
    let cases = [
        ("llama.rope.scaling.type", Value::String(b"yarn"), "yarn"),
        ("llama.rope.scaling.type", Value::String(b"longrope"), "longrope"),
        ("llama.rope.scaling.type", Value::String(b"Linear"), "Linear"),
        ("llama.rope.scaling.factor", Value::F32(4.0), "4"),
        ("llama.rope.scaling.attn_factor", Value::F32(1.5), "1.5"),
        ("llama.attention.sliding_window", Value::U32(127), "127"),
        ("llama.rope.scale_linear", Value::F32(4.0), "4"),
        ("llama.expert_count", Value::U32(8), "8"),
    ];
    for (key, value, found) in cases {
        let refused = config(&llama(), &[(key, Some(value))]).unwrap_err();
        assert_eq!(refused, ConfigError::UnsupportedSetting { key: key.into(), found: found.into() });
    }
    let yarn = config(&glimmer(), &[("muse-glimmer.rope.scaling.type", Some(Value::String(b"yarn")))]);
    assert!(matches!(yarn, Err(ConfigError::UnsupportedSetting { .. })), "{yarn:?}");
    // The neutral values of the same keys are fine.
    let neutral = [
        ("llama.rope.scaling.type", Some(Value::String(b"none"))),
        ("llama.rope.scale_linear", Some(Value::F32(1.0))),
        ("llama.expert_count", Some(Value::U32(0))),
    ];
    assert!(config(&llama(), &neutral).is_ok());
}

#[test]
fn numbers_that_are_no_numbers_are_refused_by_key() {
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base", "logit_scale", "final_logit_softcapping"] {
        let key = format!("muse-glimmer.{key}");
        for wrong in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
            if wrong == 0.0 && key.ends_with("softcapping") {
                continue; // stands for no cap
            }
            let refused = config(&glimmer(), &[(&key, Some(Value::F32(wrong)))]);
            assert!(matches!(&refused, Err(ConfigError::BadFloat { key: k, .. }) if *k == key), "{key} {wrong}");
        }
        let text = config(&glimmer(), &[(&key, Some(Value::String(b"1")))]);
        assert!(matches!(text, Err(ConfigError::Metadata(MetadataError::WrongType { .. }))), "{key}");
    }
}

#[test]
fn a_tensor_of_the_wrong_shape_is_named_with_both_shapes() {
    let name = "blk.1.ffn_down.weight";
    let transposed = rewritten(&llama(), &[], |of, shape| {
        Some(if of == name { shape.iter().rev().copied().collect() } else { shape.to_vec() })
    });
    let message = load(transposed).unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("96 x 64") && message.contains("64 x 96"), "{message}");
    // The configuration may be what is wrong.
    let fewer = [("llama.vocab_size", Some(Value::U32(299))), ("tokenizer.ggml.tokens", None)];
    let message = load(with_keys(&llama(), &fewer)).unwrap_err().to_string();
    assert!(
        message.contains("token_embd") && message.contains("300 x 64") && message.contains("299 x 64"),
        "{message}"
    );
    let short = rewritten(&llama(), &[], |of, shape| {
        Some(if of == "blk.0.attn_norm.weight" { vec![32, 2] } else { shape.to_vec() })
    });
    let refused = load(short).unwrap_err();
    assert!(matches!(&refused, LoadError::Shape { rows: 2, cols: 32, want_rows: 1, want_cols: 64, .. }), "{refused}");
}

#[test]
fn a_missing_tensor_is_named() {
    let needed = [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_q.weight",
        "blk.1.attn_k.weight",
        "blk.0.attn_v.weight",
        "blk.0.attn_output.weight",
        "blk.1.ffn_norm.weight",
        "blk.1.ffn_gate.weight",
        "blk.0.ffn_up.weight",
        "blk.0.ffn_down.weight",
    ];
    let file = llama();
    for name in needed {
        let without = rewritten(&file, &[], |of, shape| (of != name).then(|| shape.to_vec()));
        match load(without) {
            Err(LoadError::Tensor(TensorError::Missing { name: named })) => assert_eq!(named, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_part_that_the_architecture_always_has_is_named_when_it_is_missing() {
    let file = glimmer();
    for part in ["attn_gate", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"] {
        let missing = format!("blk.1.{part}.weight");
        let without = rewritten(&file, &[], |of, shape| (of != missing).then(|| shape.to_vec()));
        match load(without) {
            Err(LoadError::Tensor(TensorError::Missing { name })) => assert_eq!(name, missing),
            other => panic!("{missing}: {other:?}"),
        }
    }
}

#[test]
fn a_tensor_that_the_graph_does_not_compute_is_refused_by_name() {
    let mut file = llama();
    let (name, unknown) = ("blk.1.attn_k.bias", "blk.1.attn_z.bias");
    let at = file.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
    file[at..at + name.len()].copy_from_slice(unknown.as_bytes());
    match load(file) {
        Err(LoadError::UnknownTensor { name, architecture: "llama" }) => assert_eq!(name, unknown),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unsupported_tensor_type_is_refused_by_tensor_and_name() {
    let mut file = llama();
    let name = "blk.0.attn_k.weight";
    let at = file.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len();
    // Behind the name: the number of dimensions, two of them, then the type; 24 is I8.
    file[at + 4 + 16..][..4].copy_from_slice(&24u32.to_le_bytes());
    let refused = load(file).unwrap_err();
    assert!(matches!(&refused, LoadError::Tensor(TensorError::Unsupported { name: n, .. }) if n == name), "{refused}");
    assert!(refused.to_string().contains("I8"), "{refused}");
}

#[test]
fn rotary_factors_that_cannot_be_divided_by_are_refused() {
    let mut file = llama();
    let (start, len) = {
        let parsed = Gguf::parse(&file).unwrap();
        let bytes = parsed.tensor("rope_freqs.weight").unwrap().bytes().unwrap();
        (bytes.as_ptr().addr() - file.as_ptr().addr(), bytes.len())
    };
    file[start..start + len].fill(0);
    let refused = load(file).unwrap_err();
    assert!(matches!(refused, LoadError::Rope(_)), "{refused}");
}

#[test]
fn absurd_counts_take_no_memory() {
    let largest = 1 << 24;
    let cases: [(&str, u32); 7] = [
        ("llama.block_count", 1 << 12),
        ("llama.embedding_length", largest),
        ("llama.feed_forward_length", largest),
        ("llama.context_length", largest),
        ("llama.vocab_size", largest),
        ("llama.attention.head_count", largest),
        ("llama.block_count", u32::MAX),
    ];
    for (key, count) in cases {
        let changes = [(key, Some(Value::U32(count))), ("tokenizer.ggml.tokens", None)];
        let files = Arc::new(ModelFiles::from_bytes(with_keys(&llama(), &changes)).unwrap());
        let mut outcome = None;
        let used = measure(|| outcome = Some(Model::load(files, NonZeroUsize::MIN).map(drop)));
        // The context alone is no reason to refuse: memory for it is taken when a cache grows.
        assert_eq!(outcome.unwrap().is_ok(), key == "llama.context_length", "{key} = {count}");
        // The whole model is about 400 kB.
        assert!(used.bytes_max < 1 << 20, "{key} = {count}: {used:?}");
    }
}

#[test]
fn a_soft_cap_may_be_absent_and_0_stands_for_none() {
    let key = "muse-glimmer.final_logit_softcapping";
    let cap = |value| config(&glimmer(), &[(key, value)]).unwrap().logit_soft_cap;
    assert_eq!([cap(None), cap(Some(Value::F32(0.0))), cap(Some(Value::F32(20.0)))], [None, None, Some(20.0)]);
}

#[test]
fn a_pattern_of_windows_may_be_given_in_integers() {
    let key = "muse-glimmer.attention.sliding_window_pattern";
    let with = |flags: [i32; 2]| {
        let encoded: Vec<u8> = flags.iter().flat_map(|flag| flag.to_le_bytes()).collect();
        let file = glimmer();
        let at = file.windows(key.len()).position(|part| part == key.as_bytes()).unwrap() + key.len();
        // Type and element type (4 bytes each), length (8), two bools of one byte each.
        let (before, after) = (&file[..at + 4], &file[at + 4 + 4 + 8 + 2..]);
        let header = [&5u32.to_le_bytes()[..], &2u64.to_le_bytes()].concat();
        // Only the metadata are read: the data behind it may move.
        let bytes = [before, &header, &encoded, after].concat();
        read_config(&Gguf::parse(&bytes).unwrap().metadata()).map(|config| config.layers)
    };
    assert_eq!(with([1, 0]), Ok(config(&glimmer(), &[]).unwrap().layers));
    assert_ne!(with([0, 1]), with([1, 0]));
    let refused = with([1, 2]).unwrap_err();
    assert!(matches!(refused, ConfigError::Metadata(MetadataError::OutOfRange { value: 2, .. })), "{refused}");
}

#[test]
fn the_list_of_tokens_counts_and_not_a_vocabulary_size_that_was_left_behind() {
    for stale in [0, 280, 301, u32::MAX] {
        let file = with_keys(&llama(), &[("llama.vocab_size", Some(Value::U32(stale)))]);
        assert_eq!(load(file).unwrap().config().vocab, 300, "{stale}");
    }
    let neither = [("llama.vocab_size", None), ("tokenizer.ggml.tokens", None)];
    let missing = MetadataError::Missing { key: "tokenizer.ggml.tokens".into() };
    assert_eq!(config(&llama(), &neither), Err(ConfigError::Metadata(missing)));
}

#[test]
fn a_scale_of_embeddings_is_refused_whether_they_are_the_head_or_not() {
    for tied_output in [true, false] {
        let file = common::file(&spec(Architecture::Qwen3 { tied_output }));
        for scale in ["token_embd.scale", "token_embd.weight.scale"] {
            match load(with_scale(&file, scale)) {
                Err(LoadError::UnknownTensor { name, architecture: "qwen3" }) => assert_eq!(name, scale),
                other => panic!("{other:?}"),
            }
        }
        assert!(load(with_scale(&file, "blk.0.attn_q.scale")).is_ok());
    }
}

#[test]
fn tokens_to_suppress_are_those_that_exist_and_cannot_be_all() {
    let key = "tokenizer.ggml.suppress_tokens";
    let tokens = |list: &[i32]| {
        let plain = with_keys(&llama(), &[]);
        let (parsed, mut writer) = (Gguf::parse(&plain).unwrap(), GgufWriter::new());
        parsed.metadata().iter().for_each(|(key, value)| writer.set(key, value).unwrap());
        writer.set_array(key, list).unwrap();
        let mut out = Vec::new();
        writer.write(&mut out, |_, _| Ok(())).unwrap();
        read_config(&Gguf::parse(&out).unwrap().metadata()).map(|config| config.suppressed_tokens.to_vec())
    };
    assert_eq!(tokens(&[]), Ok(vec![]));
    assert_eq!(tokens(&[57, 3, 57, 299, 300, -1, i32::MAX]), Ok(vec![3, 57, 299]));
    let all: Vec<i32> = (0..300).collect();
    let refused = tokens(&all).unwrap_err();
    assert_eq!(refused, ConfigError::UnsupportedSetting { key: key.into(), found: "all 300 tokens".into() });
    let text = config(&llama(), &[(key, Some(Value::String(b"1")))]);
    assert!(matches!(text, Err(ConfigError::Metadata(MetadataError::WrongType { .. }))), "{text:?}");
}
