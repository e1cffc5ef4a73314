//! Exactness with company: whatever else happens, each request gets the bits that it gets alone.

use std::collections::HashMap;
use std::sync::Arc;

use muser_engine::engine::{Flow, PrefixReuse, RequestId, SubmitError};
use muser_engine::{EngineSettings, Finish, LogitBias, LogprobsStage, LogprobsWanted, SamplingSettings};
use muser_kv::PAGE_ROWS;
use muser_model::Model;

use crate::world::{
    CONTEXT, LAYOUTS, Request, Solo, Story, VOCAB, World, assert_same_answer, glimmer, llama, non_zero, pages, qwen2,
    qwen3, random_tokens, roomy,
};

/// Counts of the events of a schedule.
#[derive(Debug, Default)]
struct Seen {
    finished: usize,
    cancelled_running: usize,
    cancelled_waiting: usize,
    reused: usize,
    preempted: usize,
    refused: usize,
    together: usize,
}

/// A random client: shared beginnings, conversations that go on and branch, pages that only look alike, all kinds of
/// sampling.
struct Client {
    random: fastrand::Rng,
    /// Texts that were there before: beginnings, and whole conversations.
    texts: Vec<Vec<u32>>,
    answers: Answers,
}

/// Length of answers.
#[derive(Clone, Copy)]
enum Answers {
    /// Mostly below 30 tokens.
    Short,
    /// 100 to 250 tokens, mostly after short prompts: sequences outgrow the memory in which they started.
    Long,
}

impl Client {
    fn new(seed: u64, answers: Answers) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let texts = [70, 130, 260].map(|length| random_tokens(&mut random, length)).into();
        Self { random, texts, answers }
    }

    /// Requests that arrive before a step.
    fn arrivals(&mut self) -> usize {
        match self.answers {
            Answers::Short => usize::from(self.random.u8(..4) == 0),
            // Many at once, so that many grow together.
            Answers::Long => 10 * usize::from(self.random.u8(..100) == 0),
        }
    }

    /// True if a request is cancelled before a step, drawn at random.
    fn cancels(&mut self) -> bool {
        match self.answers {
            Answers::Short => self.random.u32(..40) == 0,
            Answers::Long => self.random.u32(..300) == 0,
        }
    }

    fn request(&mut self) -> Request {
        let random = &mut self.random;
        let mut prompt = match random.u8(..8) {
            0 => Vec::new(),
            _ => {
                let text = &self.texts[random.usize(..self.texts.len())];
                let cut = if random.bool() { text.len() } else { random.usize(..=text.len()) };
                let mut text = text[..cut].to_vec();
                // Whole pages that were there before, but at other positions or behind another token, so that none may be
                // taken for those.
                match random.u8(..12) {
                    0 => drop(text.drain(..cut.min(PAGE_ROWS))),
                    1 => text[..cut.min(1)].fill(random.u32(..VOCAB)),
                    _ => (),
                }
                text
            }
        };
        let more_max = if random.u8(..6) == 0 { 150 } else { 20 };
        let more = random.usize(1..more_max);
        prompt.extend(random_tokens(random, more));
        prompt.truncate(match self.answers {
            Answers::Short => CONTEXT / 2,
            Answers::Long if random.u8(..4) > 0 => 40,
            Answers::Long => 150,
        });
        let sampling = match random.u8(..4) {
            0 => SamplingSettings::greedy(),
            1 => SamplingSettings { seed: random.u64(..), ..SamplingSettings::default() },
            2 => SamplingSettings { seed: random.u64(..), top_k: 30, top_p: 0.9, ..SamplingSettings::default() },
            _ => SamplingSettings {
                seed: random.u64(..),
                repeat_penalty: 1.3,
                presence_penalty: 0.2,
                typical_p: 0.9,
                min_p: 0.02,
                temperature: 0.8,
                logit_bias: vec![LogitBias { token: random.u32(..VOCAB), bias: 2.0 }],
                ..SamplingSettings::default()
            },
        };
        let (tokens_min, tokens_end) = match self.answers {
            Answers::Short if random.u8(..5) > 0 => (0, 30),
            Answers::Short => (0, 120),
            Answers::Long => (100, 250),
        };
        let stops_end = match self.answers {
            Answers::Short => 3,
            Answers::Long => 1,
        };
        let stop_tokens: Vec<u32> = (0..random.u32(..stops_end)).map(|_| random.u32(..VOCAB)).collect();
        Request {
            tokens_max: Some(random.usize(tokens_min..tokens_end)),
            context: if random.u8(..8) == 0 { prompt.len() + random.usize(1..20) } else { CONTEXT },
            stop_tokens: Arc::from(stop_tokens),
            sampling,
            logprobs: random.bool().then(|| LogprobsWanted {
                count: random.usize(..4),
                stage: if random.bool() { LogprobsStage::Model } else { LogprobsStage::Draw },
            }),
            reuse: if random.u8(..8) == 0 { PrefixReuse::Isolate } else { PrefixReuse::Share },
            flow: Flow::default(),
            prompt,
        }
    }

    /// A conversation that later requests go on with.
    fn remember(&mut self, request: &Request, story: &Story) {
        if self.texts.len() > 12 {
            let old = self.random.usize(3..self.texts.len());
            self.texts.swap_remove(old);
        }
        self.texts.push([&request.prompt[..], &story.tokens].concat());
    }
}

