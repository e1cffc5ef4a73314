//! Identity of KV: digests that two machines must have in common before one uses keys and values that the other computed.
//!
//! Token ids determine KV bits only together with everything listed here. Chat templates are not listed: they end where ids
//! begin.

use muser_kernels::attention::{KvLayout, PAGE_ROWS, SEGMENT_PAGES};
use muser_kernels::rope::RopeStyle;
use muser_kv::KvIdentity;
use muser_weights::digest::{Digest, FileDigest};

use crate::config::{ModelConfig, RopeConfig};
use crate::feed_forward::{Activation, DenseConfig};

/// The version of `docs/numerics.md` that the kernels implement.
pub const ARITHMETIC_VERSION: &str = "E1";

const CONFIG_CONTEXT: &str = "muser 2026 digest of configuration, version 1";
const ARITHMETIC_CONTEXT: &str = "muser 2026 digest of arithmetic, version 1";
const LAYOUT_CONTEXT: &str = "muser 2026 digest of KV layout, version 1";
const IDENTITY_CONTEXT: &str = "muser 2026 identity, version 1";

/// The parts of an identity, in the order in which they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Component {
    /// Name, type, shape and bytes of every tensor.
    Tensors = 0,
    /// The tokenizer's metadata.
    Tokenizer = 1,
    /// The effective [`ModelConfig`].
    Configuration = 2,
    /// Version and parameters of the arithmetic.
    Arithmetic = 3,
    /// Storage format of keys and values in pages.
    KvLayout = 4,
}

impl Component {
    /// Every component, in order.
    pub const ALL: [Self; 5] = [Self::Tensors, Self::Tokenizer, Self::Configuration, Self::Arithmetic, Self::KvLayout];
}

impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tensors => "tensors",
            Self::Tokenizer => "tokenizer",
            Self::Configuration => "configuration",
            Self::Arithmetic => "arithmetic",
            Self::KvLayout => "KV layout",
        })
    }
}

/// One digest per component. Two identities are the same exactly if all their digests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    components: [Digest; Component::ALL.len()],
}

impl Identity {
    /// The identity of KV computed from a file with these digests, under this configuration, in this layout.
    pub fn new(file: &FileDigest, config: &ModelConfig, layout: KvLayout) -> Self {
        let components =
            [file.tensors, file.tokenizer, config_digest(config), arithmetic_digest(), layout_digest(layout)];
        Self { components }
    }

    /// The digest of one component.
    pub fn component(&self, component: Component) -> Digest {
        self.components[component as usize]
    }

    /// The first component in which the two differ.
    pub fn first_difference(&self, other: &Self) -> Option<Component> {
        Component::ALL.into_iter().find(|&component| self.component(component) != other.component(component))
    }

    /// What page names start from: [`Self::digest`].
    pub fn kv(&self) -> KvIdentity {
        KvIdentity::from_digest(self.digest().0)
    }

