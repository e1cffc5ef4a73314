//! Test fixtures of this crate: the model that ships with the program, behind an [`EngineHost`].

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use muser_engine::engine::{Generate, Job, PrefixReuse};
use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::KvIdentity;
use muser_model::testing::{Faults, Faulty};
use muser_model::{Executor, Model};
use muser_weights::gguf::ModelFiles;
use tokio::runtime::{Builder, Runtime};

static SHIPPED: &[u8] = include_bytes!("../../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// An engine behind its host, with at most `rows` rows in a step.
pub fn start(rows: usize) -> (EngineHost, JoinHandle<()>) {
    start_faulty(rows, Arc::new(|_| None))
}

/// One whose device fails in steps that `faults` chooses.
pub fn start_faulty(rows: usize, faults: Faults) -> (EngineHost, JoinHandle<()>) {
    let files = Arc::new(ModelFiles::from_bytes(SHIPPED.to_vec()).unwrap());
    let model = Arc::new(Model::load(files, NonZeroUsize::MIN).unwrap());
    let rows = NonZeroUsize::new(rows).unwrap();
    let executor = Executor::new(model, Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
    let settings = EngineSettings {
        context: 2048,
        kv: KvLayout::Q8,
        identity: KvIdentity::PROCESS_LOCAL,
        budget_bytes: 64 << 20,
        prefix_bytes_max: 32 << 20,
        installed_bytes_max: 64 << 20,
        running_max: NonZeroUsize::new(2).unwrap(),
        waiting_max: 4,
        chunk: ChunkRows::DEFAULT,
    };
    EngineHost::start(Engine::new(Faulty::new(executor, faults), settings).unwrap()).unwrap()
}

pub fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// A request that chooses the likeliest tokens, and shares its prefix.
pub fn request(prompt: Vec<u32>, tokens_max: usize) -> Job {
    Job::generate(prompt, PrefixReuse::Share, greedy(tokens_max))
}

/// The same that keeps to itself.
pub fn isolated(prompt: Vec<u32>, tokens_max: usize) -> Job {
    Job::generate(prompt, PrefixReuse::Isolate, greedy(tokens_max))
}

/// The likeliest tokens.
pub fn greedy(tokens_max: usize) -> Generate {
    Generate {
        tokens_max: Some(tokens_max),
        context: 2048,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: None,
    }
}
