//! `muser cluster`: what its commands take.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum, value_parser};
use muser_trust::identity::{DEFAULT_LIFETIME_S, LIFETIME_MAX_S, NodeId, NodeName, Revoked, Roles, Serial};

/// Seconds of a day.
pub const DAY_S: u64 = 24 * 3600;

/// `muser cluster`.
#[derive(Args, Debug)]
pub struct ClusterArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// Subcommands of `muser cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Begin a cluster: make its CA, a first MAC key, and a certificate for this machine.
    Begin(BeginArgs),
    /// Make a folder for another machine, to be carried there.
    ///
    /// Its private key is made here and travels with the folder, which enrolment over the network avoids: carry it over a
    /// confidential channel, such as scp, and delete the copy here.
    Grant(GrantArgs),
    /// Print this machine's name, roles and certificate, its MAC keys, the deny-list and the quarantine. No secret is
    /// printed.
    Show(ShowArgs),
    /// Make the next MAC key: it verifies at once, and seals after activate-key.
    ///
    /// Copy the new keys.toml to every other machine before activating the key; then no handoff fails. Where no key is
    /// active, the new one is activated at once.
    RotateKeys(FolderArgs),
    /// Seal handoffs with a MAC key that every machine has; the previous one only verifies from now on.
    ActivateKey(KeyArgs),
    /// Put a node, or one certificate of it, on the deny-list.
    ///
    /// Takes effect at once in processes that use this folder; every other machine needs the new revoked.toml.
    Revoke(RevokeArgs),
    /// Take a deny-list or MAC keys that were carried here from another machine of the cluster.
    ///
    /// Existing entries stay: nothing is admitted again that was revoked here, and no older key seals again.
    /// Takes effect at once in processes that use this folder.
    Import(ImportArgs),
    /// Remove expired certificates from the deny-list. Nodes stay on it.
    Prune(FolderArgs),
    /// Refuse a MAC key from now on, and delete its bytes.
    RevokeKey(KeyArgs),
    /// Sign a new certificate for the same key, name and roles.
    Renew(RenewArgs),
    /// Release a producer from quarantine, in which an audit put it for a wrong bit.
    ///
    /// Takes effect at once in processes that use this folder.
    Readmit(ReadmitArgs),
}

/// Lifetime of a certificate.
#[derive(Args, Clone, Copy, Debug)]
pub struct LifetimeArgs {
    /// Days for which the certificate is valid.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_LIFETIME_S / DAY_S,
        value_parser = value_parser!(u64).range(1..=LIFETIME_MAX_S / DAY_S))]
    pub days: u64,
}

/// `muser cluster begin`.
#[derive(Args, Debug)]
pub struct BeginArgs {
    /// Folder to make; must not exist, or be empty.
    pub folder: PathBuf,
    /// Name of the cluster: 1 to 63 of a-z, 0-9 and -.
    #[arg(long, value_name = "CLUSTER", value_parser = NodeName::new)]
    pub name: NodeName,
    /// Name of this machine [default: the cluster's].
    #[arg(long, value_name = "NAME", value_parser = NodeName::new)]
    pub node: Option<NodeName>,
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
}

/// `muser cluster grant`.
#[derive(Args, Debug)]
pub struct GrantArgs {
    /// Folder that began the cluster.
    pub folder: PathBuf,
    /// Name of the other machine: 1 to 63 of a-z, 0-9 and -.
    #[arg(value_parser = NodeName::new)]
    pub name: NodeName,
    /// Roles of the other machine: ask for pages of prompts, compute them, or both.
    #[arg(long, value_enum)]
    pub roles: GrantedRoles,
    /// Folder to make; must not exist, or be empty.
    #[arg(long, value_name = "OTHER_FOLDER")]
    pub out: PathBuf,
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
}

/// Roles by their names on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GrantedRoles {
    /// Asks for pages of prompts.
    Decoder,
    /// Computes prompts.
    Producer,
    /// Either.
    Both,
}

impl From<GrantedRoles> for Roles {
    fn from(roles: GrantedRoles) -> Self {
        match roles {
            GrantedRoles::Decoder => Self::Decoder,
            GrantedRoles::Producer => Self::Producer,
            GrantedRoles::Both => Self::Both,
        }
    }
}

/// `muser cluster show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Cluster folder of this machine.
    pub folder: PathBuf,
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// `muser cluster rotate-keys` and `prune`.
#[derive(Args, Debug)]
pub struct FolderArgs {
    /// Cluster folder; for rotate-keys, the one that began the cluster.
    pub folder: PathBuf,
}

/// `muser cluster revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Cluster folder.
    pub folder: PathBuf,
    /// Node id of 64 hexadecimal digits, or serial of a certificate of 32.
    #[arg(value_name = "NODE_ID_OR_SERIAL")]
    pub revoked: NodeOrSerial,
}

/// Node or certificate to revoke, as hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct NodeOrSerial(pub Revoked);

impl FromStr for NodeOrSerial {
    type Err = String;

    fn from_str(digits: &str) -> Result<Self, String> {
        let node = NodeId::from_hex(digits).map(Revoked::Node);
        let revoked = node.or_else(|| Serial::from_hex(digits).map(Revoked::Serial));
        revoked.map(Self).ok_or_else(|| {
            let given = digits.chars().count();
            format!("needs 64 hexadecimal digits of a node id, or 32 of a serial, not {given} characters")
        })
    }
}

/// `muser cluster import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Cluster folder of this machine.
    pub folder: PathBuf,
    /// Deny-list of another machine: its revoked.toml.
    #[arg(long, value_name = "FILE", required_unless_present = "keys")]
    pub revoked: Option<PathBuf>,
    /// MAC keys of another machine: its keys.toml.
    #[arg(long, value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// Replace the deny-list here, which is damaged or lost.
    #[arg(long, requires = "revoked")]
    pub instead: bool,
}

/// `muser cluster activate-key` and `revoke-key`.
#[derive(Args, Debug)]
pub struct KeyArgs {
    /// Cluster folder.
    pub folder: PathBuf,
    /// Id of the MAC key, as `muser cluster show` prints it.
    pub id: NonZeroU32,
}

/// `muser cluster readmit`.
#[derive(Args, Debug)]
pub struct ReadmitArgs {
    /// Cluster folder of the machine that quarantined it.
    pub folder: PathBuf,
    /// Node id of 64 hexadecimal digits, as `muser cluster show` prints it.
    #[arg(value_name = "NODE_ID", value_parser = node_id)]
    pub node: NodeId,
}

fn node_id(digits: &str) -> Result<NodeId, String> {
    NodeId::from_hex(digits).ok_or_else(|| "needs 64 hexadecimal digits".into())
}

/// `muser cluster renew`.
#[derive(Args, Debug)]
pub struct RenewArgs {
    /// Folder that began the cluster; its own certificate is renewed unless --for names another.
    pub folder: PathBuf,
    /// Folder of another machine, whose certificate is renewed instead.
    #[arg(long = "for", value_name = "OTHER_FOLDER")]
    pub other: Option<PathBuf>,
    #[command(flatten)]
    pub lifetime: LifetimeArgs,
}
