//! `muser config check`: the values of every flag, and their origin.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use clap::CommandFactory;
use serde::Serialize;

use crate::config::{Configuration, Effective, Origin};
use crate::failure::Failure;
use crate::output::one_line;
use crate::settings::{Cli, ConfigArgs, ConfigCheckArgs, ConfigCommand};
use crate::usage::UsageError;

/// The command's output.
#[derive(Serialize)]
struct Report {
    /// The configuration file, if there is one.
    file: Option<String>,
    flags: Vec<FlagLine>,
}

#[derive(Serialize)]
struct FlagLine {
    command: String,
    flag: String,
    values: Vec<String>,
    /// `default`, `file` or `environment`.
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
}

/// Runs the command. `file` is what `--config` names.
pub fn run(args: &ConfigArgs, file: Option<&Path>) -> Result<(), Failure> {
    match &args.command {
        ConfigCommand::Check(args) => check(args, file),
    }
}

fn check(args: &ConfigCheckArgs, file: Option<&Path>) -> Result<(), Failure> {
    let configuration = Configuration::read(Cli::command(), file.map(Path::to_owned))?;
    let mut flags = configuration.effective()?;
    if let Some(wanted) = &args.command {
        let below = format!("{wanted} ");
        flags.retain(|flag| flag.command == *wanted || flag.command.starts_with(&below));
        if flags.is_empty() {
            return Err(UsageError::NoSuchCommand(wanted.clone()).into());
        }
    }
    let file = configuration.path().map(|path| path.display().to_string());
    let report = Report { file, flags: flags.into_iter().map(FlagLine::from).collect() };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(|error| Failure::Stdout(error.into()))?;
        return writeln!(out).map_err(Failure::Stdout);
    }
    print(&report, &mut out).map_err(Failure::Stdout)
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let file = report.file.as_deref();
    writeln!(out, "file  {}", file.map_or("none".into(), one_line))?;
    let mut command = "";
    for line in &report.flags {
        if line.command != command {
            command = &line.command;
            writeln!(out, "\n{command}")?;
        }
        let values = if line.values.is_empty() { "-".into() } else { line.values.join(", ") };
        let source = match line {
            FlagLine { line: Some(at), table, .. } => {
                let table = table.as_ref().map_or(String::new(), |table| format!(" [{table}]"));
                format!("file {}:{at}{table}", file.unwrap_or_default())
            }
            FlagLine { variable: Some(variable), .. } => format!("environment {variable}"),
            _ => line.source.to_owned(),
        };
        writeln!(out, "  {:<20} {:<24} {}", line.flag, one_line(&values), one_line(&source))?;
    }
    Ok(())
}

impl From<Effective> for FlagLine {
    fn from(Effective { command, flag, values, origin }: Effective) -> Self {
        let line = Self { command, flag, values, source: "default", line: None, table: None, variable: None };
        match origin.map(Arc::unwrap_or_clone) {
            None => line,
            Some(Origin::File { line: at, table, .. }) => {
                Self { source: "file", line: Some(at), table: Some(table).filter(|table| !table.is_empty()), ..line }
            }
            Some(Origin::Environment { variable }) => Self { source: "environment", variable: Some(variable), ..line },
        }
    }
}
