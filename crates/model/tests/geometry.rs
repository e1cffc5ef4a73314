//! The figures of Muse Glimmer 30B, derived from the configuration that its header gives.

use muser_kernels::formats::WeightType;
use muser_kernels::rope::RopeStyle;
use muser_kv::{CacheSpec, KvLayout, LayerSpec, PageLayout};
use muser_model::{Activation, DenseConfig, LayerConfig, LayerParts, ModelConfig, Part, RopeConfig, read_config};
use muser_synthetic::small::{glimmer_30b, header};
use muser_weights::gguf::HeaderOnly;

/// Bytes of the published k-quant file.
const ARTIFACT_BYTES: f64 = 16_756_681_056.0;

fn with_header<T>(read: impl FnOnce(&HeaderOnly<'_>) -> T) -> T {
    let bytes = header(&glimmer_30b(), &|_| WeightType::Q4_K).unwrap();
    read(&HeaderOnly::parse(&bytes).unwrap())
}

fn config() -> ModelConfig {
    with_header(|file| read_config(&file.metadata()).unwrap())
}

/// Weights that every token is multiplied with: projections, feed-forward network and head. Embeddings are looked up.
fn multiplied(config: &ModelConfig) -> usize {
    let (hidden, query, kv) = (config.hidden, config.query_dim(), config.kv_dim());
    // Queries, gate and output are alike; so are keys and values; so are the three of the feed-forward network.
    let layer = 3 * hidden * query + 2 * hidden * kv + 3 * hidden * config.widest_feed_forward();
    config.layers.len() * layer + config.vocab * hidden
}

/// Vectors: four norms of a layer and the two of its heads, and the last norm.
fn vectors(config: &ModelConfig) -> usize {
    config.layers.len() * (4 * config.hidden + 2 * config.head_dim) + config.hidden
}

#[test]
fn the_header_gives_the_published_configuration() {
    let rope = RopeConfig { base: 500_000.0, rotated: 128, style: RopeStyle::Norm };
    let feed_forward = DenseConfig { width: 19_968, activation: Activation::Silu };
    let local = LayerConfig { window: Some(2048), rope: Some(rope), feed_forward };
    let global = LayerConfig { window: None, rope: None, feed_forward };
    let expected = ModelConfig {
        architecture: "muse-glimmer",
        hidden: 6656,
        vocab: 202_048,
        context: 131_072,
        query_heads: 32,
        kv_heads: 2,
        head_dim: 128,
        layers: [local, local, local, global].repeat(13),
        parts: LayerParts {
            qkv_biases: Part::Absent,
            other_biases: Part::Absent,
            qk_norms: Part::Required,
            attention_gate: Part::Required,
            post_norms: Part::Required,
        },
        norm_eps: 1e-5,
        post_norm_eps: 1e-8,
        embedding_norm: true,
        logit_scale: Some(0.196_116_13),
        logit_soft_cap: Some(20.0),
        suppressed_tokens: [].into(),
    };
    assert_eq!(config(), expected);
    assert_eq!(expected.layers.iter().filter(|layer| **layer == local).count(), 39);
    assert_eq!(expected.layers.iter().filter(|layer| **layer == global).count(), 13);
    assert_eq!((expected.query_dim(), expected.kv_dim(), expected.widest_input()), (4096, 256, 19_968));
}

#[test]
fn parameters_follow_from_the_configuration_and_are_those_of_the_file() {
    let config = config();
    assert_eq!(multiplied(&config), 26_508_558_336);
    let embeddings = config.vocab * config.hidden;
    assert_eq!(multiplied(&config) + embeddings + vectors(&config), 27_854_794_240);
    let in_file: u64 = with_header(|file| file.tensors().map(|tensor| tensor.elements()).sum());
    assert_eq!(in_file, 27_854_794_240);
}

#[test]
fn a_token_takes_53_gflop_and_a_chunk_reuses_each_weight_byte() {
    let per_token = 2.0 * multiplied(&config()) as f64;
    assert_eq!((per_token / 1e9).round(), 53.0);
    let prefill = 512.0 * per_token / ARTIFACT_BYTES;
    assert!((1619.0..1621.0).contains(&prefill), "{prefill} FLOP per weight byte");
    let decode = per_token / ARTIFACT_BYTES;
    assert!((3.15..3.25).contains(&decode), "{decode} FLOP per weight byte");
}

#[test]
fn a_token_takes_1024_bytes_of_f16_cache_per_layer() {
    let config = config();
    let layout = PageLayout::new(KvLayout::F16, config.kv_heads, config.head_dim).unwrap();
    assert_eq!(layout.row_bytes(), 1024);
    let layers = config.layers.iter().map(|layer| LayerSpec { window: layer.window }).collect();
    let spec = CacheSpec::new(layers, layout, config.context, CacheSpec::EXTRA_PAGES_DEFAULT).unwrap();
    // The prompt of the published handoff, whose last token the receiver computes.
    assert_eq!(spec.row_payload_bytes(130_815 - 1, 0), 1_823_184_896);
    let (delta, full) = (spec.row_payload_bytes(65_535, 32_768), spec.row_payload_bytes(65_535, 0));
    assert_eq!((delta as f64 / full as f64 * 1e6).round(), 542_851.0);
}
