//! Human-readable result of an enrolment: node, link rates and comparison of bits.

use std::io::{self, Write};
use std::path::Path;

use muser_cluster::enrol::Enrolled;
use muser_enrol::{Qualification, Rates, Round};

use crate::failure::Failure;

/// Prints the tests and their results.
pub fn print(enrolled: &Enrolled) -> Result<(), Failure> {
    write(enrolled, &mut io::stdout().lock()).map_err(Failure::Stdout)
}

/// Prints where the configuration is.
pub fn print_config(path: &Path) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "config     {}", path.display()).map_err(Failure::Stdout)
}

fn write(enrolled: &Enrolled, out: &mut impl Write) -> io::Result<()> {
    let Enrolled { node, link, by_node, by_issuer, .. } = enrolled;
    writeln!(out, "enrolled   {} as {}, node {}", node.name, node.roles, node.id)?;
    if let Some(round_trip) = link.round_trip() {
        writeln!(out, "link       round trip {:.3} ms", round_trip.as_secs_f64() * 1e3)?;
    }
    for (towards, rounds) in [("producer", &link.to_producer), ("decoder", &link.to_decoder)] {
        if let Some(rates) = Rates::of(rounds) {
            let busy = busy(rounds).map(|rate| format!(", {rate:.3} send-busy")).unwrap_or_default();
            writeln!(out, "           to the {towards} {rates}{busy}, {} rounds", rounds.len())?;
        }
    }
    for (producer, qualification) in [("the new node", by_node), ("the enrolling node", by_issuer)] {
        if let Some(Qualification { rows, pages, payload_bytes, local, remote, difference }) = qualification {
            let same = if difference.is_none() { "yes" } else { "NO" };
            let (local, remote) = (local.as_secs_f64(), remote.as_secs_f64());
            writeln!(out, "handoff    by {producer}: {rows} rows, {pages} pages, {payload_bytes} bytes")?;
            writeln!(out, "           first token after {remote:.3} s, computed alone after {local:.3} s")?;
            writeln!(out, "           identical, bit for bit: {same}")?;
        }
    }
    out.flush()
}

/// The middle rate by the kernel's clock, in Gbit/s, if it tells one for every round.
fn busy(rounds: &[Round]) -> Option<f64> {
    let mut rates: Vec<f64> = rounds.iter().map(|round| round.account().busy_gbit_per_s()).collect::<Option<_>>()?;
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}
