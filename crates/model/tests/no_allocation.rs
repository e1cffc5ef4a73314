//! A warm decode allocates nothing, on any thread. Alone in its binary, because the counter sees the whole process.

use std::alloc::System;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::cpu::{Isa, Kernels};
use muser_kernels::formats::WeightType;
use muser_kv::{KvLayout, PagePool, SequenceCache};
use muser_model::{Executor, LogitsWanted, Model, SequenceInput};
use muser_synthetic::small::{Architecture, GlimmerOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::ModelFiles;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Rows of the first chunk, and of each further one.
const CHUNK: usize = 150;
const CONTEXT: usize = 512;

fn model() -> Arc<Model> {
    let options = GlimmerOptions { window: 100, local_layers: vec![true, false] };
    let spec = ModelSpec {
        architecture: Architecture::MuseGlimmer(options),
        layers: 2,
        hidden: 64,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        vocab: 300,
        context: u32::try_from(CONTEXT).unwrap(),
        rope_base: 10_000.0,
        seed: 1,
    };
    let file = generate(&spec, Storage { weight_type: &|_| WeightType::F16, quantise: None }).unwrap();
    let files = Arc::new(ModelFiles::from_bytes(file).unwrap());
    Arc::new(Model::load(files, NonZeroUsize::MIN).unwrap())
}

/// An executor and a cache whose pool has every page it will need.
struct Decode {
    executor: Executor,
    cache: SequenceCache,
    next: u32,
}

impl Decode {
    fn new(model: &Arc<Model>, kernels: Kernels, threads: usize, layout: KvLayout) -> Self {
        let (threads, rows) = (NonZeroUsize::new(threads).unwrap(), NonZeroUsize::new(CHUNK).unwrap());
        let executor = Executor::new(Arc::clone(model), kernels, threads, rows).unwrap();
        let (spec, pool) = (model.cache_spec(layout, CONTEXT).unwrap(), PagePool::new(usize::MAX));
        pool.reserve(spec.layout().page_bytes(), spec.most_pages(CONTEXT, CHUNK)).unwrap();
        Self { executor, cache: SequenceCache::new(spec, pool), next: 7 }
    }

    fn step(&mut self, tokens: &[u32]) {
        let mut batch = [SequenceInput::new(&mut self.cache, tokens, LogitsWanted::Last)];
        let next = &mut self.next;
        let choose = &mut |_, z: &[f32]| {
            let best = (0u32..).zip(z).max_by(|a, b| a.1.total_cmp(b.1));
            *next = best.map_or(0, |(token, _)| token);
        };
        self.executor.forward(&mut batch, choose).unwrap();
        batch[0].outcome.unwrap();
    }

    /// Allocations and reallocations, on all threads, while `count` tokens are decoded.
    fn allocations_of_tokens(&mut self, count: usize) -> usize {
        let region = Region::new(COUNTING);
        for _ in 0..count {
            self.step(&[self.next]);
        }
        let change = region.change();
        change.allocations + change.reallocations
    }
}

/// Allocations per row of a step: the definition of attention, which portable kernels run, keeps the codes of a query in a
/// vector. No other kernel may allocate.
fn expected_per_row(model: &Model, kernels: &Kernels, layout: KvLayout) -> usize {
    let config = model.config();
    let defines = kernels.isa == Isa::Scalar && layout == KvLayout::Q8;
    if defines { config.query_heads * config.layers.len() } else { 0 }
}

#[test]
fn a_warm_decode_allocates_nothing() {
    let model = model();
    let prompt: Vec<u32> = (0..300).map(|token| token * 7 % 300).collect();
    for kernels in Kernels::available() {
        for threads in [1, 2] {
            for layout in [KvLayout::Q8, KvLayout::F16] {
                let what = format!("{} kernels, {threads} threads, {layout:?} cache", kernels.name());
                let per_row = expected_per_row(&model, &kernels, layout);
                let mut decode = Decode::new(&model, kernels, threads, layout);
                decode.step(&prompt[..CHUNK]);
                // The first token finds the table of rotary angles full: it grows, which is one allocation.
                assert_eq!(decode.allocations_of_tokens(1), 1 + per_row, "{what}");
                // 151 to 251 rows: over the border of a page, and past the window of the local layer.
                assert_eq!(decode.allocations_of_tokens(100), 100 * per_row, "{what}");

                // A chunk within the table allocates nothing either: 251 to 300 rows.
                let region = Region::new(COUNTING);
                decode.step(&prompt[..49]);
                assert_eq!(region.change().allocations + region.change().reallocations, 49 * per_row, "{what}");
                // From 300 to 511 rows the table grows once more, to the context; nothing else allocates.
                assert_eq!(decode.allocations_of_tokens(211), 1 + 211 * per_row, "{what}");
            }
        }
    }
}
