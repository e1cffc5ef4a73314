//! `muser completions`: what a shell needs to complete muser's commands and flags.

use std::io;

use clap::CommandFactory;

use crate::failure::Failure;
use crate::settings::{Cli, CompletionsArgs};

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "muser", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script).map_err(Failure::Stdout)
}
