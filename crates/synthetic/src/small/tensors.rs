//! The tensors of a random model, and the model as a file.

use super::random::Random;
use super::spec::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, repeating_pattern};
use super::tokenizer;
use muser_kernels::formats::{WeightClass, WeightType};
use muser_weights::gguf::{GgufWriter, PlannedTensor, WriteError};
use std::io::{self, Write};

/// Storage types of the matrices. Vectors (norms, biases, rotary factors) are always F32, as in every known file.
#[derive(Clone, Copy)]
pub struct Storage<'a> {
    /// The type of the matrix of that name, such as `blk.0.attn_q.weight`.
    pub weight_type: &'a dyn Fn(&str) -> WeightType,
    /// Encodes rows in types that are not plain floats; `None` if `weight_type` names none.
    pub quantise: Option<Quantise>,
}

/// Encodes one row of a tensor as blocks of the type.
pub type Quantise = fn(WeightType, &[f32]) -> Vec<u8>;

/// Reasons for which a model cannot be generated. Always the fault of its specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The vocabulary does not hold the bytes and the end of a text.
    #[error("a vocabulary of {vocab} is too small, at least {min} tokens are needed")]
    VocabTooSmall {
        /// Tokens asked for.
        vocab: u32,
        /// Tokens needed.
        min: u32,
    },
    /// The number of local-layer flags is not the number of layers.
    #[error("{flags} layers are said to be local or global, the model has {layers}")]
    WrongPattern {
        /// Flags given.
        flags: usize,
        /// Layers of the model.
        layers: u32,
    },
    /// A matrix is to be quantised and no quantiser was given.
    #[error("tensor {name:?} is to be stored as {ty}, but there is no quantiser")]
    NoQuantiser {
        /// The tensor.
        name: String,
        /// Its type.
        ty: WeightType,
    },
    /// The file cannot be written, for example because a row is not a whole number of blocks.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A whole model as the bytes of a GGUF file.
///
/// # Errors
/// If the specification contradicts itself or a type does not fit a row.
pub fn generate(spec: &ModelSpec, storage: Storage) -> Result<Vec<u8>, GenerateError> {
    let mut writer = plan(spec, storage)?;
    tokenizer::set_keys(&mut writer, spec.vocab)?;
    for tensor in writer.tensors() {
        if tensor.weight_type().class() != WeightClass::Float && storage.quantise.is_none() {
            return Err(GenerateError::NoQuantiser { name: tensor.name().into(), ty: tensor.weight_type() });
        }
    }
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |tensor, out| write_random(spec, storage, tensor, out))?;
    Ok(bytes)
}

/// The begin of a file up to where the tensors' data would begin, without a tokenizer, for
/// [`HeaderOnly`](muser_weights::gguf::HeaderOnly). `weight_type` is as in [`Storage`].
///
/// # Errors
/// If the specification contradicts itself or a type does not fit a row.
pub fn header(spec: &ModelSpec, weight_type: &dyn Fn(&str) -> WeightType) -> Result<Vec<u8>, GenerateError> {
    let mut bytes = Vec::new();
    let writer = plan(spec, Storage { weight_type, quantise: None })?;
    writer.write_header(&mut bytes).map_err(WriteError::Io)?;
    Ok(bytes)
}

/// The geometry of Muse Glimmer 30B, the model this engine is built around.
pub fn glimmer_30b() -> ModelSpec {
    ModelSpec {
        architecture: Architecture::MuseGlimmer(GlimmerOptions {
            window: 2048,
            local_layers: repeating_pattern(52, 4),
        }),
        layers: 52,
        hidden: 6656,
        query_heads: 32,
        kv_heads: 2,
        head_dim: 128,
        ffn: 19_968,
        vocab: 202_048,
        context: 131_072,
        rope_base: 500_000.0,
        seed: 0,
    }
}

/// Distribution of a tensor's values.
enum Values {
    /// Noise whose size keeps the output of a product with a row near the size of its input.
    Matrix,
    /// Noise around one.
    Norm,
    /// Small noise around zero.
    Bias,
    /// One value everywhere.
    Constant(f32),
    /// From one to eight in equal steps, as rotary factors slow down low frequencies.
    RopeFactors,
}

/// The metadata and directory of a model.
fn plan(spec: &ModelSpec, storage: Storage) -> Result<GgufWriter, GenerateError> {
    if let Architecture::MuseGlimmer(GlimmerOptions { local_layers, .. }) = &spec.architecture {
        let flags = local_layers.len();
        if usize::try_from(spec.layers) != Ok(flags) {
            return Err(GenerateError::WrongPattern { flags, layers: spec.layers });
        }
    }
    let mut writer = GgufWriter::new();
    spec.set_keys(&mut writer)?;
    let mut tensors = Tensors { writer: &mut writer, storage };
    let (hidden, vocab) = (spec.hidden, spec.vocab);
    tensors.matrix("token_embd.weight", hidden, vocab)?;
    tensors.vector("output_norm.weight", hidden)?;
    if matches!(spec.architecture, Architecture::Llama(LlamaOptions { rope_factors: true, .. })) {
        tensors.vector("rope_freqs.weight", spec.head_dim / 2)?;
    }
    if !spec.tied_output() {
        tensors.matrix("output.weight", hidden, vocab)?;
    }
    for layer in 0..spec.layers {
        tensors.layer(spec, layer)?;
        if matches!(spec.architecture, Architecture::MuseGlimmer(_)) {
            tensors.glimmer_layer(spec, layer)?;
        }
    }
    Ok(writer)
}

