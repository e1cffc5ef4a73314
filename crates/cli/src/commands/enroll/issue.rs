//! The side that has the CA: prints a ticket and waits for it.

use std::io::{self, Write};
use std::path::Path;

use muser_cluster::enrol::{Enrolled, Issuer, IssuerSettings, Limits, advertised};
use muser_cluster::identity::ClusterFolder;

use super::node_config::{NodeConfig, Outcome};
use super::{Computing, absolute, failed, name_of, outcome, runtime, tell_progress, unless_interrupted};
use crate::cluster_member::clock;
use crate::commands::cluster::{make_first, shell_word};
use crate::failure::Failure;
use crate::output::tell;
use crate::settings::cluster::{BeginArgs, DAY_S, LifetimeArgs};
use crate::settings::enroll::EnrollArgs;

/// Runs the command without a ticket.
pub fn run(args: &EnrollArgs) -> Result<(), Failure> {
    let path = absolute(&args.cluster)?;
    if !path.exists() {
        let (name, lifetime) = (name_of(args, &path)?, LifetimeArgs { days: args.days });
        make_first(&BeginArgs { folder: path.clone(), name, node: None, lifetime })?;
        tell(format_args!("muser: began a cluster in {path:?}; its ca.key signs for every node: keep it here"));
    } else if args.name.is_some() {
        return Err(Failure::Usage(format!("--name: {path:?} is there, and has its names in its certificates")));
    }
    let runtime = runtime()?;
    let computing = Computing::start(args)?;
    let folder = ClusterFolder::new(&path);
    let settings = IssuerSettings {
        roles: args.roles.into(),
        lifetime_s: args.days * DAY_S,
        ticket_lifetime_s: args.ticket_minutes * 60,
        limits: Limits::default(),
        clock: clock(),
    };
    let done = runtime.block_on(unless_interrupted(async {
        let issuer = Issuer::open(&folder, &computing.machine, settings, args.listen).await.map_err(failed)?;
        let listen = issuer.address().map_err(failed)?;
        let address = match &args.advertise {
            Some(address) => address.clone(),
            None => advertised(listen)
                .await
                .map_err(|error| {
                    Failure::Usage(format!("--advertise is needed, this machine has no way out: {error}"))
                })?
                .to_string(),
        };
        let (ticket, kept) = issuer.ticket(&address).map_err(failed)?;
        let text = ticket.text();
        let mut out = io::stdout().lock();
        writeln!(out, "{}", *text).and_then(|()| out.flush()).map_err(Failure::Stdout)?;
        drop(out);
        tell(format_args!(
            "muser: waiting at {address}; on the other machine, within {} minutes: muser enroll {} --cluster FOLDER",
            args.ticket_minutes, *text
        ));
        let enrolled = issuer.enrol(kept, &|progress| tell_progress(&progress)).await.map_err(failed)?;
        Ok((enrolled, listen))
    }));
    computing.end(runtime);
    let (enrolled, listen) = done?;
    outcome::print(&enrolled)?;
    configure(args, &path, &enrolled, listen)
}

/// Writes what `muser serve` and `muser produce` need to know of the new node.
fn configure(
    args: &EnrollArgs,
    folder: &Path,
    enrolled: &Enrolled,
    listen: muser_cluster::handoff::Address,
) -> Result<(), Failure> {
    let mut config = NodeConfig::new(folder, args)?;
    if let Some(address) = enrolled.producer {
        config.serve_with(address);
    }
    if enrolled.by_issuer.is_some() {
        config.produce_at(listen, enrolled.from_issuer());
    }
    let path = folder.join("muser.toml");
    match config.write_or_add(&path)? {
        Outcome::Written => outcome::print_config(&path),
        Outcome::ByHand(lines) => {
            tell(format_args!("muser: {path:?} is yours and says other things; add what is missing of:\n{lines}"));
            Ok(())
        }
    }?;
    tell(format_args!("to take it back: muser cluster revoke {} {}", shell_word(folder), enrolled.node.id));
    Ok(())
}
