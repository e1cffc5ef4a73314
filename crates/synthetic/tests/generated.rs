//! Small random models: complete, of the shape asked for, and the same on every machine.

use muser_kernels::formats::WeightType;
use muser_synthetic::small::{
    Architecture, GenerateError, GlimmerOptions, LlamaOptions, ModelSpec, Storage, generate, glimmer_30b, header,
    repeating_pattern,
};
use muser_weights::gguf::{Gguf, HeaderOnly, ModelFiles, Tensor};

const F32: Storage = Storage { weight_type: &|_| WeightType::F32, quantise: None };

fn llama(options: LlamaOptions) -> ModelSpec {
    ModelSpec {
        architecture: Architecture::Llama(options),
        layers: 2,
        hidden: 64,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        ffn: 96,
        vocab: 300,
        context: 128,
        rope_base: 10_000.0,
        seed: 7,
    }
}

fn glimmer() -> ModelSpec {
    let options = GlimmerOptions { window: 32, local_layers: repeating_pattern(4, 4) };
    ModelSpec { architecture: Architecture::MuseGlimmer(options), layers: 4, ..llama(PLAIN) }
}

const PLAIN: LlamaOptions = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: false };

fn names(bytes: &[u8]) -> Vec<String> {
    Gguf::parse(bytes).unwrap().tensors().map(|tensor| tensor.name().into()).collect()
}

fn f32s(tensor: Tensor) -> Vec<f32> {
    let (quads, _) = tensor.bytes().unwrap().as_chunks();
    quads.iter().map(|quad| f32::from_le_bytes(*quad)).collect()
}

#[test]
fn a_llama_has_the_tensors_its_options_say() {
    let plain = names(&generate(&llama(PLAIN), F32).unwrap());
    let layer = |n| {
        ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
            .map(|part| format!("blk.{n}.{part}.weight"))
    };
    let first = ["token_embd.weight", "output_norm.weight", "output.weight"].map(String::from);
    assert_eq!(plain, [&first[..], &layer(0), &layer(1)].concat());
    let other = names(
        &generate(&llama(LlamaOptions { tied_output: true, rope_factors: true, qkv_biases: true }), F32).unwrap(),
    );
    assert!(!other.contains(&"output.weight".into()));
    for name in ["rope_freqs.weight", "blk.1.attn_q.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"] {
        assert!(other.contains(&name.into()), "{name}");
    }
    assert_eq!(other.len(), plain.len() - 1 + 1 + 6);
}

#[test]
fn a_glimmer_has_its_gate_and_norms_and_says_which_layers_are_local() {
    let files = ModelFiles::from_bytes(generate(&glimmer(), F32).unwrap()).unwrap();
    for part in ["attn_gate", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"] {
        assert!(files.tensor(&format!("blk.3.{part}.weight")).is_some(), "{part}");
    }
    assert_eq!(files.tensor_count(), 3 + 4 * 14);
    let metadata = files.metadata();
    let pattern = metadata.bools("muse-glimmer.attention.sliding_window_pattern");
    assert_eq!(pattern, Ok(vec![true, true, true, false]));
    assert_eq!(metadata.u32("muse-glimmer.attention.sliding_window"), Ok(32));
    assert_eq!(metadata.f32("muse-glimmer.logit_scale"), Ok(2.0));
    assert_eq!(f32s(files.tensor("blk.0.attn_q_norm.weight").unwrap()), [3.87; 16]);
}

#[test]
fn matrices_keep_the_size_of_what_they_multiply() {
    let files = ModelFiles::from_bytes(generate(&llama(PLAIN), F32).unwrap()).unwrap();
    let weights = f32s(files.tensor("blk.0.ffn_down.weight").unwrap());
    let gain = weights.iter().map(|w| w * w).sum::<f32>() / 64.0;
    assert!((0.9..1.1).contains(&gain), "{gain}");
}

#[test]
fn the_bytes_of_a_model_never_change() {
    let digest = |spec, storage| blake3::hash(&generate(&spec, storage).unwrap()).to_hex().to_string();
    let f16 = Storage { weight_type: &|_| WeightType::F16, quantise: None };
    let all = LlamaOptions { tied_output: true, rope_factors: true, qkv_biases: true };
    assert_eq!(digest(llama(PLAIN), F32), "abe4b191d083d7d09eae2e198b3f33d6191faa0c6868ddab2497e5c600a14d86");
    assert_eq!(digest(llama(all), f16), "dddba7ce95d57cc05144dbb5e860df5dc45d1df2d6b6cd9ca882de89a6abc841");
    assert_eq!(
        digest(glimmer(), Storage { weight_type: &|_| WeightType::BF16, quantise: None }),
        "2ba552ff1f89c30704eea05387f7ebade42b4dd4dd37f0c31e9e3619c5879f37"
    );
    assert_ne!(digest(ModelSpec { seed: 8, ..llama(PLAIN) }, F32), digest(llama(PLAIN), F32));
}

