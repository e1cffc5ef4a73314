//! Models, engines and requests for the tests, and what a request comes to.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use muser_engine::engine::{
    Flow, Generate, Installed, Job, PrefixReuse, RequestError, RequestEvent, RequestId, StepRefused, StepReport,
    Verdict,
};
use muser_engine::{
    ChunkRows, Engine, EngineSettings, Finish, LogprobsStage, LogprobsWanted, Outcome, Sampler, SamplerWorkspace,
    SamplingSettings,
};
use muser_kernels::cpu::Kernels;
use muser_kernels::formats::WeightType;
use muser_kv::{KvIdentity, KvLayout, PagePool, SequenceCache};
use muser_model::{
    DeviceDescription, Executor, Forward, LogitsRow, LogitsWanted, Model, ModelSpec as LoadedSpec, SequenceInput,
    StepError,
};
use muser_synthetic::small::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::{Gguf, GgufWriter, ModelFiles};

pub const LAYOUTS: [KvLayout; 2] = [KvLayout::Q8, KvLayout::F16];
pub const VOCAB: u32 = 300;
pub const CONTEXT: usize = 1024;

/// A `muse-glimmer` with one layer per flag, local or global.
pub fn glimmer(window: u32, local_layers: &[bool]) -> Arc<Model> {
    let options = GlimmerOptions { window, local_layers: local_layers.to_vec() };
    model(Architecture::MuseGlimmer(options), u32::try_from(local_layers.len()).unwrap())
}

/// A `llama` of two layers.
pub fn llama() -> Arc<Model> {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
    model(Architecture::Llama(options), 2)
}

/// A `qwen2` of two layers: biases on queries, keys and values, and an output head of its own.
pub fn qwen2() -> Arc<Model> {
    model(Architecture::Qwen2 { tied_output: false }, 2)
}

/// A `qwen3` of two layers: norms on the heads of queries and keys, and the embeddings as output head.
pub fn qwen3() -> Arc<Model> {
    model(Architecture::Qwen3 { tied_output: true }, 2)
}

fn model(architecture: Architecture, layers: u32) -> Arc<Model> {
    load(file(architecture, layers, WeightType::F16))
}

fn load(file: Vec<u8>) -> Arc<Model> {
    Arc::new(Model::load(Arc::new(ModelFiles::from_bytes(file).unwrap()), NonZeroUsize::MIN).unwrap())
}

fn file(architecture: Architecture, layers: u32, weight_type: WeightType) -> Vec<u8> {
    let spec = ModelSpec {
        architecture,
        layers,
        hidden: 64,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        vocab: VOCAB,
        context: u32::try_from(CONTEXT).unwrap(),
        rope_base: 10_000.0,
        seed: 5,
    };
    generate(&spec, Storage { weight_type: &|_| weight_type, quantise: None }).unwrap()
}

/// A `llama` in whose second layer token 299, and no other, makes a value overflow.
pub fn with_a_bad_token() -> Arc<Model> {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
    let mut file = file(Architecture::Llama(options), 2, WeightType::F32);
    // The first element of the residual stream is zero but for token 299, and layers add nothing to it; there the norm has
    // a factor at which anything but zero overflows.
    set(&mut file, "token_embd.weight", (0..300).map(|token| (64 * token, if token == 299 { 9.0 } else { 0.0 })));
    for layer in 0..2 {
        set(&mut file, &format!("blk.{layer}.attn_output.weight"), (0..128).map(|column| (column, 0.0)));
        set(&mut file, &format!("blk.{layer}.ffn_down.weight"), (0..96).map(|column| (column, 0.0)));
    }
    set(&mut file, "blk.1.ffn_norm.weight", [(0, f32::MAX)]);
    load(file)
}

/// A `llama` whose file says that these tokens are never to be chosen.
pub fn suppressing(tokens: &[u32]) -> Arc<Model> {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
    let file = file(Architecture::Llama(options), 2, WeightType::F32);
    let (parsed, mut writer) = (Gguf::parse(&file).unwrap(), GgufWriter::new());
    writer.copy_metadata(parsed.metadata()).unwrap();
    writer.set_array("tokenizer.ggml.suppress_tokens", tokens).unwrap();
    for tensor in parsed.tensors() {
        writer.tensor(tensor.name(), tensor.weight().unwrap().ty, tensor.shape()).unwrap();
    }
    let mut out = Vec::new();
    let data = |name: &str| parsed.tensor(name).and_then(|tensor| tensor.bytes()).unwrap();
    writer.write(&mut out, |tensor, out| out.write_all(data(tensor.name()))).unwrap();
    load(out)
}

