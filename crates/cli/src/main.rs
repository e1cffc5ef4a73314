//! The `muser` binary: flags in, plain values down, exit codes out.
//!
//! Standard output is data, standard error is for people. Exit codes: 0 done, 1 failed while running, 2 wrong usage,
//! 3 the model file is damaged or not supported, 4 it does not fit in memory, 5 the server cannot listen where it should or
//! a cluster's files have the wrong permissions, 75 the producer cannot serve as it was told, 130 interrupted, 141 the reader of standard output
//! left, 143 terminated.
//!
//! A first SIGINT or SIGTERM ends what is under way cleanly: text ends with a line break, a file that was being written is
//! removed. A second one ends the process at once.

#![forbid(unsafe_code)]

mod answer;
mod cluster_member;
mod commands;
mod config;
mod descriptors;
mod failure;
#[cfg_attr(not(feature = "cuda"), path = "gpu_absent.rs")]
mod gpu;
mod hub;
mod input;
mod interrupt;
mod member_error;
mod model;
mod node;
mod output;
mod progress;
mod settings;
mod signals;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use failure::Failure;
use interrupt::Interrupt;
use settings::{Cli, Command};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_reader_gone() {
                output::tell(format_args!("muser: {failure}"));
            }
            failure.exit_code()
        }
    }
}

fn run() -> Result<(), Failure> {
    let args = settings::with_two_dashes(std::env::args_os()).collect();
    let Cli { command, config } = Cli::parse_from(config::with_configured(Cli::command(), args)?);
    // Commands that ask for it end in order; a server hears signals itself; the others end as the system does it.
    let interrupt = || Interrupt::listen().map_err(Failure::Signals);
    match &command {
        Command::Run(args) => commands::run::run(args, &interrupt()?),
        Command::Chat(args) => commands::chat::run(args, &interrupt()?),
        Command::Serve(args) => commands::serve::run(args),
        Command::Produce(args) => commands::produce::run(args),
        Command::Enroll(args) => commands::enroll::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Quantize(args) => commands::quantize::run(args, &interrupt()?),
        Command::MakeModel(args) => commands::make_model::run(args, &interrupt()?),
        Command::Logits(args) => commands::logits::run(args, &interrupt()?),
        Command::Bench(args) => commands::bench::run(args, &interrupt()?),
        Command::Tokenize(args) => commands::tokenize::run(args),
        Command::Pull(args) => commands::pull::run(args),
        Command::Conformance(args) => commands::conformance::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Cluster(args) => commands::cluster::run(args),
        Command::Config(args) => commands::config::run(args, config.as_deref()),
        Command::Completions(args) => commands::completions::run(args),
    }
}
