//! Random models that between them use every tensor, weight type and option that the graph knows.

use half::f16;
use muser_kernels::formats::{QuantiseError, WeightType, quantise_row};
use muser_synthetic::small::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, Quantise, Storage, generate};

/// Storage types of a model's matrices, and widths that the types' blocks divide.
pub struct WeightMix {
    /// For messages.
    pub name: &'static str,
    /// The type of the matrix of a name.
    pub weight_type: fn(&str) -> WeightType,
    quantise: Quantise,
    hidden: u32,
    feed_forward: u32,
    query_heads: u32,
}

/// Every weight type occurs in some mix. Where blocks allow it, widths are no multiples of the kernels' 16 and 32 lanes.
pub const MIXES: [WeightMix; 8] = [
    mix("K-quants", k_quants, [256, 256, 8]),
    mix("Q8_0", |_| WeightType::Q8_0, [96, 160, 4]),
    mix("Q4_0 and Q4_1", four_bit, [96, 160, 4]),
    mix("Q5_0, Q5_1 and IQ4_NL", five_bit, [96, 160, 4]),
    mix("MXFP4 and NVFP4", fp4, [64, 128, 4]),
    mix("F16", |_| WeightType::F16, [72, 100, 4]),
    mix("BF16", |_| WeightType::BF16, [88, 108, 6]),
    WeightMix { quantise: random_blocks, ..mix("all types", any_type, [256, 256, 8]) },
];

/// The mix of plain floats, in which no rounding of activations can hide a difference.
pub const FLOATS: WeightMix = mix("F32", |_| WeightType::F32, [64, 96, 4]);

const fn mix(
    name: &'static str,
    weight_type: fn(&str) -> WeightType,
    [hidden, feed_forward, query_heads]: [u32; 3],
) -> WeightMix {
    WeightMix { name, weight_type, quantise, hidden, feed_forward, query_heads }
}

/// The architectures, with their options, that the covering array goes through.
pub const ARCHITECTURES: [&str; 5] =
    ["muse-glimmer", "llama, tied, rotary factors", "llama, biases", "qwen2, tied", "qwen3"];

const VOCAB: u32 = 301;

/// The file of a model of one of [`ARCHITECTURES`], by its index; two layers, so that what attention stored wrongly is
/// attended again.
pub fn file_of_architecture(architecture: usize, mix: &WeightMix, context: u32) -> Vec<u8> {
    let llama = |tied_output, rope_factors, qkv_biases| {
        llama_spec(mix, LlamaOptions { tied_output, rope_factors, qkv_biases }, 2, context)
    };
    let spec = match architecture {
        0 => glimmer_spec(mix, 100, &[true, false], context),
        1 => llama(true, true, false),
        2 => llama(false, false, true),
        3 => spec(mix, Architecture::Qwen2 { tied_output: true }, 2, context),
        _ => spec(mix, Architecture::Qwen3 { tied_output: false }, 2, context),
    };
    generated(&spec, mix)
}

/// The geometry of a `muse-glimmer` of one layer per flag: local with `window`, or global.
pub fn glimmer_spec(mix: &WeightMix, window: u32, local_layers: &[bool], context: u32) -> ModelSpec {
    let options = GlimmerOptions { window, local_layers: local_layers.to_vec() };
    let layers = u32::try_from(local_layers.len()).expect("few layers");
    spec(mix, Architecture::MuseGlimmer(options), layers, context)
}

/// The geometry of a `llama`.
pub fn llama_spec(mix: &WeightMix, options: LlamaOptions, layers: u32, context: u32) -> ModelSpec {
    spec(mix, Architecture::Llama(options), layers, context)
}

/// A whole file of the model.
pub fn generated(spec: &ModelSpec, mix: &WeightMix) -> Vec<u8> {
    let storage = Storage { weight_type: &mix.weight_type, quantise: Some(mix.quantise) };
    generate(spec, storage).expect("a geometry that the types' blocks divide")
}

/// `count` tokens that any of the models has.
pub fn tokens(count: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u32(0..VOCAB)).collect()
}

fn spec(mix: &WeightMix, architecture: Architecture, layers: u32, context: u32) -> ModelSpec {
    ModelSpec {
        architecture,
        layers,
        hidden: mix.hidden,
        query_heads: mix.query_heads,
        kv_heads: 2,
        head_dim: 32,
        ffn: mix.feed_forward,
        vocab: VOCAB,
        context,
        rope_base: 10_000.0,
        seed: 42,
    }
}

fn k_quants(name: &str) -> WeightType {
    match part_of(name) {
        "attn_q" | "attn_gate" | "ffn_gate" => WeightType::Q4_K,
        "attn_k" | "ffn_up" => WeightType::Q5_K,
        "attn_output" => WeightType::IQ4_XS,
        _ => WeightType::Q6_K,
    }
}

