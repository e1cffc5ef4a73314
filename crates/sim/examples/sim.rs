//! Plays simulated worlds: `cargo run -p muser-sim --example sim -- --seed N` tells one step by step, `--seeds A..B` plays
//! many and counts what happened in them; with `--at-least COUNT` it fails if anything happened more rarely. A promise that
//! was broken is told with its seed, and the exit code is 1.

use std::io::{Write, stdout};
use std::ops::Range;
use std::process::ExitCode;

use muser_sim::{Telling, run, run_seeds};

const USAGE: &str = "usage: sim --seed N | --seeds A..B [--at-least COUNT]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = match arguments.as_slice() {
        ["--seed", seed] => seed.parse().ok().map(tell),
        ["--seeds", seeds] => range(seeds).map(|seeds| play(seeds, 0)),
        ["--seeds", seeds, "--at-least", least] => {
            range(seeds).zip(least.parse().ok()).map(|(seeds, least)| play(seeds, least))
        }
        _ => None,
    };
    match told {
        // Whoever reads may have read enough.
        Some(told) => told.unwrap_or(ExitCode::FAILURE),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..")?;
    Some(start.parse().ok()?..end.parse().ok()?)
}

fn tell(seed: u64) -> std::io::Result<ExitCode> {
    let story = run(seed, Telling::StepByStep);
    let mut out = stdout().lock();
    story.lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    match story.violation {
        None => writeln!(out, "seed {seed}: every promise was kept")?,
        Some(violation) => {
            writeln!(out, "seed {seed}: {violation}")?;
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn play(seeds: Range<u64>, least: u64) -> std::io::Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = run_seeds(seeds, threads);
    let mut out = stdout().lock();
    write!(out, "{}", summary.coverage)?;
    let rare = summary.coverage.below(least);
    rare.iter().try_for_each(|(mark, count)| writeln!(out, "{mark:?} happened {count} times, not {least}"))?;
    summary.failures.iter().try_for_each(|failure| writeln!(out, "{failure}"))?;
    writeln!(out, "{} seeds, {} of which broke a promise", summary.seeds, summary.failures.len())?;
    Ok(if summary.failures.is_empty() && rare.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
