//! Refusals, of models that cannot run and of steps, change nothing.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_conformance::models::{FLOATS, MIXES, generated, llama_spec, tokens};
use muser_conformance::suite::{Run, Snapshot};
use muser_kv::{AppendError, CacheSpec, KvLayout, LayerSpec, PageLayout, PagePool, SequenceCache};
use muser_model::{LoadError, LogitsWanted, Model, SequenceInput, StepError};
use muser_synthetic::small::LlamaOptions;
use muser_weights::gguf::{Gguf, ModelFiles};

use crate::runs::{Way, assert_same, fastest, glimmer};

const BIASED: LlamaOptions = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };

/// Changes the bytes of a tensor in a file.
fn edit(file: &mut [u8], tensor: &str, change: impl FnOnce(&mut [u8])) {
    let parsed = Gguf::parse(file).unwrap();
    let bytes = parsed.tensors().find(|found| found.name() == tensor).unwrap().bytes().unwrap();
    let (start, len) = (bytes.as_ptr().addr() - file.as_ptr().addr(), bytes.len());
    change(&mut file[start..start + len]);
}

/// Sets elements of a tensor of f32.
fn set(file: &mut [u8], tensor: &str, elements: impl IntoIterator<Item = (usize, f32)>) {
    edit(file, tensor, |bytes| {
        for (index, value) in elements {
            bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        }
    });
}

#[test]
fn weights_that_are_not_finite_are_refused_at_load_by_name() {
    let load = |file| Model::load(Arc::new(ModelFiles::from_bytes(file).unwrap()), NonZeroUsize::MIN);
    for tensor in ["blk.1.ffn_up.weight", "output.weight"] {
        for value in [f32::NAN, f32::INFINITY] {
            let mut file = generated(&llama_spec(&FLOATS, BIASED, 2, 256), &FLOATS);
            set(&mut file, tensor, [(64 * 7 + 3, value)]);
            let refused = load(file).unwrap_err();
            assert!(matches!(&refused, LoadError::Matrix { name, .. } if name == tensor), "{refused}");
            assert!(refused.to_string().contains("row 7"), "{refused}");
        }
    }
    for tensor in ["token_embd.weight", "blk.0.attn_norm.weight", "output_norm.weight", "blk.1.attn_q.bias"] {
        let mut file = generated(&llama_spec(&FLOATS, BIASED, 2, 256), &FLOATS);
        set(&mut file, tensor, [(9, f32::NAN)]);
        let refused = load(file).unwrap_err();
        assert!(matches!(&refused, LoadError::NotFinite { name, block: 9 } if name == tensor), "{refused}");
    }
    let mut file = generated(&llama_spec(&MIXES[1], BIASED, 2, 256), &MIXES[1]);
    // The scale of the fifth block: rows of 96 are three blocks.
    edit(&mut file, "blk.0.attn_v.weight", |bytes| bytes[4 * 34..][..2].copy_from_slice(&0x7e00u16.to_le_bytes()));
    let refused = load(file).unwrap_err().to_string();
    assert!(refused.contains("blk.0.attn_v.weight") && refused.contains("row 1"), "{refused}");
}

/// Two sequences of a model with a window, each some rows in, from one pool.
struct Pair {
    model: Arc<Model>,
    pool: PagePool,
    runs: [Run; 2],
    prompts: [Vec<u32>; 2],
}

impl Pair {
    fn new() -> Self {
        let model = glimmer(&FLOATS, 32, &[true, false], 128);
        let pool = PagePool::new(1 << 24);
        let prompts = [tokens(100, 46), tokens(90, 47)];
        let mut executor = Way::plain(64).executor(&model);
        let runs = [0, 1].map(|number: usize| {
            let cache = SequenceCache::new(model.cache_spec(KvLayout::Q8, 128).unwrap(), pool.clone());
            let mut run = Run { logits: Vec::new(), vocab: model.config().vocab, cache };
            run.extend(&mut executor, &prompts[number][..50], 64).unwrap();
            run
        });
        Self { model, pool, runs, prompts }
    }

    /// A step with these tokens is refused with this error and changes neither the caches nor the pool, and a good step
    /// then gives what it gives without the refusal.
    fn assert_refused(mut self, tokens: [&[u32]; 2], want: &StepError) {
        let mut executor = Way { kernels: fastest(), threads: 2, chunk: 64 }.executor(&self.model);
        let before = self.runs.each_ref().map(|run| Snapshot::of(&run.cache));
        let pages = self.pool.usage().live_pages;
        let [first, second] = &mut self.runs;
        let mut batch = [
            SequenceInput::new(&mut first.cache, tokens[0], LogitsWanted::All),
            SequenceInput::new(&mut second.cache, tokens[1], LogitsWanted::All),
        ];
        let refused = executor.forward(&mut batch, &mut |row, _| panic!("{row:?} of a refused step"));
        assert_eq!(refused.as_ref(), Err(want));
        assert!(self.runs.each_ref().map(|run| Snapshot::of(&run.cache)) == before, "{want}: a cache changed");
        assert_eq!(self.pool.usage().live_pages, pages, "{want}");
        for (run, prompt) in self.runs.iter_mut().zip(&self.prompts) {
            run.extend(&mut executor, &prompt[50..], 64).unwrap();
            let base = crate::runs::run(&self.model, KvLayout::Q8, &Way::plain(prompt.len()), prompt);
            assert_same(run, &base, want);
        }
    }
}