/// Adds tensors to a file with the types the storage chooses.
struct Tensors<'a> {
    writer: &'a mut GgufWriter,
    storage: Storage<'a>,
}

impl Tensors<'_> {
    /// Adds the tensors of one layer that all architectures have.
    fn layer(&mut self, spec: &ModelSpec, layer: u32) -> Result<(), WriteError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (hidden, ffn) = (spec.hidden, spec.ffn);
        let queries = spec.query_heads.saturating_mul(spec.head_dim);
        let keys = spec.kv_heads.saturating_mul(spec.head_dim);
        self.vector(&name("attn_norm.weight"), hidden)?;
        for (part, rows) in [("attn_q", queries), ("attn_k", keys), ("attn_v", keys)] {
            self.matrix(&name(&format!("{part}.weight")), hidden, rows)?;
            if spec.qkv_biases() {
                self.vector(&name(&format!("{part}.bias")), rows)?;
            }
        }
        if matches!(spec.architecture, Architecture::Qwen3 { .. }) {
            self.vector(&name("attn_q_norm.weight"), spec.head_dim)?;
            self.vector(&name("attn_k_norm.weight"), spec.head_dim)?;
        }
        self.matrix(&name("attn_output.weight"), queries, hidden)?;
        self.vector(&name("ffn_norm.weight"), hidden)?;
        self.matrix(&name("ffn_gate.weight"), hidden, ffn)?;
        self.matrix(&name("ffn_up.weight"), hidden, ffn)?;
        self.matrix(&name("ffn_down.weight"), ffn, hidden)
    }

    /// Adds the tensors of one layer that only `muse-glimmer` has.
    fn glimmer_layer(&mut self, spec: &ModelSpec, layer: u32) -> Result<(), WriteError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.matrix(&name("attn_gate"), spec.hidden, spec.query_heads.saturating_mul(spec.head_dim))?;
        self.vector(&name("attn_q_norm"), spec.head_dim)?;
        self.vector(&name("attn_k_norm"), spec.head_dim)?;
        self.vector(&name("post_attention_norm"), spec.hidden)?;
        self.vector(&name("post_ffw_norm"), spec.hidden)
    }

    fn matrix(&mut self, name: &str, cols: u32, rows: u32) -> Result<(), WriteError> {
        self.writer.tensor(name, (self.storage.weight_type)(name), &[cols.into(), rows.into()])
    }

    fn vector(&mut self, name: &str, length: u32) -> Result<(), WriteError> {
        self.writer.tensor(name, WeightType::F32, &[length.into()])
    }
}

/// Writes the data of one tensor, row by row.
fn write_random(spec: &ModelSpec, storage: Storage, tensor: &PlannedTensor, out: &mut dyn Write) -> io::Result<()> {
    let values = values_of(&spec.architecture, tensor.name());
    let mut random = Random::for_tensor(spec.seed, tensor.name());
    let cols = usize::try_from(tensor.shape()[0]).map_err(io::Error::other)?;
    let rows: u64 = tensor.shape()[1..].iter().product();
    let mut row = vec![0.0; cols];
    // The variance of a uniform number in [-a, a] is a * a / 3.
    let amplitude = (3.0 / cols as f32).sqrt();
    for _ in 0..rows {
        for (column, value) in row.iter_mut().enumerate() {
            *value = match values {
                Values::Matrix => random.signed_unit() * amplitude,
                Values::Norm => 1.0 + random.signed_unit() * 0.125,
                Values::Bias => random.signed_unit() * 0.125,
                Values::Constant(value) => value,
                Values::RopeFactors => 1.0 + 7.0 * column as f32 / (cols as f32 - 1.0).max(1.0),
            };
        }
        match (tensor.weight_type(), storage.quantise) {
            (WeightType::F32, _) => row.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))?,
            (WeightType::F16, _) => {
                row.iter().try_for_each(|value| out.write_all(&half::f16::from_f32(*value).to_le_bytes()))?;
            }
            (WeightType::BF16, _) => {
                row.iter().try_for_each(|value| out.write_all(&half::bf16::from_f32(*value).to_le_bytes()))?;
            }
            (ty, Some(quantise)) => out.write_all(&quantise(ty, &row))?,
            (ty, None) => return Err(io::Error::other(format!("no quantiser for {ty}"))),
        }
    }
    Ok(())
}

fn values_of(architecture: &Architecture, name: &str) -> Values {
    let glimmer = matches!(architecture, Architecture::MuseGlimmer(_));
    match name {
        "rope_freqs.weight" => Values::RopeFactors,
        // The factor on the queries that this architecture folds into their norm.
        _ if glimmer && name.ends_with("attn_q_norm.weight") => Values::Constant(3.87),
        _ if glimmer && name.ends_with("attn_k_norm.weight") => Values::Constant(1.0),
        _ if name.ends_with("norm.weight") => Values::Norm,
        _ if name.ends_with(".bias") => Values::Bias,
        _ => Values::Matrix,
    }
}
