//! One request at a time, printed as tokens arrive; shared by `run` and `chat`.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use muser_engine::engine::{Generate, Job, PrefixReuse, RequestEvent};
use muser_engine::{Engine, Outcome};
use muser_model::Forward;
use muser_text::{StopStrings, Tokenizer};

use crate::failure::Failure;
use crate::interrupt::{Interrupt, Signal};
use crate::node::{Node, NodeSettings, PageMemory};
use crate::output::{PrintedText, Printer};
use crate::settings::{GenerationArgs, SamplerArgs};

/// An engine with one model, and the settings of its requests.
pub struct Answerer<'a> {
    engine: Engine,
    tokenizer: &'a Tokenizer,
    interrupt: &'a Interrupt,
    /// Limits and sampler settings of every answer.
    generate: Generate,
    reuse: PrefixReuse,
    stops: StopStrings,
}

/// Result of a request.
pub struct Answer {
    /// The printed text.
    pub text: PrintedText,
    /// The engine's outcome.
    pub outcome: Outcome,
    /// Time of the first token; `None` without tokens.
    pub first_token: Option<Instant>,
    /// Signal that ended it early.
    pub interrupted: Option<Signal>,
}

impl<'a> Answerer<'a> {
    /// With [`PrefixReuse::Share`], the pages of earlier requests are kept for later ones.
    pub fn new(
        executor: Box<dyn Forward>,
        tokenizer: &'a Tokenizer,
        interrupt: &'a Interrupt,
        (generation, sampler): (&GenerationArgs, &SamplerArgs),
        reuse: PrefixReuse,
    ) -> Result<Self, Failure> {
        let (kv, trained) = (generation.kv()?, executor.spec().config().context);
        let context = generation.context(trained);
        let kept = usize::from(reuse == PrefixReuse::Share);
        let settings = NodeSettings {
            kv,
            context,
            memory: PageMemory::Sequences { count: 1 + kept, kept },
            running_max: NonZeroUsize::MIN,
            waiting_max: 1,
        };
        let engine = Node::alone(executor, &settings)?.engine;
        let stop_tokens: Arc<[u32]> = Arc::from(tokenizer.end_of_generation_ids());
        let generate = Generate {
            tokens_max: generation.tokens_max(),
            context,
            sampling: sampler.settings(generation.temp, generation.seed.value(), &stop_tokens),
            stop_tokens,
            logprobs: None,
        };
        let stops = generation.stop_strings()?;
        Ok(Self { engine, tokenizer, interrupt, generate, reuse, stops })
    }

    /// Prints the answer to `prompt` as it comes, and `before` with its first word. A signal ends it after the step that is
    /// under way.
    pub fn answer(&mut self, prompt: Vec<u32>, before: &str) -> Result<Answer, Failure> {
        let id = self.engine.submit(Job::generate(prompt, self.reuse, self.generate.clone()))?;
        let mut printer = Printer::new(self.tokenizer, self.stops.clone(), before);
        let (mut first_token, mut interrupted, mut ended) = (None, None, None);
        self.interrupt.hold();
        while ended.is_none() {
            let mut enough = false;
            self.engine.step(&mut |_, event| match event {
                RequestEvent::Token(token) => {
                    first_token.get_or_insert_with(Instant::now);
                    enough = !token.is_stop && printer.token(token.token).is_break();
                }
                RequestEvent::Finished(outcome) => ended = Some(Ok(outcome)),
                RequestEvent::Failed(error) => ended = Some(Err(error)),
                _ => {}
            })?;
            // False, and nobody was interrupted, if this step was the last one anyway.
            let stop = self.interrupt.requested();
            if (enough || stop.is_some()) && self.engine.cancel(id) {
                interrupted = stop;
            }
        }
        self.interrupt.release();
        if first_token.is_none()
            && let Some(Err(error)) = &ended
        {
            return Err(error.clone().into());
        }
        let text = printer.finish()?;
        let outcome = ended.expect("the loop ends with it")?;
        Ok(Answer { text, outcome, first_token, interrupted })
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The seed of all answers.
    pub fn seed(&self) -> u64 {
        self.generate.sampling.seed
    }
}
