//! The side that has the CA: prints a ticket and waits for it.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use muser_cluster::enrol::{Enrolled, Issuer, IssuerSettings, Limits, Progress, advertised, take_back};
use muser_trust::identity::ClusterFolder;

use super::node_config::{NodeConfig, Outcome};
use super::{Computing, Talk, absolute, failed, name_of, outcome, runtime, unless_interrupted};
use crate::cluster_member::clock;
use crate::commands::cluster::{make_first, shell_word};
use crate::failure::Failure;
use crate::output::tell;
use crate::settings::cluster::{BeginArgs, DAY_S, LifetimeArgs};
use crate::settings::enroll::EnrollArgs;
use crate::usage::UsageError;

/// Runs the command without a ticket.
pub fn run(args: &EnrollArgs) -> Result<(), Failure> {
    let path = absolute(&args.cluster)?;
    if !path.exists() {
        let (name, lifetime) = (name_of(args, &path)?, LifetimeArgs { days: args.days });
        make_first(&BeginArgs { folder: path.clone(), name, node: None, lifetime })?;
        tell(format_args!("muser: began a cluster in {path:?}; its ca.key signs for every node: keep it here"));
    } else if args.name.is_some() {
        return Err(UsageError::NameOfExisting(path).into());
    }
    let folder = ClusterFolder::new(&path);
    take_back_what_was_left(&folder, &path)?;
    let (granting, talk) = (AtomicBool::new(false), Talk::default());
    let runtime = runtime()?;
    let computing = Computing::start(args)?;
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
            None => advertised(listen).await.map_err(UsageError::NoAdvertisedAddress)?.to_string(),
        };
        let (ticket, kept) = issuer.ticket(&address).map_err(failed)?;
        let text = ticket.text();
        let mut out = io::stdout().lock();
        writeln!(out, "{}", *text).and_then(|()| out.flush()).map_err(Failure::Stdout)?;
        drop(out);
        // The ticket itself is for the standard output alone: what is told may be logged, and arguments are shown by ps.
        tell(format_args!(
            "muser: waiting at {address}; on the other machine, within {} minutes: muser enroll - --cluster FOLDER, and the \
             ticket on its standard input",
            args.ticket_minutes
        ));
        let told = |progress: Progress<'_>| {
            if let Progress::Granting(node) = progress {
                granting.store(true, Ordering::SeqCst);
                tell(format_args!("muser: every test was good, {} is granted certificate {}", node.name, node.serial));
            }
            talk.tell(&progress);
        };
        let enrolled = issuer.enrol(kept, &told).await.map_err(failed)?;
        Ok((enrolled, listen))
    }));
    computing.end(runtime);
    if done.is_err() && granting.load(Ordering::SeqCst) {
        tell_what_to_carry(&path);
    }
    let (enrolled, listen) = done?;
    outcome::print(&enrolled)?;
    configure(args, &path, &enrolled, listen)
}

/// Revokes what was granted by an enrolment here whose process was killed.
fn take_back_what_was_left(folder: &ClusterFolder, path: &Path) -> Result<(), Failure> {
    let taken = take_back(folder, clock()()).map_err(failed)?;
    for left in &taken {
        tell(format_args!(
            "muser: an enrolment of {} ended before it was whole; its certificate {} is revoked now",
            left.name, left.serial
        ));
    }
    if !taken.is_empty() {
        tell_what_to_carry(path);
    }
    Ok(())
}

/// Tells the steps that are left once a certificate and the MAC keys went to a node that is no member.
fn tell_what_to_carry(path: &Path) {
    let folder = shell_word(path);
    tell(format_args!(
        "muser: the other machines of the cluster admit it until they have {folder}/revoked.toml (muser cluster import), and \
         it knows the MAC keys: muser cluster rotate-keys {folder}"
    ));
}

/// Writes what `muser serve` and `muser produce` need to know of the new node.
fn configure(
    args: &EnrollArgs,
    folder: &Path,
    enrolled: &Enrolled,
    listen: muser_trust::Address,
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
