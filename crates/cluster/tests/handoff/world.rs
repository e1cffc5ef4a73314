//! A cluster on the loopback interface: a producer, a decoder, and the folders that let them talk.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muser_cluster::handoff::{
    BringError, Compress, Handoff, Member, Port, Producer, ProducerNews, ProducerSettings, Remote, RemoteSettings,
    Shape, Trust,
};
use muser_engine::engine::{Generate, Job, PrefixReuse, RequestEvent};
use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::{CacheSpec, PrefixScope};
use muser_lane::pacing::PacedBy;
use muser_lane::{Acceptor, Connector, LaneSettings, UnixClock, Wanted};
use muser_ledger::{FolderStorage, Ledger};
use muser_model::{Executor, Identity, Model};
use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeIdentity, NodeKey, NodeName, Role, Roles};
use muser_trust::keys::KeyRing;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::ModelFiles;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

pub static SHIPPED: &[u8] = include_bytes!("../../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

pub const CONTEXT: usize = 2048;

/// An engine, and what handoffs know of it.
pub struct Machine {
    pub host: EngineHost,
    pub shape: Shape,
    pub spec: Arc<CacheSpec>,
}

/// A producer that listens.
pub struct Producing {
    pub address: SocketAddr,
    pub stop: Option<oneshot::Sender<()>>,
    pub machine: Machine,
    pub producer: Arc<Producer>,
    pub news: mpsc::UnboundedReceiver<ProducerNews>,
}

/// The cluster's secrets.
pub struct Cluster {
    _folder: TempDir,
    pub authority: ClusterAuthority,
    pub keys: KeyRing,
    root: std::path::PathBuf,
    /// Of its producers.
    pub pace: Option<(NonZeroU64, PacedBy)>,
    pub compress: Compress,
    pub prefixes: PrefixScope,
    /// Seconds by which the clocks of its lanes are ahead.
    pub ahead_s: Arc<AtomicU64>,
}

/// A machine with the model that ships with the program.
pub fn machine(kv: KvLayout) -> Machine {
    machine_with(SHIPPED.to_vec(), kv, |_| ())
}

/// A machine with the model of a file, and other settings of its engine than the usual ones.
pub fn machine_with(file: Vec<u8>, kv: KvLayout, change: impl FnOnce(&mut EngineSettings)) -> Machine {
    let files = files(file);
    machine_that_claims(&FileDigest::compute(&files).unwrap(), files, kv, change)
}

pub fn files(bytes: Vec<u8>) -> Arc<ModelFiles> {
    Arc::new(ModelFiles::from_bytes(bytes).unwrap())
}

/// A machine with a model that takes it for the one with this digest.
pub fn machine_that_claims(
    digest: &FileDigest,
    files: Arc<ModelFiles>,
    kv: KvLayout,
    change: impl FnOnce(&mut EngineSettings),
) -> Machine {
    let model = Arc::new(Model::load(files, NonZeroUsize::MIN).unwrap());
    let identity = Identity::new(digest, model.config(), kv);
    let spec = model.cache_spec(kv, CONTEXT).unwrap();
    let rows = NonZeroUsize::new(256).unwrap();
    let executor = Executor::new(model, Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
    let mut settings = EngineSettings {
        context: CONTEXT,
        kv,
        identity: identity.kv(),
        budget_bytes: 256 << 20,
        prefix_bytes_max: 128 << 20,
        installed_bytes_max: 128 << 20,
        running_max: NonZeroUsize::new(4).unwrap(),
        waiting_max: 8,
        chunk: ChunkRows::DEFAULT,
    };
    change(&mut settings);
    let (host, _) = EngineHost::start(Engine::new(executor, settings).unwrap()).unwrap();
    Machine { host, shape: Shape::new(Arc::clone(&spec), identity).unwrap(), spec }
}

pub fn clock() -> UnixClock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

impl Cluster {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = clock()();
        let authority = ClusterAuthority::create(&NodeName::new("test").unwrap(), now).unwrap();
        let root = folder.path().to_owned();
        Self {
            _folder: folder,
            authority,
            keys: KeyRing::generate(now).unwrap(),
            root,
            pace: None,
            compress: Compress::Auto,
            prefixes: PrefixScope::Node,
            ahead_s: Arc::default(),
        }
    }

    /// The folder of a node that is there.
    pub fn folder(&self, name: &str) -> ClusterFolder {
        ClusterFolder::new(self.root.join(name))
    }

    /// The folder of a node that has joined.
    pub fn node(&self, name: &str, roles: Roles, keys: &KeyRing) -> (ClusterFolder, NodeIdentity) {
        let folder = ClusterFolder::new(self.root.join(name));
        let key = NodeKey::generate().unwrap();
        folder.join(self.authority.certificate_pem(), keys).unwrap();
        folder.save_node_key(&key).unwrap();
        let grant = Grant { name: NodeName::new(name).unwrap(), roles, lifetime_s: 3600 };
        let certificate = self.authority.sign(&key.request().unwrap(), &grant, clock()()).unwrap();
        folder.save_node_certificate(&certificate).unwrap();
        let identity = folder.load_identity().unwrap();
        (folder, identity)
    }

    pub fn lane_settings(&self, folder: &ClusterFolder) -> LaneSettings {
        let revocations = Arc::new(folder.load_revocations().unwrap());
        let (ahead_s, clock) = (Arc::clone(&self.ahead_s), clock());
        let clock = Arc::new(move || clock() + ahead_s.load(Ordering::SeqCst));
        LaneSettings { revocations, handshake_timeout: Duration::from_secs(60), clock }
    }

    /// Starts a producer at an address, or at any that is free.
    pub async fn produce(&self, name: &str, machine: Machine, at: Option<SocketAddr>) -> Producing {
        self.produce_with_limit(name, machine, at, Duration::from_secs(60)).await
    }

    /// One that waits only so long for a decoder that takes nothing.
    pub async fn produce_with_limit(
        &self,
        name: &str,
        machine: Machine,
        at: Option<SocketAddr>,
        stall_limit: Duration,
    ) -> Producing {
        let (folder, identity) = self.node(name, Roles::Producer, &self.keys);
        let wanted = Wanted { role: Role::Decoder, id: None };
        let acceptor = Arc::new(Acceptor::new(&identity, self.lane_settings(&folder), wanted).unwrap());
        let member = member(&folder, &identity, &self.keys, &machine.shape);
        let settings = ProducerSettings {
            concurrent_max: 2,
            context: u32::try_from(CONTEXT).unwrap(),
            lanes_max: 8,
            handshakes_max: NonZeroUsize::new(256).unwrap(),
            stall_limit,
            pace: self.pace,
            compress: self.compress,
            prefixes: self.prefixes,
        };
        let producer = Arc::new(Producer::new(machine.host.clone(), machine.shape.clone(), member, settings));
        let port = Port::open(at.unwrap_or("127.0.0.1:0".parse().unwrap())).await.unwrap();
        let (address, (stop, stopped)) = (port.address().unwrap(), oneshot::channel::<()>());
        let (serving, (said, news)) = (Arc::clone(&producer), mpsc::unbounded_channel());
        let tell = move |news| drop(said.send(news));
        tokio::spawn(async move { serving.serve(port, acceptor, async { drop(stopped.await) }, tell).await });
        Producing { address, stop: Some(stop), machine, producer, news }
    }

    /// A decoder's door to the producer at `address`.
    pub fn remote(&self, name: &str, machine: &Machine, address: SocketAddr, keys: &KeyRing) -> Remote {
        self.remote_with_limit(name, machine, address, (keys, Duration::from_secs(60)))
    }

    /// One that waits only so long for a silent producer.
    pub fn remote_with_limit(
        &self,
        name: &str,
        machine: &Machine,
        address: SocketAddr,
        (keys, stall_limit): (&KeyRing, Duration),
    ) -> Remote {
        let (folder, _) = self.node(name, Roles::Decoder, keys);
        self.remote_of(&folder, machine, address, (keys, stall_limit, Duration::from_secs(60)))
    }

    /// One that gives a handoff up after so long.
    pub fn remote_that_expires(
        &self,
        name: &str,
        machine: &Machine,
        address: SocketAddr,
        expires_in: Duration,
    ) -> Remote {
        let (folder, _) = self.node(name, Roles::Decoder, &self.keys);
        self.remote_of(&folder, machine, address, (&self.keys, Duration::from_secs(60), expires_in))
    }

    /// A door as of another run of a decoder that was there before.
    pub async fn remote_again(&self, name: &str, machine: &Machine, address: SocketAddr) -> Remote {
        let folder = ClusterFolder::new(self.root.join(name));
        // The run before may still be writing the entry of a handoff that it has given up.
        wait_until("the ledger is free", || FolderStorage::open(&folder.ledger()).is_ok()).await;
        self.remote_of(&folder, machine, address, (&self.keys, Duration::from_secs(60), Duration::from_secs(60)))
    }

    fn remote_of(
        &self,
        folder: &ClusterFolder,
        machine: &Machine,
        address: SocketAddr,
        (keys, stall_limit, expires_in): (&KeyRing, Duration, Duration),
    ) -> Remote {
        let identity = folder.load_identity().unwrap();
        let connector = Arc::new(Connector::new(&identity, self.lane_settings(folder)).unwrap());
        let member = member(folder, &identity, keys, &machine.shape);
        let storage = FolderStorage::open(&folder.ledger()).unwrap();
        let ledger = Arc::new(Ledger::open(storage, 1 << 16).unwrap());
        let settings =
            RemoteSettings { address, wanted: Wanted { role: Role::Producer, id: None }, expires_in, stall_limit };
        Remote::new(connector, (machine.shape.clone(), member), ledger, clock(), settings)
    }
}

/// A node that follows what changes in its folder.
fn member(folder: &ClusterFolder, identity: &NodeIdentity, keys: &KeyRing, shape: &Shape) -> Member {
    let trust = Trust::load(folder.clone(), Arc::new(folder.load_revocations().unwrap())).unwrap();
    Member::new(identity.facts(), keys, shape).unwrap().following(Arc::new(trust))
}

pub fn request(prompt: &[u32], tokens_max: usize, reuse: PrefixReuse) -> Job {
    Job::generate(prompt, reuse, generate(tokens_max))
}

pub fn generate(tokens_max: usize) -> Generate {
    Generate {
        tokens_max: Some(tokens_max),
        context: CONTEXT,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings { seed: 3, ..SamplingSettings::default() },
        logprobs: Some(muser_engine::LogprobsWanted { count: 4096, stage: muser_engine::LogprobsStage::Model }),
    }
}

/// Reused tokens of an answer, and per token its id, with every candidate's id and the bits of its logprob.
pub async fn answer(mut answer: muser_host::Answer) -> (usize, Vec<(u32, Vec<u64>)>) {
    let (mut reused, mut tokens) = (0, Vec::new());
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Started { reused: found, .. } => reused = found,
            RequestEvent::Token(token) => {
                let logprobs = token.logprobs.unwrap();
                let bits = |top: &muser_engine::TokenLogprob| [u64::from(top.token), top.logprob.to_bits()];
                tokens.push((token.token, logprobs.top.iter().flat_map(bits).collect()));
            }
            RequestEvent::Finished(_) => break,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (reused, tokens)
}

/// Brings the prompt's pages and answers.
pub async fn answer_remotely(
    decoder: &Machine,
    remote: &Remote,
    prompt: &[u32],
    reuse: PrefixReuse,
) -> Result<(Handoff, usize, Vec<(u32, Vec<u64>)>), BringError> {
    let mut installation = decoder.host.begin_installation(prompt.to_vec(), reuse).await.unwrap();
    let handoff = remote.bring(&mut installation).await?;
    let installed = installation.finish().unwrap();
    let job = Job::generate_from(installed, prompt[prompt.len() - 1], generate(6));
    let under_way = decoder.host.submit(job).await.unwrap();
    let (reused, tokens) = answer(under_way).await;
    Ok((handoff, reused, tokens))
}

pub fn random_tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u32(3..4096)).collect()
}

/// No page of an attempt is left in the decoder.
pub async fn nothing_is_left(decoder: &Machine) {
    // An engine tells what it holds after a step, and takes none for an attempt that is given up.
    let under_way = decoder.host.submit(request(&[3], 1, PrefixReuse::Isolate)).await.unwrap();
    answer(under_way).await;
    let status = decoder.host.status();
    assert_eq!((status.memory.live_bytes, status.running(), status.waiting), (0, 0, 0));
}

/// Waits for something that must come, and fails if it does not for far longer than it can take.
pub async fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let began = Instant::now();
    while !happens() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs a test with threads of its own.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}
