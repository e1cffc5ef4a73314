//! Writes a small random model as a GGUF file, for comparing with other engines:
//! `write_random_model llama|llama-biases|muse-glimmer|qwen2|qwen3 OUT.gguf`. Matrices are F16, so that an engine that
//! computes in f32 shows the graph and nothing else. Two more are for trials of handoffs: `muse-glimmer-long` has a context
//! of 16,384 tokens, and `muse-glimmer-fat` pages that are large for what they cost to compute.

use std::error::Error;
use std::fs;

use muser_kernels::formats::WeightType;
use muser_synthetic::small::{
    Architecture, GlimmerOptions, LlamaOptions, ModelSpec, Storage, generate, repeating_pattern,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(out)) = (args.next(), args.next()) else { return Err("two arguments are needed".into()) };
    let llama = |qkv_biases: bool| LlamaOptions { tied_output: !qkv_biases, rope_factors: !qkv_biases, qkv_biases };
    let glimmer = |window: u32, layers: u32| {
        Architecture::MuseGlimmer(GlimmerOptions { window, local_layers: repeating_pattern(layers, 4) })
    };
    let architecture = match name.as_str() {
        "llama" => Architecture::Llama(llama(false)),
        "llama-biases" => Architecture::Llama(llama(true)),
        "muse-glimmer" => glimmer(32, 4),
        "muse-glimmer-long" => glimmer(512, 8),
        "muse-glimmer-fat" => glimmer(1024, 24),
        "muse-glimmer-fat-long" => glimmer(512, 8),
        "qwen2" => Architecture::Qwen2 { tied_output: true },
        "qwen3" => Architecture::Qwen3 { tied_output: false },
        other => return Err(format!("no architecture {other:?}").into()),
    };
    let usual = ModelSpec {
        architecture,
        layers: 4,
        hidden: 512,
        query_heads: 8,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        vocab: 512,
        context: 1024,
        rope_base: 10_000.0,
        seed: 7,
    };
    let spec = match name.as_str() {
        "muse-glimmer-long" => ModelSpec { layers: 8, hidden: 256, query_heads: 4, context: 16_384, ..usual },
        "muse-glimmer-fat" => {
            ModelSpec { layers: 24, hidden: 256, query_heads: 16, kv_heads: 16, head_dim: 128, context: 4096, ..usual }
        }
        "muse-glimmer-fat-long" => {
            ModelSpec { layers: 8, hidden: 256, query_heads: 16, kv_heads: 16, head_dim: 128, context: 16_384, ..usual }
        }
        _ => usual,
    };
    fs::write(out, generate(&spec, Storage { weight_type: &|_| WeightType::F16, quantise: None })?)?;
    Ok(())
}
