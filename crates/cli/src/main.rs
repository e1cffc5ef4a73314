//! The `muser` binary: flags in, plain values down, exit codes out.
//!
//! Standard output is data, standard error is for people. Exit codes: 0 done, 1 failed while running, 2 wrong usage,
//! 3 the model file is damaged or not supported, 4 it does not fit in memory, 130 interrupted, 141 the reader of standard
//! output left, 143 terminated.
//!
//! A first SIGINT or SIGTERM ends what is under way cleanly: text ends with a line break, a file that was being written is
//! removed. A second one ends the process at once.

mod answer;
mod commands;
mod failure;
mod input;
mod interrupt;
mod model;
mod output;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use failure::Failure;
use interrupt::Interrupt;
use settings::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse_from(settings::with_two_dashes(std::env::args_os()));
    let outcome = Interrupt::listen().map_err(Failure::Signals).and_then(|interrupt| run(&cli.command, &interrupt));
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

fn run(command: &Command, interrupt: &Interrupt) -> Result<(), Failure> {
    match command {
        Command::Run(args) => commands::run::run(args, interrupt),
        Command::Chat(args) => commands::chat::run(args, interrupt),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Quantize(args) => commands::quantize::run(args, interrupt),
        Command::Logits(args) => commands::logits::run(args, interrupt),
        Command::Bench(args) => commands::bench::run(args, interrupt),
        Command::Tokenize(args) => commands::tokenize::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Completions(args) => commands::completions::run(args),
    }
}
