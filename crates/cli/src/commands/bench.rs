//! `muser bench`: prefill and decode in tokens per second, in the shape of the field's usual table.

use std::io::{self, Write};
use std::time::Instant;

use muser_kv::{PagePool, SequenceCache};
use muser_model::{Forward, LoadError, LogitsWanted, SequenceInput, read_config};
use serde::Serialize;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::one_line;
use crate::settings::{BenchArgs, BenchFormat};

/// From one token of a test to the next: a prime, so that every vocabulary is visited widely.
const TOKEN_STRIDE: usize = 7919;

/// One test's result.
#[derive(Serialize)]
struct Row {
    model: String,
    kernels: String,
    kv: String,
    n_threads: usize,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ts: Vec<f64>,
}

/// Tokens of a test: some to prefill, or some to decode, after `depth` others.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    generate: usize,
    depth: usize,
}

/// Runs the command.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let longest = args.n_prompt.max(args.n_gen);
    if longest == 0 {
        return Err(Failure::Usage("there is nothing to measure: both -p and -n are 0".into()));
    }
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let name = files.metadata().str("general.name").unwrap_or("unnamed").to_owned();
    let context = read_config(&files.metadata()).map_err(LoadError::from)?.context;
    if args.n_depth.checked_add(longest).is_none_or(|positions| positions > context) {
        return Err(Failure::Usage(format!(
            "a test of {longest} tokens at depth {} does not fit the model's context of {context}",
            args.n_depth
        )));
    }
    let mut executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let mut rows = Vec::new();
    interrupt.hold();
    for (prompt, generate) in [(args.n_prompt, 0), (0, args.n_gen)] {
        if prompt + generate == 0 {
            continue;
        }
        let test = Test { prompt, generate, depth: args.n_depth };
        measure(&mut executor, args, test, interrupt)?; // Not counted: page faults and clocks settle here.
        let samples_ts = (0..args.repetitions.get())
            .map(|_| measure(&mut executor, args, test, interrupt))
            .collect::<Result<Vec<f64>, Failure>>()?;
        let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
        rows.push(Row {
            model: name.clone(),
            kernels: executor.device().kernels,
            kv: args.kv.to_string(),
            n_threads: executor.device().threads,
            n_prompt: prompt,
            n_gen: generate,
            n_depth: args.n_depth,
            avg_ts,
            stddev_ts,
            samples_ts,
        });
    }
    print(&rows, args.output)
}

/// Tokens per second of one run of `test`.
fn measure(executor: &mut dyn Forward, args: &BenchArgs, test: Test, interrupt: &Interrupt) -> Result<f64, Failure> {
    interrupt.check()?;
    let length = test.depth + test.prompt.max(test.generate);
    let spec = executor.spec().cache_spec(args.kv.into(), length)?;
    let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
    let vocab = u32::try_from(executor.spec().config().vocab).unwrap_or(u32::MAX);
    // A fixed sequence that visits the whole vocabulary: speed must not depend on lucky repeats.
    let tokens: Vec<u32> = (0..vocab).cycle().step_by(TOKEN_STRIDE).take(length).collect();
    let (depth, counted) = tokens.split_at(test.depth);
    for chunk in depth.chunks(executor.rows_max()) {
        step(executor, &mut cache, chunk)?;
    }
    let width = if test.prompt > 0 { executor.rows_max() } else { 1 };
    let start = Instant::now();
    for chunk in counted.chunks(width) {
        step(executor, &mut cache, chunk)?;
    }
    Ok(counted.len() as f64 / start.elapsed().as_secs_f64())
}

fn step(executor: &mut dyn Forward, cache: &mut SequenceCache, tokens: &[u32]) -> Result<(), Failure> {
    let mut batch = [SequenceInput::new(cache, tokens, LogitsWanted::Last)];
    executor.forward(&mut batch, &mut |_, _| {})?;
    let [input] = batch;
    Ok(input.outcome?)
}

fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|x| (x - mean) * (x - mean)).sum();
    (mean, if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

fn print(rows: &[Row], format: BenchFormat) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match format {
        BenchFormat::Json => {
            serde_json::to_writer_pretty(&mut out, rows).map_err(|error| Failure::Stdout(error.into()))?;
            writeln!(out).map_err(Failure::Stdout)
        }
        BenchFormat::Md => {
            let mut lines = vec![
                "| model | kernels | kv | threads | test | t/s |".to_owned(),
                "| --- | --- | --- | ---: | ---: | ---: |".to_owned(),
            ];
            for row in rows {
                let test = if row.n_prompt > 0 { format!("pp{}", row.n_prompt) } else { format!("tg{}", row.n_gen) };
                let depth = if row.n_depth > 0 { format!(" @ d{}", row.n_depth) } else { String::new() };
                let speed = format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts);
                let Row { kernels, kv, n_threads, .. } = row;
                let model = one_line(&row.model);
                lines.push(format!("| {model} | {kernels} | {kv} | {n_threads} | {test}{depth} | {speed} |"));
            }
            lines.iter().try_for_each(|line| writeln!(out, "{line}")).map_err(Failure::Stdout)
        }
    }
}
