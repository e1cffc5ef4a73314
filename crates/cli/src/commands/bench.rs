//! `muser bench`: prefill and decode in tokens per second, in the shape of the field's usual table.

use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

use muser_kv::{KvLayout, PAGE_ROWS, PagePool, SequenceCache};
use muser_model::cost::{Cost, SequenceRows};
use muser_model::{Forward, LoadError, LogitsWanted, ModelSpec, SequenceInput, read_config};
use serde::Serialize;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::one_line;
use crate::settings::{BenchArgs, BenchFormat};
use crate::usage::UsageError;

/// From one token of a test to the next: a prime, so that every vocabulary is visited widely.
const TOKEN_STRIDE: usize = 7919;

/// Most tests of one run.
const TESTS_MAX: usize = 1000;

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
    n_parallel: usize,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ts: Vec<f64>,
    /// Arithmetic of the model at the mean speed, 10^12 operations per second.
    avg_tops: f64,
    /// Memory traffic of the model at the mean speed, 10^9 bytes per second.
    avg_gbs: f64,
}

/// Workload of one test, at the current depth.
#[derive(Clone, Copy)]
enum Test {
    /// Tokens of one sequence, in steps as large as the executor takes.
    Prefill { tokens: usize },
    /// Steps of one token for each of some sequences.
    Decode { steps: usize, sequences: usize },
}

/// An executor with a sequence that gets longer from depth to depth; tests run on forks of it.
struct Bench<'a> {
    executor: Box<dyn Forward>,
    base: SequenceCache,
    vocab: usize,
    interrupt: &'a Interrupt,
}

/// Runs the command.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let tests = tests(args)?;
    let mut depths = args.n_depth.clone();
    depths.sort_unstable();
    depths.dedup();
    if depths.len().saturating_mul(tests.len()) > TESTS_MAX {
        let (depths, tests) = (depths.len(), tests.len());
        return Err(UsageError::TooManyTests { depths, tests, max: TESTS_MAX }.into());
    }
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let name = files.metadata().str("general.name").unwrap_or("unnamed").to_owned();
    let context = read_config(&files.metadata()).map_err(LoadError::from)?.context;
    let longest = tests.iter().map(Test::positions).max().unwrap_or(0);
    let deepest = depths.last().copied().unwrap_or(0);
    let length = deepest.checked_add(longest).filter(|&positions| positions <= context);
    let length = length.ok_or(UsageError::TestBeyondContext { tokens: longest, depth: deepest, context })?;
    let executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let rows_max = executor.rows_max();
    if let Some(sequences) = tests.iter().map(Test::sequences).find(|&sequences| sequences > rows_max) {
        return Err(UsageError::TooManySequences { sequences, rows: rows_max }.into());
    }
    let spec = executor.spec().cache_spec(args.kv.into(), length)?;
    let base = SequenceCache::new(spec, PagePool::new(usize::MAX));
    let vocab = executor.spec().config().vocab;
    let mut bench = Bench { executor, base, vocab, interrupt };
    let mut rows = Vec::new();
    interrupt.hold();
    for depth in depths {
        bench.reach(depth)?;
        for &test in &tests {
            let samples_ts = bench.samples(test, depth, args.repetitions.get())?;
            let (avg_ts, stddev_ts) = mean_and_deviation(&samples_ts);
            let device = bench.executor.device();
            let cost = test.cost(bench.executor.spec(), args.kv.into(), depth, rows_max);
            let per_second = |count: u64| count as f64 / test.tokens() as f64 * avg_ts;
            let (n_prompt, n_gen) = match test {
                Test::Prefill { tokens } => (tokens, 0),
                Test::Decode { steps, .. } => (0, steps),
            };
            rows.push(Row {
                model: name.clone(),
                kernels: device.kernels,
                kv: args.kv.to_string(),
                n_threads: device.threads,
                n_prompt,
                n_gen,
                n_depth: depth,
                n_parallel: test.sequences(),
                avg_ts,
                stddev_ts,
                samples_ts,
                avg_tops: per_second(cost.operations) * 1e-12,
                avg_gbs: per_second(cost.bytes) * 1e-9,
            });
        }
    }
    print(&rows, args.output)
}

/// The tests that run at every depth.
fn tests(args: &BenchArgs) -> Result<Vec<Test>, Failure> {
    let counted = |numbers: &[usize]| numbers.iter().copied().filter(|&tokens| tokens > 0).collect::<Vec<_>>();
    let prefills = counted(&args.n_prompt).into_iter().map(|tokens| Test::Prefill { tokens });
    let decodes = counted(&args.n_gen).into_iter().flat_map(|steps| {
        args.parallel.iter().map(move |sequences| Test::Decode { steps, sequences: sequences.get() })
    });
    let tests: Vec<Test> = prefills.chain(decodes).collect();
    if tests.is_empty() {
        return Err(UsageError::NothingToMeasure.into());
    }
    let decodes = tests.iter().any(|test| matches!(test, Test::Decode { .. }));
    if !decodes && args.parallel.iter().any(|sequences| sequences.get() > 1) {
        return Err(UsageError::ParallelWithoutDecode.into());
    }
    Ok(tests)
}

impl Test {
    /// Positions that a sequence of the test grows by.
    fn positions(&self) -> usize {
        match *self {
            Self::Prefill { tokens } => tokens,
            Self::Decode { steps, .. } => steps,
        }
    }

    fn sequences(&self) -> usize {
        match *self {
            Self::Prefill { .. } => 1,
            Self::Decode { sequences, .. } => sequences,
        }
    }

