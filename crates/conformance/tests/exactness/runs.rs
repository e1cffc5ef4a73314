//! Models and runs on the CPU, for tests that go no further.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_conformance::backend::{self, CpuVariant};
use muser_conformance::models::{WeightMix, generated, glimmer_spec};
use muser_conformance::suite::Run;
use muser_conformance::tally::BitTally;
use muser_kernels::cpu::Kernels;
use muser_kv::{KvLayout, SequenceCache};
use muser_model::{Executor, Model};
use muser_weights::gguf::ModelFiles;

/// Kernels, threads and chunk size of a run.
#[derive(Clone, Copy)]
pub struct Way {
    /// Implementation of the operations.
    pub kernels: Kernels,
    /// Threads.
    pub threads: usize,
    /// Rows of a step at most.
    pub chunk: usize,
}

impl Way {
    /// The base line: portable code, one thread, everything at once.
    pub fn plain(rows: usize) -> Self {
        Self { kernels: Kernels::scalar(), threads: 1, chunk: rows }
    }

    /// An executor that computes in this way.
    pub fn executor(&self, model: &Arc<Model>) -> Executor {
        let variant = CpuVariant { kernels: self.kernels, threads: NonZeroUsize::new(self.threads).unwrap() };
        variant.executor(model, NonZeroUsize::new(self.chunk).unwrap()).unwrap()
    }
}

/// The fastest implementation that this machine can run.
pub fn fastest() -> Kernels {
    Kernels::detected()
}

/// The model in the bytes of a file.
pub fn load(file: Vec<u8>) -> Arc<Model> {
    let files = Arc::new(ModelFiles::from_bytes(file).unwrap());
    Arc::new(Model::load(files, NonZeroUsize::MIN).unwrap())
}

/// A `muse-glimmer` of one layer per flag: local with `window`, or global.
pub fn glimmer(mix: &WeightMix, window: u32, local_layers: &[bool], context: u32) -> Arc<Model> {
    load(generated(&glimmer_spec(mix, window, local_layers, context), mix))
}

/// An empty cache of its own pool.
pub fn new_cache(model: &Model, layout: KvLayout) -> SequenceCache {
    backend::new_cache(model, layout).unwrap()
}

/// Computes `tokens` from an empty cache.
pub fn run(model: &Arc<Model>, layout: KvLayout, way: &Way, tokens: &[u32]) -> Run {
    let mut executor = way.executor(model);
    let mut run = Run::begin(&executor, layout).unwrap();
    run.extend(&mut executor, tokens, way.chunk).unwrap();
    run
}

/// Fails unless both runs have the same bits.
#[track_caller]
pub fn assert_same(got: &Run, base: &Run, what: &dyn Display) {
    let mut tally = BitTally::default();
    got.compare(base, what, &mut tally);
    tally.equal(&format_args!("{what}: number of logits"), &base.logits.len(), &got.logits.len());
    tally.assert_clean();
}