#[test]
fn a_tensor_does_not_depend_on_which_others_there_are() {
    let one = ModelFiles::from_bytes(generate(&llama(PLAIN), F32).unwrap()).unwrap();
    let two =
        ModelFiles::from_bytes(generate(&llama(LlamaOptions { tied_output: true, ..PLAIN }), F32).unwrap()).unwrap();
    let name = "blk.1.ffn_up.weight";
    assert_eq!(one.weight(name).unwrap(), two.weight(name).unwrap());
    assert_ne!(one.weight(name).unwrap().bytes, one.weight("blk.1.ffn_gate.weight").unwrap().bytes);
}

#[test]
fn the_vocabulary_is_bytes_merges_and_unused_tokens() {
    let tokens_of = |vocab| {
        let files = ModelFiles::from_bytes(generate(&ModelSpec { vocab, ..llama(PLAIN) }, F32).unwrap()).unwrap();
        let metadata = files.metadata();
        let strings = |key: &str| metadata.strs(key).unwrap().into_iter().map(String::from).collect::<Vec<_>>();
        (
            strings("tokenizer.ggml.tokens"),
            strings("tokenizer.ggml.merges"),
            metadata.i32s("tokenizer.ggml.token_type").unwrap(),
        )
    };
    let (tokens, merges, kinds) = tokens_of(300);
    assert_eq!((tokens.len(), merges.len(), kinds.len()), (300, 14, 300));
    assert_eq!((tokens[0].as_str(), kinds[0]), ("<|endoftext|>", 3));
    assert_eq!((tokens[1].as_str(), kinds[1]), ("!", 1));
    assert_eq!((tokens[257].as_str(), merges[0].as_str(), kinds[257]), ("Ġt", "Ġ t", 1));
    assert_eq!((tokens[271].as_str(), kinds[271]), ("[PAD271]", 5));
    let (tokens, merges, _) = tokens_of(259);
    assert_eq!((tokens.len(), merges.len()), (259, 2));
    let small = generate(&ModelSpec { vocab: 256, ..llama(PLAIN) }, F32);
    assert!(matches!(small, Err(GenerateError::VocabTooSmall { vocab: 256, min: 257 })));
}

#[test]
fn matrices_take_the_type_chosen_for_their_name_and_vectors_stay_f32() {
    fn zeros(ty: WeightType, row: &[f32]) -> Vec<u8> {
        vec![0; ty.row_bytes(row.len()).unwrap()]
    }
    let by_name = |name: &str| if name.contains("attn") { WeightType::Q8_0 } else { WeightType::F16 };
    let storage = Storage { weight_type: &by_name, quantise: Some(zeros) };
    let files = ModelFiles::from_bytes(generate(&llama(PLAIN), storage).unwrap()).unwrap();
    assert_eq!(files.weight("blk.0.attn_k.weight").unwrap().ty, WeightType::Q8_0);
    assert_eq!(files.weight("blk.0.ffn_up.weight").unwrap().ty, WeightType::F16);
    assert_eq!(files.weight("blk.0.attn_norm.weight").unwrap().ty, WeightType::F32);
    let without = generate(&llama(PLAIN), Storage { quantise: None, ..storage });
    let name = "blk.0.attn_q.weight".to_string();
    assert!(matches!(without, Err(GenerateError::NoQuantiser { name: n, ty: WeightType::Q8_0 }) if n == name));
    let partial = generate(&llama(PLAIN), Storage { weight_type: &|_| WeightType::Q4_K, ..storage });
    assert!(matches!(partial, Err(GenerateError::Write(_))));
}

#[test]
fn a_pattern_must_have_one_flag_per_layer() {
    let spec = ModelSpec { layers: 5, ..glimmer() };
    assert!(matches!(generate(&spec, F32), Err(GenerateError::WrongPattern { flags: 4, layers: 5 })));
}

#[test]
fn muse_glimmer_30b_has_its_published_parameter_counts() {
    let bytes = header(&glimmer_30b(), &|_| WeightType::Q4_K).unwrap();
    let file = HeaderOnly::parse(&bytes).unwrap();
    let parameters: u64 = file.tensors().map(|tensor| tensor.elements()).sum();
    assert_eq!(parameters, 27_854_794_240);
    let multiplied = |tensor: &Tensor| tensor.rows() > 1 && tensor.name() != "token_embd.weight";
    let multiplied: u64 = file.tensors().filter(multiplied).map(|tensor| tensor.elements()).sum();
    assert_eq!(multiplied, 26_508_558_336);
    let metadata = file.metadata();
    assert_eq!(metadata.f32("muse-glimmer.logit_scale"), Ok(0.196_116_13));
    let pattern = metadata.bools("muse-glimmer.attention.sliding_window_pattern").unwrap();
    assert_eq!(pattern.iter().filter(|local| **local).count(), 39);
    assert!(!pattern[51]);
    assert!(Gguf::parse(&bytes).is_err(), "a header alone is not a whole file");
    assert!(file.tensors().all(|tensor| tensor.bytes().is_none() && tensor.weight().is_err()));
}
