//! A warm engine allocates nothing per step of decode. Alone in its binary, because the counter sees the whole process.

use std::alloc::System;
use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_engine::engine::{Generate, Job, PrefixReuse, RequestEvent, RequestId};
use muser_engine::{ChunkRows, Engine, EngineSettings, LogitBias, LogprobsStage, LogprobsWanted, SamplingSettings};
use muser_kernels::cpu::Kernels;
use muser_kernels::formats::WeightType;
use muser_kv::{KvIdentity, KvLayout};
use muser_model::{Executor, Model};
use muser_synthetic::small::{Architecture, GlimmerOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::ModelFiles;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CONTEXT: u32 = 512;

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
        context: CONTEXT,
        rope_base: 10_000.0,
        seed: 1,
    };
    let file = generate(&spec, Storage { weight_type: &|_| WeightType::F16, quantise: None }).unwrap();
    Arc::new(Model::load(Arc::new(ModelFiles::from_bytes(file).unwrap()), NonZeroUsize::MIN).unwrap())
}

/// Every stage of the sampler at work.
fn sampling(seed: u64) -> SamplingSettings {
    SamplingSettings {
        seed,
        temperature: 0.9,
        logit_bias: vec![LogitBias { token: 3, bias: f32::NEG_INFINITY }, LogitBias { token: 9, bias: 1.0 }],
        repeat_penalty: 1.2,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        penalty_tokens: 64,
        top_k: 100,
        typical_p: 0.95,
        top_p: 0.95,
        min_p: 0.01,
    }
}

#[test]
fn a_warm_step_of_decode_allocates_nothing_but_each_token_s_list_of_likeliest_tokens_if_that_is_asked_for() {
    assert_eq!(allocations(None), 0);
    assert_eq!(allocations(Some(LogprobsWanted { count: 5, stage: LogprobsStage::Model })), 3 * 350);
}

/// Allocations of 350 steps of three sequences, whatever the sampler does.
fn allocations(logprobs: Option<LogprobsWanted>) -> usize {
    let rows = NonZeroUsize::new(64).unwrap();
    let executor = Executor::new(model(), Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
    let settings = EngineSettings {
        context: CONTEXT as usize,
        kv: KvLayout::F16,
        identity: KvIdentity::PROCESS_LOCAL,
        budget_bytes: 1 << 30,
        prefix_bytes_max: 1 << 30,
        installed_bytes_max: 0,
        running_max: NonZeroUsize::new(3).unwrap(),
        waiting_max: 3,
        chunk: ChunkRows { alone: rows, while_decoding: rows },
    };
    let mut engine = Engine::new(executor, settings).unwrap();
    let mut tokens = 0;
    let mut on_event = |_: RequestId, event| tokens += usize::from(matches!(event, RequestEvent::Token(_)));
    // A first conversation takes every page that the others will need, and grows every table to the context.
    let job = |prompt: Vec<u32>, tokens_max, reuse| {
        let generate = Generate {
            tokens_max: Some(tokens_max),
            context: CONTEXT as usize,
            stop_tokens: [299; 2].into(),
            sampling: SamplingSettings {
                logit_bias: vec![LogitBias { token: 299, bias: f32::NEG_INFINITY }],
                ..sampling(1)
            },
            logprobs,
        };
        Job::generate(prompt, reuse, generate)
    };
    for seed in 0..3 {
        engine.submit(job(vec![seed; 100], 411, PrefixReuse::Isolate)).unwrap();
    }
    while engine.has_work() {
        engine.step(&mut on_event).unwrap();
    }
    for seed in 0..3 {
        engine.submit(job(vec![seed + 5; 40], 400, PrefixReuse::Share)).unwrap();
    }
    while engine.step(&mut on_event).unwrap().decode_rows < 3 {}
    // Steps 2 to 352: over page borders, and past the window of the local layer.
    let region = Region::new(COUNTING);
    for _ in 0..350 {
        assert_eq!(engine.step(&mut on_event).unwrap().decode_rows, 3);
    }
    let change = region.change();
    assert_eq!(change.reallocations, 0);
    assert!(tokens > 3 * (411 + 350));
    change.allocations
}
