//! The `muser` binary: flags in, plain values down, exit codes out.
//!
//! Standard output is data, standard error is for people. Exit codes: 0 done, 1 failed while running, 2 wrong usage,
//! 3 the model file is damaged or not supported, 4 it does not fit in memory, 141 the reader of standard output left.
//!
//! No signal is caught. An interrupt ends the process as the system does it (130 in a shell); whatever had been printed
//! until then was flushed, and a file that was being written never had its name.

mod answer;
mod commands;
mod failure;
mod input;
mod model;
mod output;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use settings::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse_from(settings::with_two_dashes(std::env::args_os()));
    let outcome = match &cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Tokenize(args) => commands::tokenize::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Completions(args) => commands::completions::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_reader_gone() {
                output::tell(format_args!("muser: {failure}"));
            }
            failure.exit_code()
        }
    }
}