#[test]
fn refused_steps_change_no_cache() {
    let many = tokens(60, 48);
    let unknown = StepError::UnknownToken { token: 301, vocab: 301 };
    Pair::new().assert_refused([&[1, 2], &[3, 301]], &unknown);
    Pair::new().assert_refused([&many[..60], &many[..5]], &StepError::TooManyRows { rows: 65, max: 64 });
    Pair::new().assert_refused([&[1, 2], &[]], &StepError::NoTokens { sequence: 1 });
}

#[test]
fn a_step_past_the_context_changes_no_cache() {
    let many = tokens(29, 49);
    let mut pair = Pair::new();
    let mut executor = Way::plain(64).executor(&pair.model);
    let rest = pair.prompts[1].clone();
    pair.prompts[1] = tokens(100, 47);
    assert_eq!(rest[..50], pair.prompts[1][..50], "both begin alike");
    let prompt = pair.prompts[1].clone();
    pair.runs[1].extend(&mut executor, &prompt[50..100], 64).unwrap();
    let [first, second] = &mut pair.runs;
    let before = [Snapshot::of(&first.cache), Snapshot::of(&second.cache)];
    let mut batch = [
        SequenceInput::new(&mut first.cache, &[5], LogitsWanted::All),
        SequenceInput::new(&mut second.cache, &many, LogitsWanted::All),
    ];
    let past = StepError::PastContext { position: 128, context: 128 };
    assert_eq!(executor.forward(&mut batch, &mut |_, _| {}), Err(past));
    assert!([Snapshot::of(&first.cache), Snapshot::of(&second.cache)] == before);
    // One token fewer fills the context to the last position.
    let mut batch = [SequenceInput::new(&mut second.cache, &many[1..], LogitsWanted::All)];
    executor.forward(&mut batch, &mut |_, _| {}).unwrap();
    assert_eq!((batch[0].outcome, second.cache.rows()), (Ok(()), 128));
}

#[test]
fn a_cache_that_cannot_grow_refuses_the_step_for_all_and_pages_go_back() {
    // The second cache is made for fewer positions than the model.
    let mut pair = Pair::new();
    let spec = pair.model.cache_spec(KvLayout::Q8, 51).unwrap();
    let mut small = SequenceCache::new(spec, pair.pool.clone());
    std::mem::swap(&mut small, &mut pair.runs[1].cache);
    pair.runs[1].logits.clear();
    let prompt = pair.prompts[1].clone();
    let mut executor = Way::plain(64).executor(&pair.model);
    pair.runs[1].extend(&mut executor, &prompt[..50], 64).unwrap();
    let full = AppendError::ContextFull { rows: 50, chunk: 2, context: 51 };
    refuse_second(&mut pair, &prompt[50..52], StepError::Cache(full));

    // The second cache's rows are still pending.
    let mut pair = Pair::new();
    pair.runs[1].cache.begin(3).unwrap();
    refuse_second(&mut pair, &[1], StepError::Cache(AppendError::AlreadyPending { pending: 3 }));

    // The second cache's pool has no page left.
    let mut pair = Pair::new();
    let page = pair.runs[1].cache.spec().layout().page_bytes();
    let pool = PagePool::new(2 * page);
    pair.runs[1].cache = SequenceCache::new(pair.model.cache_spec(KvLayout::Q8, 128).unwrap(), pool.clone());
    pair.runs[1].logits.clear();
    {
        let mut executor = executor_for(&pair);
        pair.runs[1].extend(&mut executor, &prompt[..50], 64).unwrap();
    }
    let mut executor = executor_for(&pair);
    let before = [0, 1].map(|number: usize| Snapshot::of(&pair.runs[number].cache));
    let [first, second] = &mut pair.runs;
    let mut batch = [
        SequenceInput::new(&mut first.cache, &[4; 20], LogitsWanted::None),
        SequenceInput::new(&mut second.cache, &[4; 20], LogitsWanted::None),
    ];
    let refused = executor.forward(&mut batch, &mut |_, _| {});
    assert!(matches!(refused, Err(StepError::Cache(AppendError::OutOfPages(_)))), "{refused:?}");
    assert!([0, 1].map(|number: usize| Snapshot::of(&pair.runs[number].cache)) == before);
    assert_eq!(pool.usage().live_bytes, 2 * page);
}