    /// Tokens of a run, over all sequences.
    fn tokens(&self) -> usize {
        self.positions() * self.sequences()
    }

    /// Arithmetic and memory traffic of the model in all steps that are timed.
    fn cost(&self, spec: &ModelSpec, kv: KvLayout, depth: usize, rows_max: usize) -> Cost {
        let end = depth + self.positions();
        let width = match self {
            Self::Prefill { .. } => rows_max,
            Self::Decode { .. } => 1,
        };
        let step = |position: usize| {
            let rows = SequenceRows { position, rows: width.min(end - position), logits: 1 };
            spec.step_cost(kv, &vec![rows; self.sequences()]).total()
        };
        (depth..end).step_by(width).map(step).sum()
    }
}

impl Bench<'_> {
    /// Extends the common sequence to the last whole page before `depth`: only whole pages are shared with forks.
    fn reach(&mut self, depth: usize) -> Result<(), Failure> {
        let end = depth / PAGE_ROWS * PAGE_ROWS;
        let Self { executor, base, vocab, interrupt } = self;
        let tokens = tokens(*vocab, 0, base.rows()..end);
        prefill(executor, base, &tokens, interrupt)
    }

    /// Tokens per second of each counted run.
    fn samples(&mut self, test: Test, depth: usize, repetitions: usize) -> Result<Vec<f64>, Failure> {
        self.sample(test, depth)?; // Not counted: page faults and clocks settle here.
        (0..repetitions).map(|_| self.sample(test, depth)).collect()
    }

    /// Tokens per second of one run of `test`.
    fn sample(&mut self, test: Test, depth: usize) -> Result<f64, Failure> {
        let Self { executor, base, vocab, interrupt } = self;
        let mut caches = Vec::new();
        for sequence in 0..test.sequences() {
            let mut cache = base.fork(base.rows()).expect("whole pages up to the last row can be shared");
            let rest = tokens(*vocab, sequence, cache.rows()..depth);
            prefill(executor, &mut cache, &rest, interrupt)?;
            caches.push(cache);
        }
        let start = Instant::now();
        match test {
            Test::Prefill { tokens: count } => {
                let tokens = tokens(*vocab, 0, depth..depth + count);
                for cache in &mut caches {
                    prefill(executor, cache, &tokens, interrupt)?;
                }
            }
            Test::Decode { steps, .. } => {
                for position in depth..depth + steps {
                    interrupt.check()?;
                    decode(executor, &mut caches, *vocab, position)?;
                }
            }
        }
        Ok(test.tokens() as f64 / start.elapsed().as_secs_f64())
    }
}

/// Tokens of a sequence at `positions`. They visit the whole vocabulary: speed must not depend on lucky repeats.
fn tokens(vocab: usize, sequence: usize, positions: Range<usize>) -> Vec<u32> {
    positions.map(|position| token(vocab, sequence, position)).collect()
}

fn token(vocab: usize, sequence: usize, position: usize) -> u32 {
    u32::try_from((position + sequence).wrapping_mul(TOKEN_STRIDE) % vocab).expect("a vocabulary of at most 2^32")
}

fn prefill(
    executor: &mut dyn Forward,
    cache: &mut SequenceCache,
    tokens: &[u32],
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    for chunk in tokens.chunks(executor.rows_max()) {
        interrupt.check()?;
        let mut batch = [SequenceInput::new(cache, chunk, LogitsWanted::Last)];
        executor.forward(&mut batch, &mut |_, _| {})?;
        let [input] = batch;
        input.outcome?;
    }
    Ok(())
}

/// One step of one token for each sequence.
fn decode(
    executor: &mut dyn Forward,
    caches: &mut [SequenceCache],
    vocab: usize,
    position: usize,
) -> Result<(), Failure> {
    let tokens: Vec<u32> = (0..caches.len()).map(|sequence| token(vocab, sequence, position)).collect();
    let inputs = caches.iter_mut().zip(tokens.chunks_exact(1));
    let mut batch: Vec<SequenceInput<'_>> =
        inputs.map(|(cache, token)| SequenceInput::new(cache, token, LogitsWanted::Last)).collect();
    executor.forward(&mut batch, &mut |_, _| {})?;
    batch.into_iter().try_for_each(|input| input.outcome)?;
    Ok(())
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
                "| model | kernels | kv | threads | test | t/s | TOP/s | GB/s |".to_owned(),
                "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |".to_owned(),
            ];
            for row in rows {
                let test = match row {
                    Row { n_prompt, .. } if *n_prompt > 0 => format!("pp{n_prompt}"),
                    Row { n_gen, n_parallel: 1, .. } => format!("tg{n_gen}"),
                    Row { n_gen, n_parallel, .. } => format!("tg{n_gen} x {n_parallel}"),
                };
                let depth = if row.n_depth > 0 { format!(" @ d{}", row.n_depth) } else { String::new() };
                let speed = format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts);
                let Row { kernels, kv, n_threads, avg_tops, avg_gbs, .. } = row;
                let model = one_line(&row.model);
                let model_speed = format!("{avg_tops:.3} | {avg_gbs:.1}");
                lines.push(format!(
                    "| {model} | {kernels} | {kv} | {n_threads} | {test}{depth} | {speed} | {model_speed} |"
                ));
            }
            lines.iter().try_for_each(|line| writeln!(out, "{line}")).map_err(Failure::Stdout)
        }
    }
}
