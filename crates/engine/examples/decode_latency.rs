//! Inter-token latency of a decoding sequence while a long prompt is prefilled, for several prefill chunk sizes:
//! `cargo run --release -p muser-engine --example decode_latency -- THREADS ROUNDS MODEL.gguf...`
//!
//! Every length has an engine of its own. A run starts one sequence, lets it decode alone for a while, submits a long prompt
//! and notes when tokens come, up to the prompt's first. The lengths take turns within every round, because a shared machine
//! drifts by more than they may differ; one round more than was asked for comes first and is not counted. Prints JSON.
//! A chunk as long beside a decoder as alone means that prefill does not yield.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use muser_engine::engine::{Generate, Job, PrefixReuse, RequestEvent, RequestId};
use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings};
use muser_kernels::cpu::Kernels;
use muser_kv::{KvIdentity, KvLayout};
use muser_model::{Executor, Model};
use muser_weights::gguf::ModelFiles;

const CONTEXT: usize = 8192;
/// Prefill rows per step beside a decoding sequence; each size is measured.
const CHUNKS_WHILE_DECODING: [NonZeroUsize; 5] = [rows(32), rows(64), rows(128), rows(256), CHUNK_ALONE];
/// Prefill rows per step without a decoding sequence.
const CHUNK_ALONE: NonZeroUsize = ChunkRows::DEFAULT.alone;
const DECODER_PROMPT_TOKENS: usize = 16;
/// Waits of the decoder that are measured before the long prompt comes.
const WAITS_ALONE: usize = 64;
const LONG_PROMPT_TOKENS: usize = 4000;
/// From one token of a prompt to the next: a prime, so that every vocabulary is visited widely.
const TOKEN_STRIDE: usize = 7919;

/// One measurement.
struct Run {
    /// Milliseconds from each token of the decoder to the next, with no other work.
    alone_ms: Vec<f64>,
    /// The same from the moment the long prompt is there until its first token.
    beside_ms: Vec<f64>,
    /// Seconds from submitting the long prompt to its first token.
    prefill_s: f64,
}

/// Times between tokens of the decoder, and the time of another request's token.
struct TokenTimes {
    decoder: RequestId,
    last: Instant,
    waits_ms: Vec<f64>,
    /// Time of the latest token of any other request.
    other: Option<Instant>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [threads, rounds, models @ ..] = arguments.as_slice() else { return Ok(usage()) };
    let (Ok(threads), Ok(rounds)) = (threads.parse(), rounds.parse::<NonZeroUsize>()) else { return Ok(usage()) };
    if models.is_empty() {
        return Ok(usage());
    }
    let mut reports = Vec::new();
    for path in models {
        reports.push(measure_model(Path::new(path), threads, rounds.get())?);
    }
    println!("[\n{}\n]", reports.join(",\n"));
    Ok(ExitCode::SUCCESS)
}

fn usage() -> ExitCode {
    eprintln!("usage: decode_latency THREADS ROUNDS MODEL.gguf...");
    ExitCode::from(2)
}

/// All runs of one model, as JSON.
fn measure_model(path: &Path, threads: NonZeroUsize, rounds: usize) -> Result<String, Box<dyn Error>> {
    let model = Arc::new(Model::load(Arc::new(ModelFiles::open(path)?), threads)?);
    let mut engines = Vec::new();
    for while_decoding in CHUNKS_WHILE_DECODING {
        engines.push(engine(&model, threads, ChunkRows { alone: CHUNK_ALONE, while_decoding })?);
    }
    let mut runs: Vec<Vec<Run>> = engines.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for turn in 0..engines.len() {
            // No engine is always the first, when the machine is coolest.
            let index = (round + turn) % engines.len();
            let run = measure(&mut engines[index])?;
            if round > 0 {
                runs[index].push(run);
            }
        }
        eprintln!("{}: round {round} of {rounds}", path.display());
    }
    let rows: Vec<String> = engines.iter().zip(&runs).map(|(engine, runs)| json_row(engine, runs)).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let device = engines[0].executor().device();
    Ok(format!(
        " {{\n  \"model\": {name:?},\n  \"kernels\": {:?},\n  \"kv\": \"q8\",\n  \"threads\": {},\n  \"rounds\": {rounds},\n  \
         \"prompt_tokens\": {LONG_PROMPT_TOKENS},\n  \"chunks\": [\n{}\n  ]\n }}",
        device.kernels,
        device.threads,
        rows.join(",\n")
    ))
}

fn engine(model: &Arc<Model>, threads: NonZeroUsize, chunk: ChunkRows) -> Result<Engine, Box<dyn Error>> {
    // Room for a whole chunk and the decoder's row beside it.
    let rows_max = CHUNK_ALONE.saturating_add(1);
    let bytes = model.cache_spec(KvLayout::Q8, CONTEXT)?.peak_bytes(CONTEXT, rows_max.get());
    let executor = Executor::new(Arc::clone(model), Kernels::detected(), threads, rows_max)?;
    let settings = EngineSettings {
        context: CONTEXT,
        kv: KvLayout::Q8,
        // No page is kept or leaves this process.
        identity: KvIdentity::PROCESS_LOCAL,
        budget_bytes: 2 * bytes,
        prefix_bytes_max: 0,
        installed_bytes_max: 0,
        running_max: const { rows(2) },
        waiting_max: 2,
        chunk,
    };
    Ok(Engine::new(executor, settings)?)
}