/// Sets elements of a tensor of f32 in a file.
fn set(file: &mut [u8], tensor: &str, elements: impl IntoIterator<Item = (usize, f32)>) {
    let parsed = Gguf::parse(file).unwrap();
    let bytes = parsed.tensors().find(|found| found.name() == tensor).unwrap().bytes().unwrap();
    let (start, len) = (bytes.as_ptr().addr() - file.as_ptr().addr(), bytes.len());
    for (index, value) in elements {
        file[start..start + len][4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    }
}

pub fn non_zero(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Roomy settings: everything fits and is kept.
pub fn roomy(kv: KvLayout) -> EngineSettings {
    EngineSettings {
        context: CONTEXT,
        kv,
        identity: KvIdentity::from_digest([7; 32]),
        budget_bytes: 1 << 30,
        prefix_bytes_max: 1 << 29,
        installed_bytes_max: 0,
        running_max: non_zero(8),
        waiting_max: 100,
        chunk: ChunkRows { alone: non_zero(96), while_decoding: non_zero(16) },
    }
}

/// Bytes of `pages` pages of the models here.
pub fn pages(model: &Model, kv: KvLayout, pages: usize) -> usize {
    pages * model.cache_spec(kv, CONTEXT).unwrap().layout().page_bytes()
}

pub fn engine(model: &Arc<Model>, settings: EngineSettings) -> Engine {
    Engine::new(executor(model), settings).unwrap()
}

fn executor(model: &Arc<Model>) -> Executor {
    Executor::new(Arc::clone(model), Kernels::detected(), NonZeroUsize::MIN, non_zero(160)).unwrap()
}

/// A generation, which may be asked for more than once.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub tokens_max: Option<usize>,
    pub context: usize,
    pub stop_tokens: Arc<[u32]>,
    pub sampling: SamplingSettings,
    pub logprobs: Option<LogprobsWanted>,
    pub reuse: PrefixReuse,
    pub flow: Flow,
}

impl Request {
    pub fn job(&self) -> Job {
        Job::generate(&*self.prompt, self.reuse, self.generate()).in_turns_of(self.flow)
    }

    /// The job that starts from a handoff of the prompt.
    pub fn job_from(&self, installed: Installed) -> Job {
        let (last, prompt) = self.prompt.split_last().unwrap();
        assert_eq!(installed.tokens(), prompt);
        Job::generate_from(installed, *last, self.generate()).in_turns_of(self.flow)
    }

    fn generate(&self) -> Generate {
        let Self { tokens_max, context, ref stop_tokens, ref sampling, logprobs, .. } = *self;
        Generate { tokens_max, context, stop_tokens: Arc::clone(stop_tokens), sampling: sampling.clone(), logprobs }
    }
}

/// A greedy request for `tokens_max` tokens, which shares what it computes.
pub fn greedy(prompt: &[u32], tokens_max: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        tokens_max: Some(tokens_max),
        context: CONTEXT,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: None,
        reuse: PrefixReuse::Share,
        flow: Flow::default(),
    }
}

pub fn random_tokens(random: &mut fastrand::Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.u32(..VOCAB)).collect()
}

/// Events recorded for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    pub reused: Option<usize>,
    pub tokens: Vec<u32>,
    /// The logits of every token, as bits, one after the other.
    pub logits: Vec<u32>,
    /// Logprobs of the chosen tokens, and all alternatives.
    pub chosen_logprobs: Vec<f64>,
    pub alternatives: Vec<(u32, f64)>,
    pub computed: Vec<usize>,
    pub preempted: usize,
    pub paused: usize,
    /// Its slot, while it runs.
    pub slot: Option<usize>,
    /// Interrupted or paused, and not yet going on.
    pub waits_again: bool,
    pub outcome: Option<Outcome>,
    pub error: Option<RequestError>,
    /// Result, if it is an audit.
    pub verdict: Option<Verdict>,
}

impl Story {
    fn has_ended(&self) -> bool {
        self.outcome.is_some() || self.error.is_some() || self.verdict.is_some()
    }
}

/// An executor that keeps the logits that it handed out last: those of a token are the last ones when it is told.
#[derive(Debug)]
struct Overheard<F> {
    forward: F,
    last: LastLogits,
}

type LastLogits = Arc<Mutex<Vec<f32>>>;

