//! Requests of all kinds with the answers that they have alone, computed without engine and server.

use std::sync::Arc;

use muser_engine::{LogitBias, LogprobsStage, LogprobsWanted, SamplingSettings};
use muser_model::Model;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::solo::Solo;

/// A request for `/completion`, and its one right answer.
pub struct Case {
    body: Value,
    tokens: Vec<u32>,
    /// Of the chosen token, then of the likeliest; for each token. Compared as bits.
    logprobs: Vec<u64>,
}

const TOP: usize = 3;
/// The token that ends a text of the shipped model, `<|endoftext|>`: never drawn, so that every answer goes on to its limit.
const END: u32 = 0;
/// The context of the server that is asked.
pub const CONTEXT: usize = 256;

impl Case {
    /// `count` requests: prompts of all lengths, most of which begin alike, greedy and drawn, short and to the end of the
    /// context.
    pub fn all(model: &Arc<Model>, count: usize, seed: u64) -> Vec<Self> {
        let random = &mut fastrand::Rng::with_seed(seed);
        let vocab = u32::try_from(model.config().vocab).unwrap();
        let mut ids = |count: usize| -> Vec<u32> { (0..count).map(|_| random.u32(300..vocab)).collect() };
        let beginnings: Vec<Vec<u32>> = [0, 40, 70, 140, 200].into_iter().map(&mut ids).collect();
        let prompts = (0..count).map(|index| [beginnings[index % 5].as_slice(), &ids(1 + index * 7 % 50)].concat());
        let prompts: Vec<Vec<u32>> = prompts.collect();
        let mut solo = Solo::new(model, CONTEXT);
        prompts.into_iter().map(|prompt| Self::of(&mut solo, prompt, random)).collect()
    }

    fn of(solo: &mut Solo, prompt: Vec<u32>, random: &mut fastrand::Rng) -> Self {
        let limit = if random.u32(..8) == 0 { CONTEXT } else { random.usize(1..40) };
        let drawn = random.bool();
        let sampling = SamplingSettings {
            seed: random.u64(..1 << 50),
            temperature: if drawn { 0.9 } else { 0.0 },
            logit_bias: vec![LogitBias { token: END, bias: f32::NEG_INFINITY }],
            repeat_penalty: if random.bool() { 1.25 } else { 1.0 },
            top_k: 40,
            top_p: 0.75,
            ..Default::default()
        };
        let body = json!({
            "prompt": prompt, "n_predict": limit, "n_probs": TOP, "return_tokens": true, "seed": sampling.seed,
            "temperature": sampling.temperature, "logit_bias": [[END, false]],
            "repeat_penalty": sampling.repeat_penalty, "top_k": 40, "top_p": 0.75, "min_p": 0,
        });
        let wanted = LogprobsWanted { count: TOP, stage: LogprobsStage::Model };
        let steps = solo.run(&prompt, limit, sampling, wanted);
        let logprobs = steps.iter().flat_map(|step| std::iter::once(&step.chosen).chain(&step.top));
        Self {
            body,
            logprobs: logprobs.map(|found| found.logprob.to_bits()).collect(),
            tokens: steps.iter().map(|step| step.token).collect(),
        }
    }

    /// The request; `share` is whether it uses and leaves kept prefixes.
    pub fn body(&self, stream: bool, share: bool) -> Value {
        let mut body = self.body.clone();
        body["stream"] = stream.into();
        body["cache_prompt"] = share.into();
        body
    }

    /// The first difference of an answer from the expected one; `None` if it is right.
    pub fn wrong(&self, answer: &Answer) -> Option<String> {
        if answer.status != 200 {
            return Some(format!("status {}: {}", answer.status, answer.body));
        }
        let stream = answer.header("content-type") == Some("text/event-stream");
        let objects = if stream { answer.chunks() } else { vec![answer.json()] };
        let last = objects.last()?;
        let lists = objects.iter().filter_map(|object| object["tokens"].as_array());
        let tokens: Vec<u64> = lists.flatten().filter_map(Value::as_u64).collect();
        if !tokens.iter().copied().eq(self.tokens.iter().copied().map(u64::from)) {
            return Some(format!("{:?}\nare the tokens, alone they are\n{:?}", tokens, self.tokens));
        }
        if logprobs(&answer.body) != self.logprobs {
            return Some("the logprobs have other bits than alone".into());
        }
        let complete = last["stop_type"] == "limit" && last["tokens_predicted"] == json!(self.tokens.len());
        (!complete).then(|| format!("the end is {last}"))
    }
}

/// All logprobs in the order in which they stand in the text. They are read as Rust reads numbers, exactly.
fn logprobs(body: &str) -> Vec<u64> {
    let numbers = body.split("\"logprob\":").skip(1).map(|rest| {
        let end = rest.find([',', '}']).unwrap_or(rest.len());
        rest[..end].parse::<f64>().map_or(u64::MAX, f64::to_bits)
    });
    numbers.collect()
}
