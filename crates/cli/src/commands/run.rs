//! `muser run`: one prompt, its continuation on standard output, figures on standard error.

use std::time::Instant;

use muser_engine::engine::PrefixReuse;
use muser_engine::{Finish, load_tokenizer};
use muser_model::{LoadError, read_config};
use muser_text::Specials;

use crate::answer::{Answer, Answerer};
use crate::failure::Failure;
use crate::input::prompt_text;
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::tell;
use crate::settings::RunArgs;
use crate::usage::UsageError;

/// Runs the command.
pub fn run(args: &RunArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    // Flags that contradict each other are refused before a large model takes its time to load.
    let kv = args.generation.kv()?;
    args.generation.stop_strings()?;
    let text = prompt_text(&args.prompt)?;
    let text = args.generation.unescaped(&text)?;
    let start = Instant::now();
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let vocab = read_config(&files.metadata()).map_err(LoadError::from)?.vocab;
    let tokenizer = load_tokenizer(&files.metadata(), vocab)?;
    // Control tokens written in the prompt count as such: whoever types the command is the model's only user.
    let prompt = tokenizer.encode_prompt(&text, Specials::Parse);
    if prompt.is_empty() {
        return Err(UsageError::EmptyPrompt.into());
    }
    let prompt_tokens = prompt.len();
    let executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let flags = (&args.generation, &args.sampler);
    let mut answerer = Answerer::new(executor, &tokenizer, interrupt, flags, PrefixReuse::Isolate)?;
    let loaded = Instant::now();
    let answer = answerer.answer(prompt, &text)?;
    let executor = answerer.engine().executor();
    let device = executor.device();
    tell("");
    tell(format_args!(
        "{} weights, {} kernels, {} threads, {} bytes of {kv:?} KV, seed {}",
        bytes_of(executor.weight_bytes()),
        device.kernels,
        device.threads,
        answer.outcome.kv_bytes,
        answerer.seed(),
    ));
    tell(figures((start, loaded), prompt_tokens, &answer));
    answer.interrupted.map_or(Ok(()), |signal| Err(Failure::Interrupted(signal)))
}

/// Load, prefill and decode in seconds and tokens per second. The first token comes out of the prefill.
fn figures((start, loaded): (Instant, Instant), prompt: usize, answer: &Answer) -> String {
    let now = Instant::now();
    let first = answer.first_token.unwrap_or(now);
    let (load, prefill) = (loaded - start, (first - loaded).as_secs_f64());
    let decode = (now - first).as_secs_f64();
    let generated = answer.outcome.generated;
    let after_first = generated.saturating_sub(1);
    let why = match answer.outcome.finish {
        _ if answer.text.stop_string.is_some() => "a stop string was reached",
        Finish::EndOfGeneration => "the model ended the text",
        Finish::Limit => "the limit of tokens was reached",
        Finish::ContextFull => "the context is full",
        Finish::Stopped => "stopped",
    };
    let mut line = format!("load {:.2} s; prompt {prompt} tokens in {prefill:.2} s", load.as_secs_f64());
    line += &format!(" ({:.1}/s); {generated} generated", prompt as f64 / prefill);
    if after_first > 0 {
        line += &format!(", all but the first in {decode:.2} s ({:.1}/s)", after_first as f64 / decode);
    }
    line + "; " + why
}

fn bytes_of(bytes: usize) -> String {
    format!("{:.1} MB of", bytes as f64 / 1e6)
}