fn measure(engine: &mut Engine) -> Result<Run, Box<dyn Error>> {
    let decoder = engine.submit(job(engine, DECODER_PROMPT_TOKENS, None))?;
    let mut times = TokenTimes { decoder, last: Instant::now(), waits_ms: Vec::new(), other: None };
    // Computes its prompt, after which its first token comes.
    step(engine, &mut times)?;
    times.waits_ms.clear();
    while times.waits_ms.len() < WAITS_ALONE {
        step(engine, &mut times)?;
    }
    let alone_ms = std::mem::take(&mut times.waits_ms);

    let start = Instant::now();
    engine.submit(job(engine, LONG_PROMPT_TOKENS, Some(1)))?;
    let first_token = loop {
        step(engine, &mut times)?;
        if let Some(first_token) = times.other {
            break first_token;
        }
    };
    engine.cancel(decoder);
    step(engine, &mut times)?;
    Ok(Run { alone_ms, beside_ms: times.waits_ms, prefill_s: (first_token - start).as_secs_f64() })
}

fn job(engine: &Engine, prompt_tokens: usize, tokens_max: Option<usize>) -> Job {
    let vocab = u32::try_from(engine.executor().spec().config().vocab).unwrap_or(u32::MAX);
    let prompt: Vec<u32> = (0..vocab).cycle().step_by(TOKEN_STRIDE).take(prompt_tokens).collect();
    let generate = Generate {
        tokens_max,
        context: CONTEXT,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: None,
    };
    Job::generate(prompt, PrefixReuse::Isolate, generate)
}

fn step(engine: &mut Engine, times: &mut TokenTimes) -> Result<(), Box<dyn Error>> {
    let mut failure = None;
    engine.step(&mut |id, event| match event {
        RequestEvent::Token(_) if id == times.decoder => {
            let now = Instant::now();
            times.waits_ms.push(1e3 * (now - times.last).as_secs_f64());
            times.last = now;
        }
        RequestEvent::Token(_) => times.other = Some(Instant::now()),
        RequestEvent::Failed(error) => failure = Some(error),
        _ => {}
    })?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// The runs of one length of chunk.
fn json_row(engine: &Engine, runs: &[Run]) -> String {
    let ChunkRows { alone, while_decoding } = engine.settings().chunk;
    let tokens: Vec<String> = runs.iter().map(|run| run.beside_ms.len().to_string()).collect();
    let prefill_s: Vec<f64> = runs.iter().map(|run| run.prefill_s).collect();
    format!(
        "   {{\n    \"chunk_alone\": {alone},\n    \"chunk_while_decoding\": {while_decoding},\n    \
         \"ms_between_tokens_during_prefill\": {},\n    \"ms_between_tokens_alone\": {},\n    \
         \"tokens_during_prefill\": [{}],\n    \"prefill_seconds\": {}\n   }}",
        json_waits(runs, |run| &run.beside_ms),
        json_waits(runs, |run| &run.alone_ms),
        tokens.join(", "),
        json_spread(&prefill_s)
    )
}

/// Median, 95th percentile and maximum over the waits of all rounds, and how the rounds' medians spread.
fn json_waits(runs: &[Run], waits: fn(&Run) -> &Vec<f64>) -> String {
    let all: Vec<f64> = runs.iter().flat_map(waits).copied().collect();
    let medians: Vec<f64> = runs.iter().map(|run| quantile(waits(run), 0.5)).collect();
    let [median, p95, max] = [0.5, 0.95, 1.0].map(|share| quantile(&all, share));
    let medians = json_spread(&medians);
    format!("{{\"median\": {median:.3}, \"p95\": {p95:.3}, \"max\": {max:.3}, \"medians_of_rounds\": {medians}}}")
}

fn json_spread(rounds: &[f64]) -> String {
    let [min, median, max] = [0.0, 0.5, 1.0].map(|share| quantile(rounds, share));
    let rounds: Vec<String> = rounds.iter().map(|value| format!("{value:.3}")).collect();
    format!("{{\"median\": {median:.3}, \"min\": {min:.3}, \"max\": {max:.3}, \"rounds\": [{}]}}", rounds.join(", "))
}

/// The smallest value that at least `share` of the values do not exceed; NaN if there are none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let wanted = share * sorted.len() as f64;
    let mut counted = (1..).zip(&sorted);
    counted.find(|(count, _)| f64::from(*count) >= wanted).map_or(f64::NAN, |(_, value)| *value)
}

const fn rows(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}
