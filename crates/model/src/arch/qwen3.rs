//! `qwen3`: Qwen 3, with norms on query and key heads; the width of a head is a key of its own.

use muser_kernels::rope::RopeStyle;

use super::dense::Dense;
use super::{Architecture, ConfigError, Keys, table};
use crate::config::{LayerParts, ModelConfig, Part};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "qwen3", keys: [table::COMMON, table::DENSE], read };

fn read(keys: &Keys<'_>) -> Result<ModelConfig, ConfigError> {
    let parts = LayerParts {
        qkv_biases: Part::Absent,
        other_biases: Part::Absent,
        qk_norms: Part::Required,
        attention_gate: Part::Absent,
        post_norms: Part::Absent,
    };
    Dense { architecture: ARCHITECTURE.name, rope_style: RopeStyle::Neox, default_rope_base: None, parts }.read(keys)
}
