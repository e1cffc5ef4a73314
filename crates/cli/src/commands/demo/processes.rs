//! The producer's two processes: one that joins the cluster, and one that produces.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use clap::ValueEnum;
use muser_cluster::enrol::{EnrolError, Issuer, IssuerSettings, Limits, Machine};
use muser_enrol::Rates;
use muser_trust::Address;
use muser_trust::identity::{ClusterFolder, NodeName, Roles};
use tokio::sync::oneshot;

use crate::cluster_member::clock;
use crate::commands::cluster::make_first;
use crate::failure::Failure;
use crate::member_error::MemberError;
use crate::output::tell;
use crate::settings::cluster::{BeginArgs, LifetimeArgs};
use crate::settings::cluster_member::DemoArgs;

/// The certificates and the ticket are for an hour: longer than any demonstration.
const LIFETIME_S: u64 = 3600;

/// A process that ends with the demonstration.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins a cluster in the decoder's folder.
pub fn begin(folder: &Path) -> Result<(), Failure> {
    let name = |name: &str| NodeName::new(name).map_err(MemberError::Name);
    let (folder, lifetime) = (folder.to_owned(), LifetimeArgs { days: 1 });
    make_first(&BeginArgs { folder, name: name("demo")?, node: Some(name("decoder")?), lifetime })?;
    Ok(())
}

/// Lets a process join as the producer, which makes its folder.
pub async fn enrol(args: &DemoArgs, machine: &Machine, decoder: &Path, producer: &Path) -> Result<(), MemberError> {
    let folder = ClusterFolder::new(decoder);
    let settings = IssuerSettings {
        roles: Roles::Producer,
        lifetime_s: LIFETIME_S,
        ticket_lifetime_s: LIFETIME_S,
        limits: Limits::default(),
        clock: clock(),
    };
    let issuer = Issuer::open(&folder, machine, settings, Address::from(([127, 0, 0, 1], 0))).await?;
    let address = issuer.address()?;
    let (ticket, kept) = issuer.ticket(&address.to_string()).map_err(EnrolError::from)?;
    let mut command = this_program("enroll", args)?;
    command.args(["-", "--listen", "127.0.0.1:0", "--name", "producer"]).arg("--cluster").arg(producer);
    command.arg("--kv").arg(args.kv.to_string()).arg("--tokens").arg(machine.prompt_tokens.to_string());
    if let Some(path) = &args.model {
        command.arg("--model").arg(path);
    }
    if let Some(reference) = &args.hub.hf_repo {
        command.arg("--hf-repo").arg(reference.to_string());
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut joining = Process(child?);
    // A ticket on the command line would be in the list of processes.
    let told = joining.0.stdin.take().map(|mut input| writeln!(input, "{}", *ticket.text()));
    told.transpose()?;
    let (says, heard) = oneshot::channel();
    let stderr = joining.0.stderr.take();
    std::thread::spawn(move || {
        let lines = stderr.map(|stderr| BufReader::new(stderr).lines().map_while(Result::ok));
        // Nobody hears it only if the enrolment is over.
        let _ = says.send(lines.into_iter().flatten().last());
    });
    let enrolling = issuer.enrol(kept, &|_| ());
    tokio::pin!(enrolling);
    let enrolled = tokio::select! {
        enrolled = &mut enrolling => enrolled,
        last = heard => match joining.0.wait() {
            Ok(status) if status.success() => enrolling.await,
            _ => {
                let last = last.ok().flatten().unwrap_or_else(|| "the producer ended".into());
                return Err(MemberError::ProducerEnded(last));
            }
        },
    };
    let enrolled = enrolled?;
    // Its folder has its name now, and it ends by itself.
    joining.0.wait()?;
    let rate = Rates::of(enrolled.from_node()).map(|rate| format!("; its pages come with {rate}")).unwrap_or_default();
    tell(format_args!("muser: the producer has joined, with the bits of this process{rate}"));
    Ok(())
}

/// Starts the producer, and waits until it says where it listens.
pub fn start_producer(args: &DemoArgs, folder: &Path) -> Result<(Process, Address), MemberError> {
    let failed = |reason: String| MemberError::NoProducer { reason };
    let mut command = this_program("produce", args)?;
    command.arg("--config").arg(folder.join("muser.toml"));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut producing = Process(child.map_err(|reason| failed(reason.to_string()))?);
    let Some(stderr) = producing.0.stderr.take() else { return Err(failed("it says nothing".into())) };
    let mut lines = BufReader::new(stderr).lines();
    let mut said = String::from("it ended");
    while let Some(Ok(line)) = lines.next() {
        let address = line.split_once("producing on ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        if let Some(address) = address {
            // It must never wait for a reader.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((producing, address));
        }
        said = line;
    }
    Err(failed(said))
}

/// This program again, with another command on as many threads and the device that was asked for.
fn this_program(name: &str, args: &DemoArgs) -> Result<Command, MemberError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name);
    if let Some(threads) = args.machine.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    if let Some(device) = args.machine.device.to_possible_value() {
        command.arg("--device").arg(device.get_name());
    }
    Ok(command)
}
