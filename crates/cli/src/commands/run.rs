//! `muser run`: one prompt, its continuation on standard output, figures on standard error.

use std::time::Instant;

use muser_engine::{Finish, Generation, Outcome, Request, Sampling, load_tokenizer};
use muser_kv::PagePool;
use muser_model::{LoadError, read_config};
use muser_text::Specials;

use crate::failure::Failure;
use crate::input::prompt_text;
use crate::model;
use crate::output::{Printer, tell};
use crate::settings::RunArgs;

/// When things happened.
struct Clock {
    start: Instant,
    loaded: Instant,
    first_token: Option<Instant>,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let kv = args.generation.kv()?;
    let text = prompt_text(&args.prompt)?;
    let start = Instant::now();
    let files = model::open(args.model.as_deref())?;
    // The tokenizer first: it is checked in no time, while packing a large model's matrices takes many seconds.
    let vocab = read_config(&files.metadata()).map_err(LoadError::from)?.vocab;
    let tokenizer = load_tokenizer(&files.metadata(), vocab)?;
    // Control tokens written in the prompt count as such: whoever types the command is the model's only user.
    let prompt = tokenizer.encode_prompt(&text, Specials::Parse);
    let mut executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let (loaded, model) = (Instant::now(), executor.model().clone());
    let seed = args.generation.seed.value();
    let request = Request {
        prompt: &prompt,
        tokens_max: args.generation.tokens_max(),
        context: args.generation.context(model.config().context),
        kv,
        sampling: Sampling { temperature: args.generation.temp, seed },
    };
    let generation = Generation::prefill(&mut executor, &PagePool::new(usize::MAX), &request)?;
    let mut clock = Clock { start, loaded, first_token: None };
    let mut printer = Printer::new(&tokenizer);
    printer.text(&text);
    let outcome = generation.run(
        |token| tokenizer.is_end_of_generation(token),
        |token| {
            clock.first_token.get_or_insert_with(Instant::now);
            printer.token(token)
        },
    )?;
    printer.finish()?;
    let cpu = executor.cpu();
    tell("");
    tell(format_args!(
        "{} weights, {} kernels, {} threads, {} bytes of {:?} KV, seed {seed}",
        bytes_of(model.weight_bytes()),
        cpu.kernels().name,
        cpu.threads(),
        outcome.kv_bytes,
        request.kv,
    ));
    tell(figures(&clock, prompt.len(), outcome));
    Ok(())
}

/// Load, prefill and decode in seconds and tokens per second. The first token comes out of the prefill.
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
    let mut line = format!("load {:.2} s; prompt {prompt} tokens in {prefill:.2} s", load.as_secs_f64());
    line += &format!(" ({:.1}/s); {} generated", prompt as f64 / prefill, outcome.generated);
    if after_first > 0 {
        line += &format!(", all but the first in {decode:.2} s ({:.1}/s)", after_first as f64 / decode);
    }
    line + "; " + why
}

fn bytes_of(bytes: usize) -> String {
    format!("{:.1} MB of", bytes as f64 / 1e6)
}