fn four_bit(name: &str) -> WeightType {
    match part_of(name) {
        "attn_q" | "attn_v" | "ffn_gate" | "ffn_down" | "token_embd" => WeightType::Q4_0,
        _ => WeightType::Q4_1,
    }
}

fn five_bit(name: &str) -> WeightType {
    match part_of(name) {
        "attn_q" | "attn_gate" | "ffn_down" => WeightType::IQ4_NL,
        "attn_v" | "ffn_gate" | "token_embd" => WeightType::Q5_1,
        _ => WeightType::Q5_0,
    }
}

fn fp4(name: &str) -> WeightType {
    match part_of(name) {
        "attn_q" | "attn_output" | "ffn_gate" | "token_embd" => WeightType::NVFP4,
        _ => WeightType::MXFP4,
    }
}

/// Neighbours in the graph differ, so that one vector is wanted in several quantised forms at once.
fn any_type(name: &str) -> WeightType {
    let layer = if name.starts_with("blk.1") { 7 } else { 0 };
    let parts = ["attn_q", "attn_k", "attn_v", "attn_gate", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"];
    let part = parts.iter().position(|part| *part == part_of(name)).unwrap_or(parts.len());
    WeightType::ALL[(4 * part + layer) % WeightType::ALL.len()]
}

/// `blk.0.attn_q.weight` is `attn_q`.
fn part_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name).rsplit('.').next().unwrap_or(name)
}

/// The row as blocks, rounded. Types that muser only reads get [`random_blocks`].
fn quantise(ty: WeightType, row: &[f32]) -> Vec<u8> {
    let mut out = vec![0; ty.row_bytes(row.len()).expect("whole blocks")];
    match quantise_row(ty, row, &mut out) {
        Ok(()) => out,
        Err(QuantiseError::Unsupported { .. }) => random_blocks(ty, row),
        Err(refused) => panic!("{refused}"),
    }
}

/// Blocks of random bits, seeded by the row: every sub-scale, min and code that the format can say, with float scales that
/// keep products near the size of their inputs.
fn random_blocks(ty: WeightType, row: &[f32]) -> Vec<u8> {
    let seed = row.iter().fold(7, |hash: u64, x| (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01b3));
    let mut random = fastrand::Rng::with_seed(seed);
    let size = 1.0 / (row.len() as f32).sqrt();
    let mut out = vec![0; ty.row_bytes(row.len()).expect("whole blocks")];
    for block in out.chunks_exact_mut(ty.block_bytes()) {
        random.fill(block);
        set_scales(ty, block, size, &mut random);
    }
    out
}

/// Overwrites the float scales of a block of random bits so that its weights are about `size`.
fn set_scales(ty: WeightType, block: &mut [u8], size: f32, random: &mut fastrand::Rng) {
    let mut set = |at: usize, scale: f32| {
        let scale = scale * (0.75 + 0.5 * random.f32());
        block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    };
    // The divisors are the root mean squares of random bits in units of the scale; mins are centred by theirs.
    match ty {
        WeightType::Q8_0 => set(0, size / 74.0),
        WeightType::Q4_0 => set(0, size / 4.6),
        WeightType::Q4_1 => {
            set(0, size / 4.6);
            set(2, -size * 7.5 / 4.6);
        }
        WeightType::Q5_0 => set(0, size / 9.2),
        WeightType::Q5_1 => {
            set(0, size / 9.2);
            set(2, -size * 15.5 / 9.2);
        }
        WeightType::Q4_K => {
            set(0, size / 260.0);
            set(2, size * 7.5 / 260.0);
        }
        WeightType::Q5_K => {
            set(0, size / 520.0);
            set(2, size * 15.5 / 520.0);
        }
        WeightType::Q6_K => set(208, size / 1370.0),
        WeightType::IQ4_XS => set(0, size / 1150.0),
        WeightType::IQ4_NL => set(0, size / 66.0),
        // 2^-6, for codes of -12 to 12.
        WeightType::MXFP4 => block[0] = 122,
        // 2^-6 times 1 to 1.875, one scale per 16 weights.
        WeightType::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale = 0x10 + (*scale & 7)),
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => panic!("{ty} has no scales"),
    }
}

#[test]
fn every_weight_type_is_multiplied_by_some_model() {
    let names = ["attn_q", "attn_k", "attn_v", "attn_gate", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let names = names.map(|part| [format!("blk.0.{part}.weight"), format!("blk.1.{part}.weight")]);
    for ty in WeightType::ALL {
        let used = MIXES.iter().chain([&FLOATS]).any(|mix| names.iter().flatten().any(|n| (mix.weight_type)(n) == ty));
        assert!(used, "{ty}");
    }
}
