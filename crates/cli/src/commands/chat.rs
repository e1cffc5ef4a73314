//! `muser chat`: a conversation, one line in and one answer out, until the input ends.
//!
//! Every turn goes through the model's own chat template; what the person types can never become a control token. The
//! pages of earlier turns are kept, so a turn computes only what is new.

use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use muser_engine::engine::{Event, PrefixReuse, Request};
use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings, load_tokenizer};
use muser_model::{LoadError, read_config};
use muser_text::{ChatOptions, ChatTemplate, ChatTemplates, LocalTime, Message, Tokenizer, encode_chat};
use muser_weights::gguf::{Metadata, MetadataError, Optional};

use crate::failure::Failure;
use crate::model;
use crate::output::{Printer, tell};
use crate::settings::{ChatArgs, SamplerArgs};

/// What a turn did.
#[derive(Default)]
struct Turn {
    text: Vec<u32>,
    reused: usize,
    first_token: Option<Instant>,
    failure: Option<Failure>,
    done: bool,
}

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<(), Failure> {
    let kv = args.generation.kv()?;
    let files = model::open(args.model.as_deref())?;
    let vocab = read_config(&files.metadata()).map_err(LoadError::from)?.vocab;
    let tokenizer = load_tokenizer(&files.metadata(), vocab)?;
    let templates = templates(&files.metadata())?;
    let template = templates.choose(None, &serde_json::Value::Null)?;
    let executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let context = args.generation.context(executor.model().config().context);
    // Room for the conversation and, beside it, for what earlier turns left.
    let pages = executor.model().cache_spec(kv, context)?.peak_bytes(context, model::CHUNK_ROWS.get());
    let settings = EngineSettings {
        context,
        kv,
        // The pages never leave this process and belong to one model.
        identity: [0; 32],
        budget_bytes: 2 * pages,
        prefix_bytes_max: pages,
        running_max: std::num::NonZeroUsize::MIN,
        waiting_max: 1,
        chunk: ChunkRows::DEFAULT,
    };
    let mut engine = Engine::new(executor, settings)?;
    let seed = args.generation.seed.value();
    let sampling = sampling(&args.sampler, args.generation.temp, seed);
    let mut messages: Vec<Message> = args.system_prompt.iter().map(|text| Message::new("system", text)).collect();
    let mut lines = io::stdin().lock().lines();
    let prompt_sign = io::stdin().is_terminal();
    loop {
        if prompt_sign {
            eprint!("> ");
        }
        let Some(line) = lines.next() else { return Ok(()) };
        let line = line.map_err(Failure::Stdin)?;
        if line.trim().is_empty() {
            continue;
        }
        messages.push(Message::new("user", &line));
        let request = Request {
            prompt: encode(&tokenizer, template, &messages)?,
            tokens_max: args.generation.tokens_max(),
            context,
            stop_tokens: Arc::from(tokenizer.end_of_generation_ids()),
            sampling: sampling.clone(),
            logprobs: None,
            reuse: PrefixReuse::Share,
        };
        let answer = answer(&mut engine, &tokenizer, request, seed)?;
        messages.push(Message::new("assistant", &answer));
    }
}

/// Prints the model's answer as it comes, and returns it.
fn answer(engine: &mut Engine, tokenizer: &Tokenizer, request: Request, seed: u64) -> Result<String, Failure> {
    let (start, prompt) = (Instant::now(), request.prompt.len());
    let id = engine.submit(request)?;
    let mut printer = Printer::new(tokenizer);
    let mut turn = Turn::default();
    while !turn.done {
        let mut reader_gone = false;
        engine.step(&mut |event| match event {
            Event::Started { reused, .. } => turn.reused = reused,
            Event::Token(token) => {
                turn.first_token.get_or_insert_with(Instant::now);
                if !token.is_stop {
                    turn.text.push(token.token);
                    reader_gone = printer.token(token.token).is_break();
                }
            }
            Event::Finished { .. } => turn.done = true,
            Event::Failed { error, .. } => {
                turn.failure = Some(error.into());
                turn.done = true;
            }
            Event::PrefillProgress { .. } | Event::Preempted { .. } => {}
        })?;
        if reader_gone {
            engine.cancel(id);
        }
    }
    printer.finish()?;
    if let Some(failure) = turn.failure {
        return Err(failure);
    }
    let (first, end) = (turn.first_token.unwrap_or(start), Instant::now());
    let generated = turn.text.len();
    let speed = generated.saturating_sub(1) as f64 / (end - first).as_secs_f64().max(f64::EPSILON);
    tell(format_args!(
        "[prompt {prompt} tokens, {} of them reused, first token after {:.2} s; {generated} generated, {speed:.1}/s; seed {seed}]",
        turn.reused,
        (first - start).as_secs_f64(),
    ));
    let bytes =
        tokenizer.decode(&turn.text, muser_text::ControlTokens::Hide).expect("the model and its tokenizer agree");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The conversation as the model was taught to read it, with the start of its next answer.
fn encode(tokenizer: &Tokenizer, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>, Failure> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = LocalTime::from_seconds(i64::try_from(seconds).unwrap_or(0));
    let options = ChatOptions { add_generation_prompt: true, now: Some(now), ..ChatOptions::default() };
    Ok(encode_chat(tokenizer, template, messages, &options)?)
}

/// The templates in a model's file.
fn templates(metadata: &Metadata<'_>) -> Result<ChatTemplates, Failure> {
    const MAIN: &str = "tokenizer.chat_template";
    let text = |key: &str| metadata.str(key).optional().map_err(Failure::Metadata);
    let main = text(MAIN)?;
    let named = metadata
        .iter()
        .filter_map(|(key, _)| Some((key.strip_prefix(MAIN)?.strip_prefix('.')?, key)))
        .map(|(name, key)| Ok::<_, MetadataError>((name, metadata.str(key)?)))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::Metadata)?;
    Ok(ChatTemplates::new(main, named)?)
}

fn sampling(args: &SamplerArgs, temperature: f32, seed: u64) -> SamplingSettings {
    SamplingSettings {
        seed,
        temperature,
        logit_bias: Vec::new(),
        repeat_penalty: args.repeat_penalty,
        frequency_penalty: args.frequency_penalty,
        presence_penalty: args.presence_penalty,
        penalty_tokens: usize::try_from(args.repeat_last_n).unwrap_or(usize::MAX),
        top_k: args.top_k,
        typical_p: args.typical,
        top_p: args.top_p,
        min_p: args.min_p,
    }
}
