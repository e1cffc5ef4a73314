//! Specification of a random model.

use muser_weights::gguf::{GgufWriter, Value, WriteError};

/// The geometry of a model. Every field is the caller's to choose; the generator adds only a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The layer graph, and what only it has.
    pub architecture: Architecture,
    /// Number of layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads per layer.
    pub query_heads: u32,
    /// Key and value heads per layer; a divisor of `query_heads` in a model that makes sense, which is not checked.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the feed-forward block.
    pub ffn: u32,
    /// Tokens; at least 257, one for each byte and one to end a text.
    pub vocab: u32,
    /// Longest context in tokens.
    pub context: u32,
    /// Base of the rotary embedding.
    pub rope_base: f32,
    /// Chooses the weights.
    pub seed: u64,
}

/// A layer graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Architecture {
    /// `llama`.
    Llama(LlamaOptions),
    /// `muse-glimmer`.
    MuseGlimmer(GlimmerOptions),
    /// `qwen2`, with the embeddings as output head if `tied_output`.
    Qwen2 {
        /// True if `output.weight` is absent.
        tied_output: bool,
    },
    /// `qwen3`, with the embeddings as output head if `tied_output`.
    Qwen3 {
        /// True if `output.weight` is absent.
        tied_output: bool,
    },
}

/// Optional tensors of a `llama` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LlamaOptions {
    /// True if the embeddings serve as output head, so that `output.weight` is absent.
    pub tied_output: bool,
    /// True to add a `rope_freqs.weight`.
    pub rope_factors: bool,
    /// True to add biases to queries, keys and values.
    pub qkv_biases: bool,
}

/// Parameters of a `muse-glimmer` file besides the common geometry.
#[derive(Clone, Debug, PartialEq)]
pub struct GlimmerOptions {
    /// Keys a query of a local layer sees, itself included.
    pub window: u32,
    /// One flag per layer: true for a local one. The others are global and have no positional encoding.
    pub local_layers: Vec<bool>,
}

/// `layers` flags of which every `period`-th, counted so, is global and the others local.
pub fn repeating_pattern(layers: u32, period: u32) -> Vec<bool> {
    (1..=layers).map(|layer| period == 0 || !layer.is_multiple_of(period)).collect()
}

impl ModelSpec {
    /// GGUF's name of the architecture, which is also the prefix of its keys.
    pub(super) fn architecture_name(&self) -> &'static str {
        match self.architecture {
            Architecture::Llama(_) => "llama",
            Architecture::MuseGlimmer(_) => "muse-glimmer",
            Architecture::Qwen2 { .. } => "qwen2",
            Architecture::Qwen3 { .. } => "qwen3",
        }
    }

    /// True if queries, keys and values have biases.
    pub(super) fn qkv_biases(&self) -> bool {
        match self.architecture {
            Architecture::Llama(options) => options.qkv_biases,
            Architecture::Qwen2 { .. } => true,
            Architecture::MuseGlimmer(_) | Architecture::Qwen3 { .. } => false,
        }
    }

    /// True if the embeddings serve as output head.
    pub(super) fn tied_output(&self) -> bool {
        match self.architecture {
            Architecture::Llama(LlamaOptions { tied_output, .. }) => tied_output,
            Architecture::Qwen2 { tied_output } | Architecture::Qwen3 { tied_output } => tied_output,
            Architecture::MuseGlimmer(_) => false,
        }
    }

    /// Adds the geometry to a file's metadata.
    pub(crate) fn set_keys(&self, writer: &mut GgufWriter) -> Result<(), WriteError> {
        let architecture = self.architecture_name();
        writer.set("general.architecture", Value::String(architecture.as_bytes()))?;
        writer.set("general.name", Value::String(b"random test model"))?;
        let counts = [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.query_heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("vocab_size", self.vocab),
        ];
        for (key, count) in counts {
            writer.set(&format!("{architecture}.{key}"), Value::U32(count))?;
        }
        writer.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5))?;
        writer.set(&format!("{architecture}.rope.freq_base"), Value::F32(self.rope_base))?;
        let Architecture::MuseGlimmer(options) = &self.architecture else { return Ok(()) };
        writer.set("muse-glimmer.attention.sliding_window", Value::U32(options.window))?;
        writer.set_array("muse-glimmer.attention.sliding_window_pattern", &options.local_layers)?;
        writer.set("muse-glimmer.logit_scale", Value::F32(logit_scale(self.hidden)))?;
        writer.set("muse-glimmer.final_logit_softcapping", Value::F32(20.0))
    }
}

/// The logits of a wider model are scaled down: the f32 nearest to 1 / sqrt(hidden / 256).
fn logit_scale(hidden: u32) -> f32 {
    let scale = 1.0 / (f64::from(hidden) / 256.0).sqrt();
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
    let rounded = scale as f32;
    rounded
}