/// One schedule under way.
struct Schedule {
    world: World,
    alone: Solo,
    client: Client,
    open: HashMap<RequestId, Request>,
    seen: Seen,
}

impl Schedule {
    fn new(model: &Arc<Model>, settings: &EngineSettings, client: Client) -> Self {
        let world = World::new(model, settings.clone());
        let alone = Solo::new(model, settings.kv);
        Self { world, alone, client, open: HashMap::new(), seen: Seen::default() }
    }

    /// `steps` steps with arrivals and cancellations; every answer is compared with the one given alone.
    fn run(mut self, what: &str, steps: usize) -> Seen {
        for step in 0..steps {
            let what = format!("{what}, step {step}");
            for _ in 0..self.client.arrivals() {
                let request = self.client.request();
                match self.world.engine.submit(request.job()) {
                    Ok(id) => drop(self.open.insert(id, request)),
                    Err(SubmitError::QueueFull { .. } | SubmitError::NeverFits { .. }) => self.seen.refused += 1,
                    Err(refused) => panic!("{what}: {refused}"),
                }
            }
            if self.client.cancels() {
                self.cancel_one(&what);
            }
            let report = self.world.step();
            self.seen.together += usize::from(report.decode_rows > 1 && report.prefill_rows > 0);
            self.compare_ended(&what);
        }
        self.world.finish();
        self.compare_ended(what);
        assert!(self.open.is_empty());
        // All that is left in memory is what is kept for reuse.
        let engine = &self.world.engine;
        assert_eq!(engine.memory().live_bytes, engine.prefix_bytes());
        assert!(engine.prefix_bytes() <= engine.settings().prefix_bytes_max);
        self.seen
    }

