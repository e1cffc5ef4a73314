//! Models of published geometries with random weights, whole files with a vocabulary: for measurements where the real
//! weights cannot be had. They cost the arithmetic of the real ones; their output is noise.
//!
//! Weights are quantised normal deviates that keep activations near their size. A file is a pure function of geometry and
//! seed; rows may be made by any threads in any order.

mod blocks;
mod vocabulary;

use muser_kernels::formats::WeightType;

use muser_weights::gguf::{GgufWriter, PlannedTensor, Value, WriteError};

use blocks::BlockPools;

/// Sizes of a `muse-glimmer` model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelGeometry {
    /// Value of `general.name`.
    pub name: &'static str,
    /// Layers; every fourth sees all positions.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width inside the feed-forward network.
    pub feed_forward: u32,
    /// Query heads of 128 elements.
    pub query_heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Positions that a windowed layer sees.
    pub window: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Positions.
    pub context: u32,
}

impl ModelGeometry {
    /// Muse Glimmer 30B.
    pub const MUSE_30B: Self = Self {
        name: "synthetic Muse Glimmer 30B",
        layers: 52,
        hidden: 6656,
        feed_forward: 19_968,
        query_heads: 32,
        kv_heads: 2,
        window: 2048,
        vocab: 202_048,
        context: 131_072,
    };

    /// The model that ships with muser.
    pub const GLIMMER_MINI: Self = Self {
        name: "synthetic glimmer-mini",
        layers: 8,
        hidden: 512,
        feed_forward: 1536,
        query_heads: 4,
        kv_heads: 2,
        window: 256,
        vocab: 4096,
        context: 2048,
    };
}

/// Elements of a head.
const HEAD_DIM: u32 = 128;

/// A file that is planned, and the means to make its tensors.
#[derive(Debug)]
pub struct SyntheticModel {
    writer: GgufWriter,
    pools: BlockPools,
    seed: u64,
}

impl SyntheticModel {
    /// Plans a file with the tensor types of the recipe Q4_K_M.
    ///
    /// # Errors
    /// [`WriteError`] if the geometry makes no file that the reader would take.
    pub fn plan(geometry: &ModelGeometry, seed: u64) -> Result<Self, WriteError> {
        let mut writer = GgufWriter::new();
        set_keys(&mut writer, geometry)?;
        vocabulary::set_keys(&mut writer, geometry.vocab, seed)?;
        add_tensors(&mut writer, geometry)?;
        Ok(Self { writer, pools: BlockPools::new(seed), seed })
    }

    /// Metadata and tensors.
    pub fn writer(&self) -> &GgufWriter {
        &self.writer
    }

