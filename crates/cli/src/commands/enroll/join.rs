//! The side that has the ticket: makes a folder, which is there only if everything was good.

use std::io::{self, BufRead};

use muser_cluster::enrol::{Applicant, EnrolError, Enrolled, Limits, Ticket};
use muser_cluster::handoff::{Address, Port};
use muser_cluster::identity::ClusterFolder;

use super::node_config::NodeConfig;
use super::{Computing, absolute, failed, name_of, outcome, runtime, tell_progress, unless_interrupted};
use crate::cluster_member::clock;
use crate::commands::cluster::NewFolder;
use crate::failure::Failure;
use crate::settings::enroll::EnrollArgs;

/// Runs the command with a ticket.
pub fn run(args: &EnrollArgs, text: &str) -> Result<(), Failure> {
    let ticket = ticket(text)?;
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
        config.create(&new.partial().join("muser.toml")).map_err(|failure| failure.to_string())?;
        new.finish().map_err(|failure| failure.to_string())
    };
    let (machine, limits) = (&computing.machine, Limits::default());
    let applicant = Applicant { folder: &folder, machine, name, port, limits, clock: clock() };
    let done = runtime.block_on(unless_interrupted(async {
        applicant.apply(&ticket, &|progress| tell_progress(&progress), keep).await.map_err(failed)
    }));
    computing.end(runtime);
    outcome::print(&done?)?;
    outcome::print_config(&path.join("muser.toml"))
}

fn ticket(text: &str) -> Result<Ticket, Failure> {
    let mut read = String::new();
    let text = if text == "-" {
        io::stdin().lock().read_line(&mut read).map_err(Failure::Stdin)?;
        &read
    } else {
        text
    };
    Ticket::parse(text).map_err(|error| Failure::Usage(error.to_string()))
}

/// What `muser produce` and `muser serve` need to know here.
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
