//! The `muser` binary: flags in, plain values down, exit codes out.
//!
//! Standard output is data, standard error is for people. Exit codes: 0 done, 1 failed while running, 2 wrong usage,
//! 3 the model file is damaged or not supported, 4 it does not fit in memory.

mod commands;
mod failure;
mod model;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use settings::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse_from(settings::with_long_spellings(std::env::args_os()));
    let outcome = match &cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Bench(args) => commands::bench::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("muser: {failure}");
            failure.exit_code()
        }
    }
}