impl<F: Forward> Forward for Overheard<F> {
    fn spec(&self) -> &Arc<LoadedSpec> {
        self.forward.spec()
    }

    fn rows_max(&self) -> usize {
        self.forward.rows_max()
    }

    fn weight_bytes(&self) -> usize {
        self.forward.weight_bytes()
    }

    fn device(&self) -> DeviceDescription {
        self.forward.device()
    }

    fn forward_pending(
        &mut self,
        batch: &mut [SequenceInput<'_>],
        on_logits: &mut dyn FnMut(LogitsRow, &[f32]),
    ) -> Result<(), StepError> {
        let Self { forward, last } = self;
        forward.forward_pending(batch, &mut |row, logits| {
            last.lock().unwrap().splice(.., logits.iter().copied());
            on_logits(row, logits);
        })
    }
}

/// An engine and the events of its requests.
pub struct World {
    pub engine: Engine,
    logits: LastLogits,
    pub stories: HashMap<RequestId, Story>,
    /// Set once a request with a flow of its own came: then turns decide the order of starts, and not age.
    has_flows: bool,
}

impl World {
    pub fn new(model: &Arc<Model>, settings: EngineSettings) -> Self {
        Self::of(executor(model), settings)
    }

    pub fn of(forward: impl Forward + 'static, settings: EngineSettings) -> Self {
        let logits = LastLogits::default();
        let engine = Engine::new(Overheard { forward, last: Arc::clone(&logits) }, settings).unwrap();
        Self { engine, logits, stories: HashMap::new(), has_flows: false }
    }

    pub fn submit(&mut self, request: Request) -> RequestId {
        self.has_flows |= request.flow != Flow::default();
        self.engine.submit(request.job()).unwrap()
    }

    pub fn step(&mut self) -> StepReport {
        self.try_step().unwrap()
    }

    /// A step that may fail.
    pub fn try_step(&mut self) -> Result<StepReport, StepRefused> {
        let Self { engine, logits, stories, .. } = self;
        let report = engine.step(&mut |id, event| record(stories, logits, id, event))?;
        // A sequence that waits again, preempted or paused, is younger than all that run.
        let open = || stories.iter().filter(|(_, story)| !story.has_ended());
        let running = open().filter(|(_, story)| !story.waits_again).map(|(id, _)| *id).max();
        let waiting = open().filter(|(_, story)| story.waits_again).map(|(id, _)| *id).min();
        let in_order = self.has_flows || waiting.is_none() || running.is_none() || running < waiting;
        assert!(in_order, "{running:?} runs before {waiting:?}");
        Ok(report)
    }

    /// Steps until nothing is left to do.
    pub fn finish(&mut self) {
        for _ in 0..100_000 {
            if !self.engine.has_work() {
                return;
            }
            self.step();
        }
        panic!("no end after 100,000 steps");
    }

