//! `muser chat`: a conversation, one line in and one answer out, until the input ends.
//!
//! Every turn goes through the model's own chat template; what the person types can never become a control token. The
//! pages of earlier turns are kept, so a turn computes only what is new. An interrupt during an answer ends that answer,
//! which stays in the conversation as far as it came.

use std::io::{self, BufRead, IsTerminal};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use muser_engine::engine::{PrefixReuse, SubmitError};
use muser_engine::{Finish, load_templates, load_tokenizer};
use muser_model::{LoadError, read_config};
use muser_text::{ChatMessage, ChatOptions, ChatTemplate, LocalTime, Tokenizer, encode_chat};

use crate::answer::Answerer;
use crate::failure::Failure;
use crate::interrupt::{Interrupt, Signal};
use crate::model;
use crate::output::tell;
use crate::settings::ChatArgs;

/// Runs the command.
pub fn run(args: &ChatArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    // Flags that contradict each other are refused before a large model takes its time to load.
    args.generation.kv()?;
    args.generation.stop_strings()?;
    let system_prompt = args.system_prompt.as_deref().map(|text| args.generation.unescaped(text)).transpose()?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let vocab = read_config(&files.metadata()).map_err(LoadError::from)?.vocab;
    let tokenizer = load_tokenizer(&files.metadata(), vocab)?;
    let templates = load_templates(&files.metadata())?;
    let template = templates.choose(None, &serde_json::Value::Null)?;
    let executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let flags = (&args.generation, &args.sampler);
    let mut answerer = Answerer::new(executor, &tokenizer, interrupt, flags, PrefixReuse::Share)?;
    let mut messages: Vec<ChatMessage> = system_prompt.iter().map(|text| ChatMessage::new("system", text)).collect();
    let mut lines = io::stdin().lock().lines();
    let prompt_sign = io::stdin().is_terminal() && io::stderr().is_terminal();
    loop {
        if prompt_sign {
            eprint!("> ");
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(Failure::Stdin)?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(ChatMessage::new("user", &line));
        let text = turn(&mut answerer, encode(&tokenizer, template, &messages)?)?;
        messages.push(ChatMessage::new("assistant", &text));
    }
}

/// Prints the model's answer and its figures; the answer.
fn turn(answerer: &mut Answerer<'_>, prompt: Vec<u32>) -> Result<String, Failure> {
    let (start, prompt_tokens) = (Instant::now(), prompt.len());
    let answer = answerer.answer(prompt, "").map_err(|failure| match failure {
        Failure::Submit(reason @ SubmitError::PromptTooLong { .. }) => Failure::Conversation(reason),
        other => other,
    })?;
    let (first, end) = (answer.first_token.unwrap_or(start), Instant::now());
    // The token that ended the text is not part of it.
    let ended = usize::from(answer.outcome.finish == Finish::EndOfGeneration);
    let generated = answer.outcome.generated - ended;
    let speed = generated.saturating_sub(1) as f64 / (end - first).as_secs_f64().max(f64::EPSILON);
    tell(format_args!(
        "[prompt {prompt_tokens} tokens, {} of them reused, first token after {:.2} s; {generated} generated, {speed:.1}/s; seed {}]",
        answer.outcome.reused,
        (first - start).as_secs_f64(),
        answerer.seed(),
    ));
    match answer.interrupted {
        Some(Signal::Terminate) => Err(Failure::Interrupted(Signal::Terminate)),
        Some(Signal::Interrupt) | None => Ok(answer.text.answer),
    }
}

/// The conversation as the model was taught to read it, with the start of its next answer.
fn encode(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &[ChatMessage]) -> Result<Vec<u32>, Failure> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = LocalTime::from_seconds(i64::try_from(seconds).unwrap_or(0));
    let options = ChatOptions { add_generation_prompt: true, now: Some(now), ..ChatOptions::default() };
    Ok(encode_chat(tokenizer, template, messages, &options)?)
}