    /// Makes row `row` of a planned tensor: `out` is as long as a row.
    pub fn fill_row(&self, tensor: &PlannedTensor, row: usize, out: &mut [u8]) {
        let name =
            tensor.name().bytes().fold(self.seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut random = fastrand::Rng::with_seed(name.wrapping_add((row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        match tensor.weight_type() {
            WeightType::F32 => {
                let (center, spread) = norm_factors(tensor.name());
                for factor in out.as_chunks_mut::<4>().0 {
                    *factor = (center + spread * (random.f32() - 0.5)).to_le_bytes();
                }
            }
            ty => {
                let size = 1.0 / (tensor.shape()[0] as f32).sqrt();
                self.pools.fill(ty, size, &mut random, out);
            }
        }
    }
}

/// Center and width of the range of a norm's factors. Queries carry the model's scale.
fn norm_factors(name: &str) -> (f32, f32) {
    match name {
        _ if name.ends_with("attn_q_norm.weight") => (3.87, 0.0),
        _ if name.ends_with("attn_k_norm.weight") => (1.0, 0.0),
        _ => (1.0, 0.2),
    }
}

fn set_keys(writer: &mut GgufWriter, geometry: &ModelGeometry) -> Result<(), WriteError> {
    let key = |name: &str| format!("muse-glimmer.{name}");
    let local: Vec<bool> = (0..geometry.layers).map(|layer| layer % 4 != 3).collect();
    writer.set("general.architecture", Value::String(b"muse-glimmer"))?;
    writer.set("general.name", Value::String(geometry.name.as_bytes()))?;
    writer.set("general.quantization_version", Value::U32(2))?;
    writer.set("general.file_type", Value::U32(15))?; // mostly Q4_K, medium
    let counts = [
        ("context_length", geometry.context),
        ("embedding_length", geometry.hidden),
        ("block_count", geometry.layers),
        ("feed_forward_length", geometry.feed_forward),
        ("attention.head_count", geometry.query_heads),
        ("attention.head_count_kv", geometry.kv_heads),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
        ("attention.sliding_window", geometry.window),
        ("rope.dimension_count", HEAD_DIM),
        ("vocab_size", geometry.vocab),
    ];
    counts.into_iter().try_for_each(|(name, count)| writer.set(&key(name), Value::U32(count)))?;
    let logit_scale = 1.0 / (geometry.hidden as f32 / 256.0).sqrt();
    let floats = [
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("rope.freq_base", 500_000.0),
        ("logit_scale", logit_scale),
        ("final_logit_softcapping", 20.0),
    ];
    floats.into_iter().try_for_each(|(name, value)| writer.set(&key(name), Value::F32(value)))?;
    writer.set_array(&key("attention.sliding_window_pattern"), &local)
}

fn add_tensors(writer: &mut GgufWriter, geometry: &ModelGeometry) -> Result<(), WriteError> {
    let ModelGeometry { layers, hidden, feed_forward, vocab, .. } = *geometry;
    let (query, kv) = (geometry.query_heads * HEAD_DIM, geometry.kv_heads * HEAD_DIM);
    let mut matrix = |name: &str, ty: WeightType, [rows, cols]: [u32; 2]| {
        writer.tensor(&format!("{name}.weight"), ty, &[u64::from(cols), u64::from(rows)])
    };
    matrix("token_embd", WeightType::Q4_K, [vocab, hidden])?;
    matrix("output", WeightType::Q6_K, [vocab, hidden])?;
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let more_bits = if has_more_bits(layer, layers) { WeightType::Q6_K } else { WeightType::Q4_K };
        matrix(&name("attn_q"), WeightType::Q4_K, [query, hidden])?;
        matrix(&name("attn_k"), WeightType::Q4_K, [kv, hidden])?;
        matrix(&name("attn_v"), more_bits, [kv, hidden])?;
        matrix(&name("attn_gate"), WeightType::Q4_K, [query, hidden])?;
        matrix(&name("attn_output"), WeightType::Q4_K, [hidden, query])?;
        matrix(&name("ffn_gate"), WeightType::Q4_K, [feed_forward, hidden])?;
        matrix(&name("ffn_up"), WeightType::Q4_K, [feed_forward, hidden])?;
        matrix(&name("ffn_down"), more_bits, [hidden, feed_forward])?;
    }
    let mut norm =
        |name: &str, width: u32| writer.tensor(&format!("{name}.weight"), WeightType::F32, &[u64::from(width)]);
    norm("output_norm", hidden)?;
    for layer in 0..layers {
        for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            norm(&format!("blk.{layer}.{part}"), hidden)?;
        }
        for part in ["attn_q_norm", "attn_k_norm"] {
            norm(&format!("blk.{layer}.{part}"), HEAD_DIM)?;
        }
    }
    Ok(())
}

/// Layers whose values and down projections have six bits in the recipe Q4_K_M: the first and last eighth, and every third
/// between.
fn has_more_bits(layer: u32, layers: u32) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_model_has_the_published_count_of_parameters_and_the_size_of_its_recipe() {
        let model = SyntheticModel::plan(&ModelGeometry::MUSE_30B, 1).unwrap();
        let tensors = model.writer().tensors();
        let parameters: u64 = tensors.iter().map(|tensor| tensor.shape().iter().product::<u64>()).sum();
        assert_eq!(parameters, 27_854_794_240);
        let bytes: u64 = tensors.iter().map(PlannedTensor::byte_len).sum();
        assert!((16_500_000_000..17_100_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn rows_follow_from_the_seed_the_tensor_and_the_row_alone() {
        let [one, same, other] =
            [1, 1, 2].map(|seed| SyntheticModel::plan(&ModelGeometry::GLIMMER_MINI, seed).unwrap());
        for (index, tensor) in one.writer().tensors().iter().enumerate() {
            let bytes = tensor.weight_type().row_bytes(usize::try_from(tensor.shape()[0]).unwrap()).unwrap();
            let row = |model: &SyntheticModel, row| {
                let mut out = vec![0; bytes];
                model.fill_row(&model.writer().tensors()[index], row, &mut out);
                out
            };
            assert_eq!(row(&one, 3), row(&same, 3), "{}", tensor.name());
            if tensor.weight_type() != WeightType::F32 {
                assert_ne!(row(&one, 3), row(&one, 4), "{}", tensor.name());
                assert_ne!(row(&one, 3), row(&other, 3), "{}", tensor.name());
            }
        }
    }
}
