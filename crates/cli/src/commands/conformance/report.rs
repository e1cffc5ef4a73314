//! The table of what was compared, printed as it grows, or a record at the end.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Instant;

use muser_conformance::tally::BitTally;
use serde::Serialize;

use crate::commands::doctor;
use crate::failure::Failure;
use crate::output::one_line;
use crate::settings::conformance::{ConformanceArgs, ConformanceFormat};
use crate::usage::UsageError;

/// Part of the comparison that a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportPart {
    /// Single operations.
    Operations,
    /// Cases of the exactness suite.
    Suite,
    /// Whole models in every way.
    Models,
}

impl ReportPart {
    fn name(self) -> &'static str {
        match self {
            Self::Operations => "operations",
            Self::Suite => "suite",
            Self::Models => "models",
        }
    }
}

/// Results of the comparisons so far.
pub struct Report {
    only: String,
    format: ConformanceFormat,
    /// Name of the device, and the instruction sets compared on it.
    device: &'static str,
    levels: Vec<String>,
    rows: Vec<Row>,
    total: BitTally,
}

/// One row of the table.
#[derive(Serialize)]
struct Row {
    part: ReportPart,
    name: String,
    cases: u64,
    values: u64,
    wrong: u64,
    seconds: f64,
}

/// All of it, in the shape of `bench/records`.
#[derive(Serialize)]
struct Record<'a> {
    what: &'static str,
    command: String,
    version: &'static str,
    commit: Option<&'a str>,
    machine: Machine,
    device: &'static str,
    levels: &'a [String],
    rows: &'a [Row],
    totals: Totals<'a>,
}

#[derive(Serialize)]
struct Machine {
    processor: Option<String>,
    cpus: usize,
    gpu: String,
}

#[derive(Serialize)]
struct Totals<'a> {
    cases: u64,
    values: u64,
    wrong: u64,
    first_wrong: Option<&'a str>,
    seconds: f64,
}

impl Report {
    /// An empty report.
    pub fn new(args: &ConformanceArgs) -> Self {
        let (only, format) = (args.only.clone(), args.output);
        Self { only, format, device: "", levels: Vec::new(), rows: Vec::new(), total: BitTally::default() }
    }

    /// Names the device, and the instruction sets or the chip that are compared.
    pub fn begin(&mut self, device: &'static str, levels: Vec<String>) {
        (self.device, self.levels) = (device, levels);
    }

    /// The lines above the first row.
    fn print_head(&self) -> Result<(), Failure> {
        self.print(&format!("{}: {}\n", self.device, self.levels.join(", ")))?;
        self.print("| part | name | cases | values | wrong | seconds |")?;
        self.print("| --- | --- | ---: | ---: | ---: | ---: |")
    }

    /// Runs `compare` and adds its row, if the row is wanted. What `compare` fails with counts as a difference.
    pub fn measure<E: Display>(
        &mut self,
        part: ReportPart,
        name: &str,
        compare: impl FnOnce(&mut BitTally) -> Result<(), E>,
    ) -> Result<(), Failure> {
        if !format!("{} {name}", part.name()).contains(&self.only) {
            return Ok(());
        }
        if self.format == ConformanceFormat::Md && self.rows.is_empty() {
            self.print_head()?;
        }
        let (started, mut tally) = (Instant::now(), BitTally::default());
        if let Err(reason) = compare(&mut tally) {
            tally.failed(&name, &reason);
        }
        let seconds = started.elapsed().as_secs_f64();
        let BitTally { cases, compared: values, wrong, .. } = tally;
        if self.format == ConformanceFormat::Md {
            let name = one_line(name);
            self.print(&format!("| {} | {name} | {cases} | {values} | {wrong} | {seconds:.1} |", part.name()))?;
        }
        self.rows.push(Row { part, name: name.to_owned(), cases, values, wrong, seconds });
        self.total.add(tally);
        Ok(())
    }

    /// Prints the sum, or the record; fails if anything differed, or nothing was compared.
    pub fn finish(self, args: &ConformanceArgs) -> Result<(), Failure> {
        if self.rows.is_empty() {
            return Err(UsageError::NoSuchPart(self.only).into());
        }
        let seconds: f64 = self.rows.iter().map(|row| row.seconds).sum();
        let BitTally { cases, compared: values, wrong, ref first_wrong } = self.total;
        match self.format {
            ConformanceFormat::Md => self.print(&format!("| all | | {cases} | {values} | {wrong} | {seconds:.1} |"))?,
            ConformanceFormat::Json => {
                let first_wrong = first_wrong.as_deref();
                self.print_record(args, Totals { cases, values, wrong, first_wrong, seconds })?;
            }
        }
        match first_wrong {
            None => Ok(()),
            Some(first) => Err(Failure::Different { wrong, values, first: first.clone() }),
        }
    }

    fn print_record(&self, args: &ConformanceArgs, totals: Totals<'_>) -> Result<(), Failure> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let record = Record {
            what: "every operation and whole models on one device against the CPU, by bits",
            command: format!("muser {}", words.join(" ")),
            version: env!("CARGO_PKG_VERSION"),
            commit: args.commit.as_deref(),
            machine: Machine {
                processor: doctor::processor(),
                cpus: crate::model::threads(None).get(),
                gpu: crate::gpu::describe(),
            },
            device: self.device,
            levels: &self.levels,
            rows: &self.rows,
            totals,
        };
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &record).map_err(|error| Failure::Stdout(error.into()))?;
        writeln!(out).map_err(Failure::Stdout)
    }

    fn print(&self, line: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::Stdout)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::settings::{Cli, Command};

    fn arguments(of: &[&str]) -> ConformanceArgs {
        match Cli::parse_from([&["muser", "conformance"], of].concat()).command {
            Command::Conformance(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_difference_ends_the_command_with_its_name_and_all_are_counted() {
        let args = arguments(&[]);
        let mut report = Report::new(&args);
        let mut measure = |name: &str, got: f32, outcome: Result<(), &'static str>| {
            let compare = |tally: &mut BitTally| {
                tally.compare(&name, 1, &[1.0], &[got]);
                outcome
            };
            report.measure(ReportPart::Operations, name, compare).unwrap();
        };
        measure("right", 1.0, Ok(()));
        measure("lost", 1.0, Err("the device is gone"));
        measure("wrong", 2.0, Ok(()));
        let failure = report.finish(&args).unwrap_err();
        assert!(matches!(failure, Failure::Different { wrong: 2, values: 3, .. }), "{failure:?}");
        assert_eq!(failure.to_string(), "2 of 3 values are wrong: lost: the device is gone");
    }

    #[test]
    fn rows_are_chosen_by_their_part_and_name() {
        let args = arguments(&["--only", "operations mat"]);
        let mut report = Report::new(&args);
        let mut ran = Vec::new();
        for (part, name) in
            [(ReportPart::Operations, "matmul"), (ReportPart::Models, "mat"), (ReportPart::Operations, "rows")]
        {
            let compare = |_: &mut BitTally| {
                ran.push(name);
                Ok::<(), Failure>(())
            };
            report.measure(part, name, compare).unwrap();
        }
        assert!(report.finish(&args).is_ok());
        assert_eq!(ran, ["matmul"]);
    }
}
