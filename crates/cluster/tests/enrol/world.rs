//! A new cluster, a ticket, and a node that applies with it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muser_cluster::enrol::{Applicant, EnrolError, Enrolled, Issuer, IssuerSettings, Limits, Machine, Progress};
use muser_cluster::handoff::Port;
use muser_enrol::Ticket;
use muser_kernels::attention::KvLayout;
use muser_lane::UnixClock;
use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeKey, NodeName, Roles};
use muser_trust::keys::KeyRing;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::Gguf;

use crate::handoff_world::{SHIPPED, clock, files, machine, machine_that_claims};

pub const SECOND: Duration = Duration::from_secs(1);

/// A cluster folder with the CA, and room for others.
pub struct Begun {
    root: tempfile::TempDir,
    pub folder: ClusterFolder,
}

/// Progress messages of an issuer.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<String>>);

/// A clock that tests can set forward.
#[derive(Clone, Default)]
pub struct Offset(Arc<AtomicU64>);

impl Offset {
    pub fn add(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::SeqCst);
    }

    pub fn clock(&self) -> UnixClock {
        let (offset, clock) = (Arc::clone(&self.0), clock());
        Arc::new(move || clock() + offset.load(Ordering::SeqCst))
    }
}

impl Begun {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = ClusterFolder::new(root.path().join("desk"));
        let now = clock()();
        let authority = ClusterAuthority::create(&NodeName::new("home").unwrap(), now).unwrap();
        folder.begin(&authority, &KeyRing::generate(now).unwrap()).unwrap();
        let key = NodeKey::generate().unwrap();
        folder.save_node_key(&key).unwrap();
        let grant = Grant { name: NodeName::new("desk").unwrap(), roles: Roles::Both, lifetime_s: 3600 };
        folder.save_node_certificate(&authority.sign(&key.request().unwrap(), &grant, now).unwrap()).unwrap();
        Self { root, folder }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub async fn issuer<'a>(&'a self, machine: &'a Machine, settings: IssuerSettings) -> Issuer<'a> {
        Issuer::open(&self.folder, machine, settings, loopback()).await.unwrap()
    }

    /// Names of files and folders that an enrolment left beside those of the cluster.
    pub fn left(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("enrolment")).collect()
    }

    /// Serials on the deny-list.
    pub fn revoked(&self) -> usize {
        self.folder.load_revocations().unwrap().list().unwrap().len()
    }
}

impl Heard {
    pub fn tell(&self, progress: Progress<'_>) {
        let said = match progress {
            Progress::Refused(error) => format!("refused: {error}"),
            Progress::LetIn(node) => format!("let in {}", node.name),
            Progress::Tested(link, _) => format!("tested, with a link: {}", link.is_some()),
            Progress::Granting(node) => format!("granting {}", node.name),
        };
        self.0.lock().unwrap().push(said);
    }
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn limits() -> Limits {
    Limits { step: 20 * SECOND, qualification: 120 * SECOND }
}

pub fn settings(roles: Roles) -> IssuerSettings {
    IssuerSettings { roles, lifetime_s: 3600, ticket_lifetime_s: 600, limits: limits(), clock: clock() }
}

/// An engine of the shipped model, and 200 tokens to qualify with.
pub fn engine(kv: KvLayout) -> Machine {
    with_prompt(machine(kv))
}

/// An engine with a flipped bit in the keys of layer 1, undetected by itself.
pub fn damaged_engine(kv: KvLayout) -> Machine {
    let mut bytes = SHIPPED.to_vec();
    let parsed = Gguf::parse(SHIPPED).unwrap();
    let data = parsed.tensor("blk.1.attn_k.weight").unwrap().bytes().unwrap();
    let at = data.as_ptr().addr() - SHIPPED.as_ptr().addr() + data.len() / 2;
    bytes[at] ^= 4;
    let shipped = FileDigest::compute(&files(SHIPPED.to_vec())).unwrap();
    with_prompt(machine_that_claims(&shipped, files(bytes), kv, |_| ()))
}

fn with_prompt(made: crate::handoff_world::Machine) -> Machine {
    Machine { host: made.host, shape: made.shape, vocab: 4096, prompt_tokens: 200 }
}

/// Applies with a ticket, and keeps the folder.
pub async fn apply(
    begun: &Begun,
    machine: &Machine,
    name: &str,
    ticket: &Ticket,
) -> Result<(ClusterFolder, Enrolled), EnrolError> {
    let folder = ClusterFolder::new(begun.at(&format!("of-{name}")));
    std::fs::create_dir_all(folder.path()).unwrap();
    let enrolled = applicant(&folder, machine, name).await.apply(ticket, &|_| (), |_| Ok(())).await?;
    Ok((folder, enrolled))
}

pub async fn applicant<'a>(folder: &'a ClusterFolder, machine: &'a Machine, name: &str) -> Applicant<'a> {
    Applicant {
        folder,
        machine,
        name: NodeName::new(name).unwrap(),
        port: Port::open(loopback()).await.unwrap(),
        limits: limits(),
        clock: clock(),
    }
}
