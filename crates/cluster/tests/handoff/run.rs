//! `muser run`: one prompt, its continuation on standard output, figures on standard error.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use muser_engine::{Finish, Generation, Outcome, Request, Sampling, load_tokenizer};
use muser_kv::PagePool;
use muser_text::{ControlTokens, Specials, StreamDecoder, Tokenizer};

use crate::failure::Failure;
use crate::model;
use crate::settings::RunArgs;

/// When things happened.
struct Clock {
    start: Instant,
    loaded: Instant,
    first_token: Option<Instant>,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    if args.cache_type_k != args.cache_type_v {
        return Err(Failure::Usage("keys and values are kept in one layout: give -ctk and -ctv the same value".into()));
    }
    let start = Instant::now();
    let files = model::open(args.model.as_deref())?;
    let mut executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let (loaded, model) = (Instant::now(), executor.model().clone());
    let config = model.config();
    let tokenizer = load_tokenizer(&model.files().metadata(), config.vocab)?;
    let prompt = encode(&tokenizer, &args.prompt);
    let seed = args.seed.unwrap_or_else(seed_from_clock);
    let request = Request {
        prompt: &prompt,
        tokens_max: usize::try_from(args.predict).ok(),
        context: args.ctx_size.map_or(config.context, |positions| positions.get() as usize),
        kv: args.cache_type_k.into(),
        sampling: Sampling { temperature: args.temp, seed },
    };
    let generation = Generation::prefill(&mut executor, &PagePool::new(usize::MAX), &request)?;
    let mut clock = Clock { start, loaded, first_token: None };
    let mut printer = Printer::new(&tokenizer);
    printer.text(&args.prompt);
    let outcome = generation.run(
        |token| tokenizer.is_end_of_generation(token),
        |token| {
            clock.first_token.get_or_insert_with(Instant::now);
            printer.token(token)
        },
    )?;
    printer.finish()?;
    let cpu = executor.cpu();
    eprintln!(
        "\n{} weights, {} kernels, {} threads, {} bytes of {:?} KV, seed {seed}",
        bytes_of(model.weight_bytes()),
        cpu.kernels().name,
        cpu.threads(),
        outcome.kv_bytes,
        request.kv,
    );
    eprintln!("{}", figures(&clock, prompt.len(), outcome));
    Ok(())
}

/// The prompt's ids. Control tokens written in it count as such: whoever types the command is the model's only user.
fn encode(tokenizer: &Tokenizer, prompt: &str) -> Vec<u32> {
    let mut ids: Vec<u32> = tokenizer.bos_to_add().into_iter().collect();
    ids.extend(tokenizer.encode(prompt, Specials::Parse));
    ids
}

/// Writes text as soon as it is complete; a failure to write ends the generation and is reported once.
struct Printer<'a> {
    tokenizer: &'a Tokenizer,
    decoder: StreamDecoder,
    out: io::StdoutLock<'static>,
    failure: Option<io::Error>,
}

impl<'a> Printer<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, decoder: StreamDecoder::new(), out: io::stdout().lock(), failure: None }
    }

    fn text(&mut self, text: &str) {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.failure = self.failure.take().or(written.err());
    }

    fn token(&mut self, token: u32) -> ControlFlow<()> {
        let bytes = self.tokenizer.token_bytes(token, ControlTokens::Hide).expect("the model and its tokenizer have one size");
        let text = self.decoder.push(bytes);
        self.text(&text);
        if self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(mut self) -> Result<(), Failure> {
        let rest = self.decoder.finish();
        self.text(&rest);
        self.text("\n");
        self.failure.map_or(Ok(()), |error| Err(Failure::Stdout(error)))
    }
}

/// Load, prefill and decode in seconds and tokens per second.
fn figures(clock: &Clock, prompt: usize, outcome: Outcome) -> String {
    let now = Instant::now();
    let first = clock.first_token.unwrap_or(now);
    let (load, prefill) = (clock.loaded - clock.start, (first - clock.loaded).as_secs_f64());
    let decode = (now - first).as_secs_f64();
    let after_first = outcome.generated.saturating_sub(1);
    let why = match outcome.finish {
        Finish::EndOfGeneration => "the model ended the text",
        Finish::Limit => "the limit of tokens was reached",
        Finish::ContextFull => "the context is full",
        Finish::Stopped => "stopped",
    };
    format!(
        "load {:.2} s; prompt {prompt} tokens in {prefill:.2} s ({:.1}/s); {} tokens, then {after_first} in {decode:.2} s ({:.1}/s); {why}",
        load.as_secs_f64(),
        prompt as f64 / prefill,
        outcome.generated,
        after_first as f64 / decode,
    )
}

fn bytes_of(bytes: usize) -> String {
    format!("{:.1} MB of", bytes as f64 / 1e6)
}

/// A seed nobody chose; it is printed, so that the text can be had again.
fn seed_from_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().wrapping_mul(1_000_000_007).wrapping_add(u64::from(since.subsec_nanos()))
}
