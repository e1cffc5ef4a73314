//! The side with the ticket: makes a cluster folder, and keeps it only if the enrolment succeeds.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use muser_cluster::enrol::{Applicant, EnrolError, Enrolled, Limits};
use muser_cluster::handoff::Port;
use muser_enrol::Ticket;
use muser_trust::Address;
use muser_trust::identity::ClusterFolder;

use super::node_config::NodeConfig;
use super::{Computing, Talk, absolute, failed, name_of, outcome, runtime, unless_interrupted};
use crate::cluster_member::clock;
use crate::commands::cluster::NewFolder;
use crate::failure::Failure;
use crate::settings::enroll::EnrollArgs;
use crate::usage::UsageError;

/// Longer than any ticket.
const TICKET_BYTES_MAX: u64 = 4096;

/// Runs the command with a ticket.
pub fn run(args: &EnrollArgs, ticket: &Ticket) -> Result<(), Failure> {
    let path = absolute(&args.cluster)?;
    let name = name_of(args, &path)?;
    let new = NewFolder::begin(&path)?;
    let folder = ClusterFolder::new(new.partial());
    let runtime = runtime()?;
    // The address first: a model takes its time.
    let listening = runtime.block_on(Port::open(args.listen));
    let port = listening.map_err(|error| failed(EnrolError::Listen { address: args.listen, error }))?;
    let listen = port.address().map_err(|error| failed(EnrolError::Listen { address: args.listen, error }))?;
    let computing = Computing::start(args)?;
    let keep = |enrolled: &Enrolled| {
        let config = config(args, enrolled, listen).map_err(|failure| failure.to_string())?;
        config.write_or_add(&new.partial().join("muser.toml")).map_err(|failure| failure.to_string())?;
        new.finish().map_err(|failure| failure.to_string())
    };
    let (machine, limits) = (&computing.machine, Limits::default());
    let applicant = Applicant { folder: &folder, machine, name, port, limits, clock: clock() };
    let talk = Talk::default();
    let done = runtime.block_on(unless_interrupted(async {
        applicant.apply(ticket, &|progress| talk.tell(&progress), keep).await.map_err(failed)
    }));
    computing.end(runtime);
    outcome::print(&done?)?;
    outcome::print_config(&path.join("muser.toml"))
}

/// The ticket that the arguments give or name, if they do.
pub fn ticket(args: &EnrollArgs) -> Result<Option<Ticket>, Failure> {
    let mut read = String::new();
    let text = match (&args.ticket, &args.ticket_file) {
        (None, None) => return Ok(None),
        (_, Some(path)) => {
            let first = |file| BufReader::new(File::take(file, TICKET_BYTES_MAX)).read_line(&mut read);
            File::open(path).and_then(first).map_err(Failure::io(path))?;
            &read
        }
        (Some(text), None) if text == "-" => {
            io::stdin().lock().take(TICKET_BYTES_MAX).read_line(&mut read).map_err(Failure::Stdin)?;
            &read
        }
        (Some(text), None) => text,
    };
    Ok(Some(Ticket::parse(text).map_err(UsageError::Ticket)?))
}

/// Configuration of this machine's `muser produce` and `muser serve`.
fn config(args: &EnrollArgs, enrolled: &Enrolled, listen: Address) -> Result<NodeConfig, Failure> {
    let mut config = NodeConfig::new(&absolute(&args.cluster)?, args)?;
    if enrolled.by_node.is_some() {
        config.produce_at(listen, enrolled.from_node());
    }
    if let Some(issuer) = enrolled.producer {
        config.serve_with(issuer);
    }
    Ok(config)
}
