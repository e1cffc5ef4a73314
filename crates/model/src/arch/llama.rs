//! `llama`: Llama 2 and 3, Mistral, SmolLM2. Llama 3's long-context angles come as the tensor `rope_freqs.weight`.

use muser_kernels::rope::RopeStyle;

use super::dense::Dense;
use super::{Architecture, ConfigError, Keys, table};
use crate::config::{LayerParts, ModelConfig, Part};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", keys: [table::COMMON, table::DENSE], read };

fn read(keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
    let parts = LayerParts {
        qkv_biases: Part::Optional,
        other_biases: Part::Optional,
        qk_norms: Part::Absent,
        attention_gate: Part::Absent,
        post_norms: Part::Absent,
    };
    // Files converted before the key existed mean Llama 2's base. Queries and keys were permuted by the converter.
    Dense { architecture: ARCHITECTURE.name, rope_style: RopeStyle::Norm, default_rope_base: Some(10_000.0), parts }
        .read(keys)
}
