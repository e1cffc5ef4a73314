//! `qwen2`: Qwen 2 and 2.5, with biases on queries, keys and values.

use muser_kernels::rope::RopeStyle;

use super::dense::Dense;
use super::{Architecture, ConfigError, Keys, table};
use crate::config::{LayerParts, ModelConfig, Part};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen2", keys: [table::COMMON, table::DENSE], read };

fn read(keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
    let parts = LayerParts {
        qkv_biases: Part::Required,
        other_biases: Part::Absent,
        qk_norms: Part::Absent,
        attention_gate: Part::Absent,
        post_norms: Part::Absent,
    };
    Dense { architecture: ARCHITECTURE.name, rope_style: RopeStyle::Neox, default_rope_base: None, parts }.read(keys)
}
