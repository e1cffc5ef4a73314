//! Small random models of different shapes, and other requests that keep engines busy.

use std::num::NonZeroUsize;

use muser_engine::ChunkRows;
use muser_engine::engine::{PrefixReuse, RequestEvent};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_kernels::formats::WeightType;
use muser_synthetic::small::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, Storage, generate};
use tokio::task::JoinHandle;

use crate::world::{CONTEXT, Machine, machine_with, request};

pub const VOCAB: u32 = 300;

/// Keys that a query of a local layer sees, itself included.
pub const WINDOW: usize = 100;

/// A model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Every layer sees every key.
    Full,
    /// Three layers of four see a window.
    Windowed,
}

impl Attention {
    /// True for each layer with a local window.
    pub fn local_layers(self) -> [bool; 4] {
        match self {
            Self::Full => [false; 4],
            Self::Windowed => [true, true, true, false],
        }
    }

    fn architecture(self) -> Architecture {
        match self {
            Self::Full => {
                Architecture::Llama(LlamaOptions { tied_output: true, rope_factors: true, qkv_biases: false })
            }
            Self::Windowed => Architecture::MuseGlimmer(GlimmerOptions {
                window: u32::try_from(WINDOW).unwrap(),
                local_layers: self.local_layers().to_vec(),
            }),
        }
    }
}

/// The file of a small model.
pub fn small_file(attention: Attention) -> Vec<u8> {
    file(attention, [4, 2, 32])
}

/// The file of a model whose pages are large for what they cost to compute: 8 MiB for 64 rows in f16.
pub fn fat_file() -> Vec<u8> {
    file(Attention::Full, [16, 16, 128])
}

fn file(attention: Attention, [layers, kv_heads, head_dim]: [u32; 3]) -> Vec<u8> {
    let spec = ModelSpec {
        architecture: attention.architecture(),
        layers,
        hidden: 64,
        query_heads: kv_heads.max(4),
        kv_heads,
        head_dim,
        ffn: 96,
        vocab: VOCAB,
        context: u32::try_from(CONTEXT).unwrap(),
        rope_base: 10_000.0,
        seed: 5,
    };
    generate(&spec, Storage { weight_type: &|_| WeightType::F16, quantise: None }).unwrap()
}

/// A machine with a small model, which computes in small steps.
pub fn small(attention: Attention, kv: KvLayout) -> Machine {
    let rows = |rows| NonZeroUsize::new(rows).unwrap();
    machine_with(small_file(attention), kv, |settings| {
        settings.chunk = ChunkRows { alone: rows(96), while_decoding: rows(48) };
    })
}

pub fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u32(..VOCAB)).collect()
}

/// Requests of random lengths, one after the other until this is dropped.
pub struct Company(JoinHandle<()>);

impl Drop for Company {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps an engine busy with other prompts.
pub fn company(host: &EngineHost, seed: u64) -> Company {
    let host = host.clone();
    Company(tokio::spawn(async move {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            let prompt = tokens(random.u64(..), random.usize(1..200));
            let asked = host.submit(request(&prompt, random.usize(1..40), PrefixReuse::Share)).await;
            let Ok(mut answer) = asked else { return };
            while let Some(timed) = answer.next().await {
                assert!(!matches!(timed.event, RequestEvent::Failed(_)), "{timed:?}");
            }
        }
    }))
}