    fn cancel_one(&mut self, what: &str) {
        let mut ids: Vec<RequestId> = self.open.keys().copied().collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return;
        }
        // The youngest is the likeliest to wait still.
        let youngest = self.client.random.bool();
        let id = if youngest { ids[ids.len() - 1] } else { ids[self.client.random.usize(..ids.len())] };
        assert!(self.world.engine.cancel(id), "{what}");
        self.world.step();
        let story = &self.world.stories[&id];
        assert_eq!(story.outcome.unwrap().finish, Finish::Stopped, "{what}");
        let started = story.reused.is_some();
        *if started { &mut self.seen.cancelled_running } else { &mut self.seen.cancelled_waiting } += 1;
    }

    /// Compares the requests that have ended.
    fn compare_ended(&mut self, what: &str) {
        let stories = &self.world.stories;
        let is_over = |id: &RequestId| stories.get(id).is_some_and(|story| story.outcome.is_some());
        let mut ended: Vec<RequestId> = self.open.keys().copied().filter(is_over).collect();
        ended.sort_unstable();
        for id in ended {
            let request = self.open.remove(&id).unwrap();
            let story = self.world.stories.remove(&id).unwrap();
            let outcome = story.outcome.unwrap();
            let what = format!("{what}, {id:?}, {outcome:?}");
            let mut want = self.alone.run(&request);
            if outcome.finish == Finish::Stopped {
                // What was told is the beginning of the whole answer.
                want.tokens.truncate(story.tokens.len());
                want.logits.truncate(story.logits.len());
                want.chosen_logprobs.truncate(story.chosen_logprobs.len());
                want.alternatives.truncate(story.alternatives.len());
            } else {
                assert_eq!(outcome.finish, want.outcome.unwrap().finish, "{what}");
                self.seen.finished += 1;
            }
            assert_same_answer(&story, &want, &what);
            self.seen.reused += usize::from(outcome.reused > 0);
            self.seen.preempted += outcome.preemptions;
            self.client.remember(&request, &story);
        }
    }
}

/// A schedule with plenty of memory, one with little, and one with so little that sequences interrupt each other.
fn check(model: &Arc<Model>, layers: usize, seed: u64) {
    for (index, kv) in LAYOUTS.into_iter().enumerate() {
        let whole = layers * CONTEXT / 64;
        let little = EngineSettings {
            budget_bytes: pages(model, kv, whole + 20 * layers),
            prefix_bytes_max: pages(model, kv, 20 * layers),
            waiting_max: 6,
            ..roomy(kv)
        };
        let tight = EngineSettings {
            budget_bytes: pages(model, kv, 20 * layers),
            running_max: non_zero(10),
            waiting_max: 12,
            ..little.clone()
        };
        let settings = [(roomy(kv), Answers::Short), (little, Answers::Short), (tight, Answers::Long)];
        let mut seed = seed + 10 * index as u64;
        let seen = settings.map(|(settings, answers)| {
            seed += 1;
            let what = format!("{kv:?}, seed {seed}, budget {}", settings.budget_bytes);
            let steps = match answers {
                Answers::Short => 800,
                Answers::Long => 1600,
            };
            let seen = Schedule::new(model, &settings, Client::new(seed, answers)).run(&what, steps);
            println!("{what}: {seen:?}");
            seen
        });
        for seen in &seen {
            assert!(seen.finished > 15 && seen.together > 50, "{seen:?}");
        }
        let sum = |count: fn(&Seen) -> usize| seen.iter().map(count).sum::<usize>();
        assert!(seen[0].reused > 10 && seen[1].reused > 10 && sum(|seen| seen.reused) > 30, "{seen:?}");
        assert!(sum(|seen| seen.cancelled_running) > 10 && sum(|seen| seen.cancelled_waiting) > 1, "{seen:?}");
        assert!(seen[2].preempted > 0 && sum(|seen| seen.refused) > 5, "{seen:?}");
    }
}

#[test]
fn every_answer_of_a_model_without_windows_is_the_one_given_alone() {
    check(&llama(), 2, 100);
}

#[test]
fn every_answer_of_a_model_with_windows_shorter_than_a_page_is_the_one_given_alone() {
    check(&glimmer(32, &[true, false, true]), 3, 200);
}

#[test]
fn every_answer_of_a_model_with_windows_longer_than_a_page_is_the_one_given_alone() {
    check(&glimmer(100, &[true, true, false]), 3, 300);
}

#[test]
fn every_answer_of_a_model_of_windows_alone_is_the_one_given_alone() {
    check(&glimmer(100, &[true, true]), 2, 400);
}

#[test]
fn every_answer_of_a_model_with_biases_on_queries_keys_and_values_is_the_one_given_alone() {
    check(&qwen2(), 2, 500);
}

#[test]
fn every_answer_of_a_model_with_norms_on_queries_and_keys_is_the_one_given_alone() {
    check(&qwen3(), 2, 600);
}
