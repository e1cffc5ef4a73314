//! A whole small model, computed by a device before it is used: its logits and pages have the bits of checked-in digests.
//!
//! The model is of the architecture that the kernels were written for: one layer with a window and one without, weights of
//! `Q4_K` and `Q6_K`, heads of 128. A prompt of 70 rows crosses a page and passes the window, and two rows of decode follow, in
//! each layout of pages. The digests are the CPU's; a test computes them again, so at a start only the device computes.

use std::num::NonZeroUsize;

use muser_kernels::formats::WeightType;
use muser_kv::{KvLayout, PagePool, SequenceCache};
use muser_model::{Forward, LogitsWanted, SequenceInput, StepError};
use muser_synthetic::small::{Architecture, GenerateError, GlimmerOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::{ModelFiles, ModelOpenError};

/// Rows of a step at most.
pub(crate) const ROWS_MAX: NonZeroUsize = NonZeroUsize::new(128).expect("not zero");
/// Rows of the prompt.
const PROMPT: usize = 70;
/// Rows that are computed one by one behind it.
const DECODED: usize = 2;
/// Tokens of the model.
const VOCAB: u32 = 300;
/// Positions of the model.
const CONTEXT: u32 = 128;

/// Digests of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    /// Layout of the pages.
    pub layout: KvLayout,
    /// Digest of all logits, row by row.
    pub logits: u64,
    /// Digest of the bytes of all pages, layer by layer.
    pub pages: u64,
}

/// The digests of the one right result in each layout.
pub(crate) const GOLDEN: [Digests; 2] = [
    Digests { layout: KvLayout::Q8, logits: 0xa693_5161_8265_ad52, pages: 0x5528_cd34_7aeb_b60e },
    Digests { layout: KvLayout::F16, logits: 0x9c63_6761_2904_34d1, pages: 0x5606_4a46_a318_9a52 },
];

/// The model cannot be made or computed: a fault of this program, or a device that fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenPassError {
    /// The generator refuses the specification.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The generated file is refused.
    #[error(transparent)]
    File(#[from] ModelOpenError),
    /// The generated model is refused, or the device has no room for it.
    #[error(transparent)]
    Load(#[from] muser_model::LoadError),
    /// The model has no cache.
    #[error(transparent)]
    Cache(#[from] muser_model::CacheError),
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A value is not finite.
    #[error(transparent)]
    NotFinite(#[from] muser_model::ForwardError),
}

/// The model's file.
pub(crate) fn model_file() -> Result<ModelFiles, GoldenPassError> {
    let spec = ModelSpec {
        architecture: Architecture::MuseGlimmer(GlimmerOptions { window: 48, local_layers: vec![true, false] }),
        layers: 2,
        hidden: 256,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 128,
        ffn: 512,
        vocab: VOCAB,
        context: CONTEXT,
        rope_base: 10_000.0,
        seed: 17,
    };
    Ok(ModelFiles::from_bytes(generate(&spec, Storage { weight_type: &weight_type, quantise: Some(blocks) })?)?)
}

/// Runs the prompt and the rows behind it with pages of `layout`, in an executor of the model.
pub(crate) fn run(executor: &mut dyn Forward, layout: KvLayout) -> Result<Digests, GoldenPassError> {
    let spec = executor.spec().cache_spec(layout, CONTEXT as usize)?;
    let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
    let tokens: Vec<u32> = (0..VOCAB).cycle().step_by(37).take(PROMPT + DECODED).collect();
    let mut logits = Fnv::new();
    for step in std::iter::once(0..PROMPT).chain((PROMPT..PROMPT + DECODED).map(|row| row..row + 1)) {
        let mut batch = [SequenceInput::new(&mut cache, &tokens[step], LogitsWanted::All)];
        executor.forward(&mut batch, &mut |_, z| z.iter().for_each(|z| logits.add(&z.to_bits().to_le_bytes())))?;
        let [input] = batch;
        input.outcome?;
    }
    let mut pages = Fnv::new();
    for layer in 0..cache.spec().layers().len() {
        cache.pages(layer).iter().for_each(|bytes| pages.add(bytes));
    }
    Ok(Digests { layout, logits: logits.0, pages: pages.0 })
}

fn weight_type(name: &str) -> WeightType {
    let is_six_bit = ["token_embd", "attn_v", "ffn_down", "output."].iter().any(|part| name.contains(part));
    if is_six_bit { WeightType::Q6_K } else { WeightType::Q4_K }
}

/// Blocks with every sub-scale, min and code that the format can say, drawn from the row's values; their float scales keep
/// products near the size of their inputs. Not a quantiser's, whose rounding may change.
fn blocks(ty: WeightType, row: &[f32]) -> Vec<u8> {
    let mut seed = Fnv::new();
    row.iter().for_each(|x| seed.add(&x.to_bits().to_le_bytes()));
    let mut state = seed.0;
    let count = row.len() / ty.block_len();
    let mut out = Vec::with_capacity(count * ty.block_bytes());
    // A linear congruential generator (Knuth, MMIX), whose high bits are good.
    out.resize_with(count * ty.block_bytes(), || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[7]
    });
    let size = 1.0 / (row.len() as f32).sqrt();
    for block in out.chunks_exact_mut(ty.block_bytes()) {
        let mut set = |at: usize, scale: f32| {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        };
        // The divisors are the root mean squares of random bits in units of the scale; the min centres them.
        if ty == WeightType::Q6_K {
            set(208, size / 1370.0);
        } else {
            set(0, size / 260.0);
            set(2, size * 7.5 / 260.0);
        }
    }
    out
}

/// FNV-1a, 64 bits: any chip that computes wrong bits gives another number.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muser_kernels::cpu::Kernels;
    use muser_model::{Executor, Model};

    use super::*;

    #[test]
    fn the_digests_are_those_of_every_kernel_of_the_cpu() {
        let model = Arc::new(Model::load(Arc::new(model_file().unwrap()), NonZeroUsize::MIN).unwrap());
        for kernels in Kernels::available() {
            let mut executor = Executor::new(Arc::clone(&model), kernels, NonZeroUsize::MIN, ROWS_MAX).unwrap();
            let found = GOLDEN.map(|golden| run(&mut executor, golden.layout).unwrap());
            assert_eq!(found, GOLDEN, "{}: {found:#x?}", kernels.name());
        }
    }

    #[test]
    fn the_digests_see_the_last_bit_of_a_logit_and_of_a_page() {
        let digest = |bytes: &[u8]| {
            let mut fnv = Fnv::new();
            fnv.add(bytes);
            fnv.0
        };
        // The published values of FNV-1a.
        assert_eq!((digest(b""), digest(b"a")), (0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c));
        assert_ne!(digest(&[1; 100_000]), digest(&[[1; 99_999].as_slice(), &[0]].concat()));
    }
}