    /// One digest over all components, in order.
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(IDENTITY_CONTEXT);
        for digest in &self.components {
            hasher.update(&digest.0);
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

/// Integers as u64 and floats as their bits, little-endian; strings behind their length.
struct Fields(blake3::Hasher);

impl Fields {
    fn new(context: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(context))
    }

    fn integer(&mut self, value: usize) -> &mut Self {
        self.0.update(&(value as u64).to_le_bytes());
        self
    }

    fn float(&mut self, value: f32) -> &mut Self {
        self.0.update(&value.to_bits().to_le_bytes());
        self
    }

    /// A flag, then the value where there is one.
    fn optional_float(&mut self, value: Option<f32>) -> &mut Self {
        self.integer(value.is_some().into());
        if let Some(value) = value {
            self.float(value);
        }
        self
    }

    fn text(&mut self, value: &str) -> &mut Self {
        self.integer(value.len()).0.update(value.as_bytes());
        self
    }

    fn rotation(&mut self, rope: &RopeConfig) -> &mut Self {
        let style = match rope.style {
            RopeStyle::Norm => 0,
            RopeStyle::Neox => 1,
        };
        self.float(rope.base).integer(rope.rotated).integer(style)
    }

    fn digest(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// The context is left out: it limits positions, it changes no value. So are the parts: which of them a model has is a fact
/// of its tensors. Suppressed tokens limit a choice, and are among the tokenizer's metadata.
fn config_digest(config: &ModelConfig) -> Digest {
    let ModelConfig {
        architecture,
        hidden,
        vocab,
        context: _,
        query_heads,
        kv_heads,
        head_dim,
        layers,
        parts: _,
        norm_eps,
        post_norm_eps,
        embedding_norm,
        logit_scale,
        logit_soft_cap,
        suppressed_tokens: _,
    } = config;
    // Networks and rotations stand once, as the first layer has them; further down are those of all layers where one differs.
    let first =
        DenseConfig { width: layers.first().map_or(0, |layer| layer.feed_forward.width), activation: Activation::Silu };
    let rope = layers.iter().find_map(|layer| layer.rope).unwrap_or(RopeConfig {
        base: 0.0,
        rotated: 0,
        style: RopeStyle::Norm,
    });
    let mut fields = Fields::new(CONFIG_CONTEXT);
    fields.text(architecture).integer(*hidden).integer(first.width).integer(*vocab);
    fields.integer(*query_heads).integer(*kv_heads).integer(*head_dim).integer(layers.len());
    for layer in layers {
        // A window is never 0, so 0 stands for none.
        fields.integer(layer.window.unwrap_or(0) as usize).integer(layer.rope.is_some().into());
    }
    fields.float(*norm_eps).float(*post_norm_eps).rotation(&rope);
    fields.integer((*embedding_norm).into()).optional_float(*logit_scale).optional_float(*logit_soft_cap);
    if layers.iter().any(|layer| layer.feed_forward != first || layer.rope.is_some_and(|other| other != rope)) {
        for layer in layers {
            let DenseConfig { width, activation: Activation::Silu } = layer.feed_forward;
            fields.integer(width).rotation(&layer.rope.unwrap_or(rope));
        }
    }
    fields.digest()
}

/// Activation bits and groups are those of [`muser_kernels::activations::ActivationFormat`].
fn arithmetic_digest() -> Digest {
    let mut fields = Fields::new(ARITHMETIC_CONTEXT);
    fields.text(ARITHMETIC_VERSION).integer(PAGE_ROWS).integer(SEGMENT_PAGES);
    for (bits, group) in [(8, 256), (8, 32)] {
        fields.integer(bits).integer(group);
    }
    fields.digest()
}

fn layout_digest(layout: KvLayout) -> Digest {
    let mut fields = Fields::new(LAYOUT_CONTEXT);
    fields.integer(match layout {
        // Codes of Hadamard-transformed vectors (rule 8b).
        KvLayout::Q8 => 0,
        KvLayout::F16 => 1,
    });
    fields.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LayerConfig, LayerParts, Part};

    const ROPE: RopeConfig = RopeConfig { base: 1e4, rotated: 128, style: RopeStyle::Norm };

    fn layer(window: Option<u32>, rope: Option<RopeConfig>) -> LayerConfig {
        LayerConfig { window, rope, feed_forward: DenseConfig { width: 1536, activation: Activation::Silu } }
    }

    fn config() -> ModelConfig {
        ModelConfig {
            architecture: "muse-glimmer",
            hidden: 512,
            vocab: 4096,
            context: 2048,
            query_heads: 4,
            kv_heads: 2,
            head_dim: 128,
            parts: LayerParts {
                qkv_biases: Part::Absent,
                other_biases: Part::Absent,
                qk_norms: Part::Required,
                attention_gate: Part::Required,
                post_norms: Part::Required,
            },
            layers: vec![layer(Some(256), Some(ROPE)), layer(None, None)],
            norm_eps: 1e-5,
            post_norm_eps: 1e-8,
            embedding_norm: true,
            logit_scale: Some(0.5),
            logit_soft_cap: Some(20.0),
            suppressed_tokens: [].into(),
        }
    }

    const FILE: FileDigest = FileDigest { tensors: Digest([1; 32]), tokenizer: Digest([2; 32]) };

    fn identity(change: impl FnOnce(&mut ModelConfig)) -> Identity {
        let mut config = config();
        change(&mut config);
        Identity::new(&FILE, &config, KvLayout::Q8)
    }

    #[test]
    fn every_field_that_changes_a_value_changes_the_configuration() {
        let changes: [fn(&mut ModelConfig); 22] = [
            |c| c.architecture = "llama",
            |c| c.hidden += 1,
            |c| c.layers.iter_mut().for_each(|layer| layer.feed_forward.width += 1),
            |c| c.layers[0].feed_forward.width += 1,
            |c| c.layers[1].feed_forward.width += 1,
            |c| c.vocab += 1,
            |c| c.query_heads += 1,
            |c| c.kv_heads += 1,
            |c| c.head_dim += 1,
            |c| c.layers[0].window = Some(255),
            |c| c.layers[0].window = None,
            |c| c.layers[1].rope = Some(ROPE),
            |c| c.layers[1].rope = Some(RopeConfig { base: 1e5, ..ROPE }),
            |c| c.layers[1].rope = Some(RopeConfig { rotated: 64, ..ROPE }),
            |c| c.layers[0].rope = Some(RopeConfig { base: 1e5, ..ROPE }),
            |c| c.layers[0].rope = None,
            |c| c.norm_eps = 1e-6,
            |c| c.post_norm_eps = 1e-5,
            |c| c.layers[0].rope = Some(RopeConfig { style: RopeStyle::Neox, ..ROPE }),
            |c| c.embedding_norm = false,
            |c| c.logit_scale = None,
            |c| c.logit_soft_cap = Some(30.0),
        ];
        let mut seen = vec![identity(|_| {}).digest()];
        for change in changes {
            let changed = identity(change);
            assert_eq!(changed.first_difference(&identity(|_| {})), Some(Component::Configuration));
            assert!(!seen.contains(&changed.digest()));
            seen.push(changed.digest());
        }
    }

    #[test]
    fn the_context_length_is_not_part_of_it() {
        assert_eq!(identity(|c| c.context = 1), identity(|_| {}));
    }

    #[test]
    fn the_first_difference_is_named() {
        let ours = identity(|_| {});
        let other = |file: FileDigest, layout| Identity::new(&file, &config(), layout);
        assert_eq!(ours.first_difference(&ours), None);
        assert_eq!(ours.first_difference(&other(FILE, KvLayout::F16)), Some(Component::KvLayout));
        let tensors = FileDigest { tensors: Digest([9; 32]), ..FILE };
        assert_eq!(ours.first_difference(&other(tensors, KvLayout::F16)), Some(Component::Tensors));
        let tokenizer = FileDigest { tokenizer: Digest([9; 32]), ..FILE };
        assert_eq!(ours.first_difference(&other(tokenizer, KvLayout::Q8)), Some(Component::Tokenizer));
    }
}
