//! The flags of `muser enroll`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, value_parser};
use muser_trust::Address;
use muser_trust::identity::{DEFAULT_LIFETIME_S, LIFETIME_MAX_S, NodeName};

use super::cluster::{DAY_S, GrantedRoles};
use super::{HubArgs, KvType, MachineArgs};

/// `muser enroll`.
#[derive(Args, Debug)]
pub struct EnrollArgs {
    /// Ticket that the machine with the cluster's CA printed, on the machine that is to join; - reads it from standard input,
    /// where no list of processes shows it. Without one, a ticket is printed and awaited.
    pub ticket: Option<String>,
    /// File with the ticket, in its first line.
    #[arg(long, value_name = "FILE", conflicts_with = "ticket")]
    pub ticket_file: Option<PathBuf>,
    /// This machine's folder of the cluster. The one that prints tickets has the CA, and is begun if it does not exist; the
    /// one that joins is made.
    #[arg(long, value_name = "FOLDER")]
    pub cluster: PathBuf,
    /// Name of a machine that joins, or of a cluster that is begun [default: the folder's].
    #[arg(long, value_name = "NAME", value_parser = NodeName::new)]
    pub name: Option<NodeName>,
    /// Address to listen on: for the enrolment, and for muser produce afterwards; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9932")]
    pub listen: Address,
    /// Address at which the other machine reaches this one [default: the address to listen on, or this machine's own].
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, conflicts_with_all = ["ticket", "ticket_file"])]
    pub advertise: Option<String>,
    /// Roles of the other machine: ask for pages of prompts, compute them, or both.
    #[arg(long, value_enum, default_value = "producer", conflicts_with_all = ["ticket", "ticket_file"])]
    pub roles: GrantedRoles,
    /// Lifetime of the ticket, in minutes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..=24 * 60),
        conflicts_with_all = ["ticket", "ticket_file"])]
    pub ticket_minutes: u64,
    /// Days for which the other machine's certificate is valid, and this one's if a cluster is begun.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIFETIME_S / DAY_S,
        value_parser = value_parser!(u64).range(1..=LIFETIME_MAX_S / DAY_S), conflicts_with_all = ["ticket", "ticket_file"])]
    pub days: u64,
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// Tokens of the prompt that both machines compute and compare.
    #[arg(long, value_name = "N", default_value = "600")]
    pub tokens: NonZeroUsize,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// A name or an address, and a port behind the last colon.
fn host_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let port = parts.and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port > 0);
    port.map(|_| text.to_owned()).ok_or_else(|| "needs a name or an address, a colon and a port".into())
}