fn executor_for(pair: &Pair) -> muser_model::Executor {
    Way { kernels: fastest(), threads: 2, chunk: 64 }.executor(&pair.model)
}

/// A step of one token for the first sequence and `tokens` for the second is refused and leaves both as they were.
fn refuse_second(pair: &mut Pair, tokens: &[u32], want: StepError) {
    let mut executor = executor_for(pair);
    let before = [0, 1].map(|number: usize| Snapshot::of(&pair.runs[number].cache));
    let [first, second] = &mut pair.runs;
    let mut batch = [
        SequenceInput::new(&mut first.cache, &[1], LogitsWanted::None),
        SequenceInput::new(&mut second.cache, tokens, LogitsWanted::None),
    ];
    assert_eq!(executor.forward(&mut batch, &mut |_, _| {}), Err(want));
    assert!([0, 1].map(|number: usize| Snapshot::of(&pair.runs[number].cache)) == before);
}

#[test]
fn caches_of_another_shape_are_refused() {
    let local = |window| vec![LayerSpec::local(window), LayerSpec::GLOBAL];
    let page = |layout, heads, dim| PageLayout::new(layout, heads, dim).unwrap();
    let q8 = page(KvLayout::Q8, 2, 32);
    let shapes = [
        (local(33), q8),
        (vec![LayerSpec::GLOBAL; 2], q8),
        (local(32)[..1].to_vec(), q8),
        (local(32), page(KvLayout::Q8, 4, 32)),
        (local(32), page(KvLayout::Q8, 2, 64)),
        // As such the model's shape, but not in one step with a cache of the other layout.
        (local(32), page(KvLayout::F16, 2, 32)),
    ];
    for (layers, page) in shapes {
        let mut pair = Pair::new();
        let spec = CacheSpec::new(layers, page, 128, 1).unwrap();
        pair.runs[1].cache = SequenceCache::new(Arc::new(spec), pair.pool.clone());
        refuse_second(&mut pair, &[1], StepError::ForeignCache);
    }
}

#[test]
fn a_step_of_no_sequences_does_nothing() {
    let model = glimmer(&FLOATS, 32, &[true, false], 128);
    let mut executor = Way::plain(8).executor(&model);
    executor.forward(&mut [], &mut |row, _| panic!("{row:?}")).unwrap();
    executor.run_layers(&mut [], 0..2, &mut []).unwrap();
    assert_eq!(executor.embed(&[]), Ok(Vec::new()));
}

#[test]
fn stages_are_refused_like_steps() {
    let mut pair = Pair::new();
    let mut executor = executor_for(&pair);
    let before = Snapshot::of(&pair.runs[0].cache);
    let mut batch = [SequenceInput::new(&mut pair.runs[0].cache, &[1, 2], LogitsWanted::Last)];
    let mut hidden = vec![0.0; 128];
    let mut no_hidden = |layer: usize, _: &[f32]| panic!("layer {layer} of a refused step");
    let capture = executor.forward_capturing(&mut batch, &[0, 2], &mut no_hidden, &mut |_, _| {});
    assert_eq!(capture, Err(StepError::NoSuchLayer { layer: 2, layers: 2 }));
    let range = executor.run_layers(&mut batch, 0..3, &mut hidden);
    assert_eq!(range, Err(StepError::NoSuchLayer { layer: 2, layers: 2 }));
    let length = executor.run_layers(&mut batch, 0..2, &mut hidden[..127]);
    assert_eq!(length, Err(StepError::HiddenLength { got: 127, want: 128 }));
    assert_eq!(executor.embed(&[1, 301]), Err(StepError::UnknownToken { token: 301, vocab: 301 }));
    assert_eq!(executor.embed(&[1; 65]), Err(StepError::TooManyRows { rows: 65, max: 64 }));
    assert!(Snapshot::of(&pair.runs[0].cache) == before);
}

#[test]
fn later_layers_without_the_first_are_refused() {
    let mut pair = Pair::new();
    let mut executor = executor_for(&pair);
    let before = Snapshot::of(&pair.runs[0].cache);
    let mut hidden = vec![0.0; 128];
    let mut batch = [SequenceInput::new(&mut pair.runs[0].cache, &[1, 2], LogitsWanted::None)];
    let refused = executor.run_layers(&mut batch, 1..2, &mut hidden);
    assert_eq!(refused, Err(StepError::NotBegun { pending: 0, rows: 2 }));
    assert!(Snapshot::of(&pair.runs[0].cache) == before);
    // Begun with another number of rows.
    pair.runs[0].cache.begin(1).unwrap();
    let mut batch = [SequenceInput::new(&mut pair.runs[0].cache, &[1, 2], LogitsWanted::None)];
    let refused = executor.run_layers(&mut batch, 1..2, &mut hidden);
    assert_eq!(refused, Err(StepError::NotBegun { pending: 1, rows: 2 }));
}
