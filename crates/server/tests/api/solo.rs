//! One request at a time by the executor and the sampler alone: neither engine nor server is involved.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_engine::{LogprobsStage, LogprobsWanted, Sampler, SamplerWorkspace, SamplingSettings, TokenLogprob};
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::{PagePool, SequenceCache};
use muser_model::{Executor, LogitsWanted, Model, SequenceInput};

/// Computes answers.
pub struct Solo {
    executor: Executor,
    context: usize,
    workspace: SamplerWorkspace,
}

/// A token, what it was chosen from, and its probabilities.
pub struct Step {
    pub token: u32,
    /// `[vocab]`
    pub logits: Vec<f32>,
    pub chosen: TokenLogprob,
    pub top: Vec<TokenLogprob>,
}

impl Solo {
    pub fn new(model: &Arc<Model>, context: usize) -> Self {
        let rows = NonZeroUsize::new(64).unwrap();
        let executor = Executor::new(Arc::clone(model), Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
        let workspace = SamplerWorkspace::new(model.config().vocab);
        Self { executor, context, workspace }
    }

    /// The `count` tokens after `prompt`; fewer only where the context ends.
    pub fn run(
        &mut self,
        prompt: &[u32],
        count: usize,
        sampling: SamplingSettings,
        wanted: LogprobsWanted,
    ) -> Vec<Step> {
        let Self { executor, context, workspace } = self;
        let model = Arc::clone(executor.model());
        let mut cache =
            SequenceCache::new(model.cache_spec(KvLayout::Q8, *context).unwrap(), PagePool::new(usize::MAX));
        let sampler = Sampler::new(sampling, model.config().vocab).unwrap();
        let mut tokens = prompt.to_vec();
        let mut steps = Vec::new();
        while steps.len() < count && tokens.len() < *context {
            let missing = tokens[cache.rows()..].to_vec();
            let mut logits = Vec::new();
            for rows in missing.chunks(executor.rows_max()) {
                logits.clear();
                let mut batch = [SequenceInput::new(&mut cache, rows, LogitsWanted::Last)];
                executor.forward(&mut batch, &mut |_, row| logits.extend_from_slice(row)).unwrap();
                batch[0].outcome.unwrap();
            }
            let token = sampler.choose(&logits, &tokens, workspace);
            let logprobs = match wanted.stage {
                LogprobsStage::Model => workspace.logprobs(&sampler, &logits, token, wanted.count),
                LogprobsStage::Draw => workspace.draw_logprobs(token, wanted.count),
            };
            let (chosen, top) = (logprobs.chosen, logprobs.top.to_vec());
            steps.push(Step { token, logits, chosen, top });
            tokens.push(token);
        }
        steps
    }
}