    /// Runs one request to its end.
    pub fn run(&mut self, request: Request) -> Story {
        let id = self.submit(request);
        self.finish();
        self.stories[&id].clone()
    }
}

fn record(stories: &mut HashMap<RequestId, Story>, logits: &LastLogits, id: RequestId, event: RequestEvent) {
    let is_free = |slot: &usize| stories.values().all(|story| story.slot != Some(*slot));
    let free = (0..).find(is_free);
    let story = stories.entry(id).or_default();
    let has_started = story.reused.is_some();
    match event {
        RequestEvent::Started { slot, .. } | RequestEvent::Resumed { slot } => {
            assert_eq!((story.slot, Some(slot)), (None, free), "{id:?} has not the first free slot");
            story.slot = free;
        }
        RequestEvent::Progress { .. } | RequestEvent::Token(_) => assert!(story.slot.is_some(), "{id:?} has no slot"),
        _ => story.slot = None,
    }
    match event {
        RequestEvent::Started { reused, .. } => {
            assert_eq!(story.reused.replace(reused), None, "{id:?} started twice");
        }
        RequestEvent::Progress { computed, total, .. } => {
            assert!(computed <= total);
            assert!(has_started && !story.waits_again, "{id:?} is computed while it waits");
            story.computed.push(computed);
        }
        RequestEvent::Token(chosen) => {
            assert!(has_started && !story.waits_again, "{id:?} is computed while it waits");
            story.tokens.push(chosen.token);
            story.logits.extend(logits.lock().unwrap().iter().map(|z| z.to_bits()));
            if let Some(logprobs) = chosen.logprobs {
                assert_eq!(logprobs.chosen.token, chosen.token);
                story.chosen_logprobs.push(logprobs.chosen.logprob);
                story.alternatives.extend(logprobs.top.iter().map(|top| (top.token, top.logprob)));
            }
        }
        RequestEvent::Preempted => {
            assert!(has_started, "{id:?} had no pages");
            story.waits_again = true;
            story.preempted += 1;
        }
        RequestEvent::Paused => {
            assert!(!std::mem::replace(&mut story.waits_again, true), "{id:?} had no place");
            story.paused += 1;
        }
        RequestEvent::Resumed { .. } => {
            assert!(std::mem::take(&mut story.waits_again), "{id:?} did not wait");
        }
        RequestEvent::Finished(outcome) => {
            assert_eq!(story.outcome.replace(outcome), None, "{id:?} finished twice");
            assert_eq!((outcome.generated, outcome.preemptions), (story.tokens.len(), story.preempted));
            assert_eq!(outcome.reused, story.reused.unwrap_or(0));
        }
        RequestEvent::Audited(verdict) => {
            assert!(has_started, "{id:?} never ran");
            assert_eq!(story.verdict.replace(verdict), None, "{id:?} ended twice");
        }
        RequestEvent::Failed(error) => story.error = Some(error),
    }
}

/// One request at a time by the executor alone: whole chunks of prompt, then token by token. No engine is involved.
pub struct Solo {
    executor: Executor,
    kv: KvLayout,
    workspace: SamplerWorkspace,
}

impl Solo {
    pub fn new(model: &Arc<Model>, kv: KvLayout) -> Self {
        let executor =
            Executor::new(Arc::clone(model), Kernels::detected(), NonZeroUsize::MIN, non_zero(CONTEXT)).unwrap();
        Self { executor, kv, workspace: SamplerWorkspace::new(VOCAB as usize) }
    }

    pub fn run(&mut self, request: &Request) -> Story {
        let Self { executor, kv, workspace } = self;
        let spec = executor.model().cache_spec(*kv, CONTEXT).unwrap();
        let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
        let sampler = Sampler::new(request.sampling.clone(), VOCAB as usize).unwrap();
        let mut story = Story::default();
        let mut tokens = request.prompt.clone();
        let finish = loop {
            if Some(story.tokens.len()) == request.tokens_max {
                break Finish::Limit;
            }
            let missing = &tokens[cache.rows()..];
            let mut batch = [SequenceInput::new(&mut cache, missing, LogitsWanted::Last)];
            let mut logits = Vec::new();
            executor.forward(&mut batch, &mut |_, row| logits.extend_from_slice(row)).unwrap();
            batch[0].outcome.unwrap();
            let token = sampler.choose(&logits, &tokens, workspace);
            if let Some(LogprobsWanted { count, stage }) = request.logprobs {
                let logprobs = match stage {
                    LogprobsStage::Model => workspace.logprobs(&sampler, &logits, token, count),
                    LogprobsStage::Draw => workspace.draw_logprobs(token, count),
                };
                story.chosen_logprobs.push(logprobs.chosen.logprob);
                story.alternatives.extend(logprobs.top.iter().map(|top| (top.token, top.logprob)));
            }
            story.logits.extend(logits.iter().map(|z| z.to_bits()));
            story.tokens.push(token);
            tokens.push(token);
            if request.stop_tokens.contains(&token) {
                break Finish::EndOfGeneration;
            }
            if tokens.len() >= request.context {
                break Finish::ContextFull;
            }
        };
        let generated = story.tokens.len();
        story.outcome = Some(Outcome { generated, finish, kv_bytes: cache.bytes(), reused: 0, preemptions: 0 });
        story
    }
}

/// Asserts that two stories have the same tokens, chosen from the same bits; a failure names the step at which they part.
pub fn assert_same_answer(found: &Story, want: &Story, what: &str) {
    assert_eq!(found.tokens, want.tokens, "{what}: tokens");
    let vocab = VOCAB as usize;
    let part = found.logits.chunks(vocab).zip(want.logits.chunks(vocab)).position(|(a, b)| a != b);
    assert_eq!(part, None, "{what}: the logits differ at this token");
    assert_eq!(found.logits.len(), want.logits.len(), "{what}");
    assert_eq!(found.chosen_logprobs, want.chosen_logprobs, "{what}");
    assert_eq!(found.alternatives, want.alternatives, "{what}");
}
