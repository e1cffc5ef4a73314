//! Streams of prompts that a producer computes: progress while it does, and the fallback when it fails.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_cluster::handoff::{Compress, Member, Port, Producer, ProducerSettings, Remote, RemoteSettings, Shape};
use muser_engine::{ChunkRows, Engine, EngineSettings};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::{KvIdentity, PrefixScope};
use muser_lane::{Acceptor, Connector, LaneSettings, UnixClock, Wanted};
use muser_ledger::{FolderStorage, Ledger};
use muser_model::testing::{Fault, Faults, Faulty};
use muser_model::{Executor, Identity};
use muser_placement::{Policy, PolicySettings};
use muser_server::{AuditSettings, Auditor, Fallback, PrefillBy, PrefillSettings, RemotePrefill};
use muser_trust::identity::{
    ClusterAuthority, ClusterFolder, Grant, NodeId, NodeIdentity, NodeKey, NodeName, Role, Roles,
};
use muser_trust::keys::KeyRing;
use muser_weights::digest::FileDigest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::world::{Loaded, Setup, World, shipped, wait_until};

const CONTEXT: usize = 512;
/// Rows of the producer's steps, after each of which it reports progress.
const ROWS: usize = 64;

/// The secrets of a cluster, and what its nodes know of the model.
pub struct Cluster {
    folder: TempDir,
    authority: ClusterAuthority,
    keys: KeyRing,
    shape: Shape,
    identity: KvIdentity,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

impl Cluster {
    pub fn new() -> Self {
        let model = shipped();
        let identity = Identity::new(&FileDigest::compute(&model.files).unwrap(), model.config(), KvLayout::Q8);
        let shape = Shape::new(model.cache_spec(KvLayout::Q8, CONTEXT).unwrap(), identity).unwrap();
        let authority = ClusterAuthority::create(&NodeName::new("test").unwrap(), now()).unwrap();
        let (folder, keys) = (tempfile::tempdir().unwrap(), KeyRing::generate(now()).unwrap());
        Self { folder, authority, keys, shape, identity: identity.kv() }
    }

    pub fn node(&self, name: &str, roles: Roles) -> (ClusterFolder, NodeIdentity, LaneSettings) {
        let folder = ClusterFolder::new(self.folder.path().join(name));
        let key = NodeKey::generate().unwrap();
        folder.join(self.authority.certificate_pem(), &self.keys).unwrap();
        folder.save_node_key(&key).unwrap();
        let grant = Grant { name: NodeName::new(name).unwrap(), roles, lifetime_s: 3600 };
        folder.save_node_certificate(&self.authority.sign(&key.request().unwrap(), &grant, now()).unwrap()).unwrap();
        let (identity, revocations) = (folder.load_identity().unwrap(), Arc::new(folder.load_revocations().unwrap()));
        let clock: UnixClock = Arc::new(now);
        (folder, identity, LaneSettings { revocations, handshake_timeout: Duration::from_secs(60), clock })
    }

    /// A producer that runs as long as the runtime.
    fn produce(&self, runtime: &Runtime) -> SocketAddr {
        self.produce_as(runtime, "producer", (&shipped(), CONTEXT)).0
    }

    /// One whose device fails in steps that `faults` chooses.
    fn produce_faulty(&self, runtime: &Runtime, name: &str, faults: Faults) -> SocketAddr {
        self.produce_with(runtime, name, (&shipped(), CONTEXT), faults).0
    }

    /// A producer of this name that computes with a model, and takes prompts of so many tokens. Where it listens, and who it
    /// is.
    pub fn produce_as(&self, runtime: &Runtime, name: &str, model: (&Arc<Loaded>, usize)) -> (SocketAddr, NodeId) {
        self.produce_with(runtime, name, model, Arc::new(|_| None))
    }

    fn produce_with(
        &self,
        runtime: &Runtime,
        name: &str,
        (model, context): (&Arc<Loaded>, usize),
        faults: Faults,
    ) -> (SocketAddr, NodeId) {
        let (_, identity, lane) = self.node(name, Roles::Producer);
        let acceptor = Acceptor::new(&identity, lane, Wanted { role: Role::Decoder, id: None }).unwrap();
        let member = Member::new(identity.facts(), &self.keys, &self.shape).unwrap();
        let (one, rows) = (NonZeroUsize::MIN, NonZeroUsize::new(ROWS).unwrap());
        let executor = Executor::new(Arc::clone(model), Kernels::detected(), one, rows).unwrap();
        let settings = EngineSettings {
            context: CONTEXT,
            kv: KvLayout::Q8,
            identity: self.identity,
            budget_bytes: 64 << 20,
            prefix_bytes_max: 0,
            installed_bytes_max: 0,
            running_max: one,
            waiting_max: 8,
            chunk: ChunkRows::DEFAULT,
        };
        let (host, _) = EngineHost::start(Engine::new(Faulty::new(executor, faults), settings).unwrap()).unwrap();
        let settings = ProducerSettings {
            concurrent_max: 2,
            context: u32::try_from(context).unwrap(),
            lanes_max: 8,
            handshakes_max: NonZeroUsize::new(256).unwrap(),
            stall_limit: Duration::from_secs(60),
            pace: None,
            compress: Compress::Auto,
            prefixes: PrefixScope::Node,
        };
        let producer = Arc::new(Producer::new(host, self.shape.clone(), member, settings));
        let port = runtime.block_on(Port::open("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = port.address().unwrap();
        runtime.spawn(producer.serve(port, Arc::new(acceptor), std::future::pending(), |_| ()));
        (address, identity.facts().id)
    }

    /// A server whose long prompts are computed at `address`, if it can be.
    fn serve(&self, address: SocketAddr, fallback: Fallback, ping: Duration) -> World {
        self.serve_by(&[address], (fallback, ping), (0.0, Arc::new(|| 0)))
    }

    /// The folder of a node that is there.
    pub fn folder_of(&self, name: &str) -> ClusterFolder {
        ClusterFolder::new(self.folder.path().join(name))
    }

    /// The name of the node whose server asks these producers.
    pub fn decoder(addresses: &[SocketAddr]) -> String {
        format!("decoder-{}", addresses[0].port())
    }

    /// A server whose long prompts are computed at one of `addresses`, and that audits a share of what comes, as its random
    /// numbers say.
    pub fn serve_by(
        &self,
        addresses: &[SocketAddr],
        (fallback, ping): (Fallback, Duration),
        (rate, random): (f64, Arc<dyn Fn() -> u64 + Send + Sync>),
    ) -> World {
        let (folder, identity, lane) = self.node(&Self::decoder(addresses), Roles::Decoder);
        let clock = Arc::clone(&lane.clock);
        let connector = Arc::new(Connector::new(&identity, lane).unwrap());
        let member = Member::new(identity.facts(), &self.keys, &self.shape).unwrap();
        let ledger = Arc::new(Ledger::open(FolderStorage::open(&folder.ledger()).unwrap(), 1 << 10).unwrap());
        let quarantine = Arc::new(folder.load_quarantine().unwrap());
        let remote = |address: &SocketAddr| {
            let settings = RemoteSettings {
                address: *address,
                wanted: Wanted { role: Role::Producer, id: None },
                expires_in: Duration::from_secs(60),
                stall_limit: Duration::from_secs(60),
            };
            let (connector, of_model) = (Arc::clone(&connector), (self.shape.clone(), member.clone()));
            Remote::new(connector, of_model, Arc::clone(&ledger), Arc::clone(&clock), settings)
                .with_quarantine(Arc::clone(&quarantine))
        };
        let remotes = addresses.iter().map(remote).collect();
        let prefill = PrefillSettings { tokens_min: 16, by: PrefillBy::Producer, fallback };
        let policy = Policy::new(PolicySettings::default(), *self.identity.as_bytes());
        let audits = AuditSettings {
            rate,
            pages_max: NonZeroUsize::MIN,
            model: *self.identity.as_bytes(),
            random,
            clock: Arc::clone(&clock),
            report: Arc::new(|_| ()),
        };
        let auditor = Auditor::new(audits, quarantine);
        let mut setup = Setup { identity: Some(self.identity), ..Setup::of(shipped()) };
        setup.service.ping = ping;
        World::start_remote(setup, RemotePrefill::new(remotes, prefill, (policy, None), auditor))
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A text of some 400 tokens that begins like no other.
fn text(number: usize) -> String {
    format!("{number}. ") + &"There was an old house by the sea. ".repeat(35)
}

/// A long answer's request, by the fields of a route.
fn body(path: &str, number: usize) -> Value {
    let more = match path {
        "/v1/chat/completions" => json!({"messages": [{"role": "user", "content": text(number)}]}),
        _ => json!({"prompt": text(number)}),
    };
    let mut body = json!({"max_tokens": 4, "seed": 3, "stream": true, "return_progress": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_stream_tells_how_far_the_producer_is_before_anything_happens_here() {
    let (cluster, runtime) = (Cluster::new(), runtime());
    let world = cluster.serve(cluster.produce(&runtime), Fallback::Fail, Duration::from_secs(30));
    let alone = World::shipped();
    for (number, path) in ["/completion", "/v1/completions", "/v1/chat/completions"].into_iter().enumerate() {
        let chunks = world.post(path, &body(path, number)).chunks();
        let told: Vec<&Value> =
            chunks.iter().map(|chunk| &chunk["prompt_progress"]).filter(|it| !it.is_null()).collect();
        let number_of = |progress: &Value, name: &str| progress[name].as_u64().unwrap();
        let processed: Vec<u64> = told.iter().map(|progress| number_of(progress, "processed")).collect();
        let total = number_of(told[0], "total");
        assert!(total > 300 && told.iter().all(|progress| number_of(progress, "total") == total), "{path}: {told:?}");
        // Accepted, a step of the producer's engine after the other, then the start here and the last token.
        let steps = (total - 1).div_ceil(ROWS as u64);
        let of_producer = (0..=steps).map(|step| (step * ROWS as u64).min(total - 1));
        assert_eq!(processed, of_producer.chain([total - 1, total]).collect::<Vec<_>>(), "{path}");
        assert!(told.is_sorted_by_key(|progress| progress["time_ms"].as_f64().unwrap()), "{path}: {told:?}");
        let timings = &chunks.iter().rev().find(|chunk| !chunk["timings"].is_null()).unwrap()["timings"];
        assert_eq!((&timings["kv_source"], number_of(timings, "kv_brought_n")), (&json!("producer"), total - 1));

        let said = |chunks: &[Value]| -> String {
            let texts = chunks.iter().map(|chunk| match path {
                "/completion" => &chunk["content"],
                "/v1/completions" => &chunk["choices"][0]["text"],
                _ => &chunk["choices"][0]["delta"]["content"],
            });
            texts.filter_map(Value::as_str).collect()
        };
        assert_eq!(said(&chunks), said(&alone.post(path, &body(path, number)).chunks()), "{path}");
    }
    assert_eq!(world.status().totals.prompt_tokens, 3);
}

#[test]
fn a_stream_begins_while_a_producer_is_silent_and_hears_of_its_failure() {
    let cluster = Cluster::new();
    for fallback in [Fallback::Fail, Fallback::Local] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let world = cluster.serve(silent.local_addr().unwrap(), fallback, Duration::from_millis(20));
        let mut streaming = world.begin("POST", "/completion", &body("/completion", 0));
        assert_eq!(streaming.status, 200);
        let (asking, _) = silent.accept().unwrap();
        for _ in 0..3 {
            assert_eq!(streaming.chunk(), ":\n\n");
        }
        drop((asking, silent));
        let chunks = streaming.finish().chunks();
        let last = chunks.last().unwrap();
        match fallback {
            Fallback::Fail => assert_eq!((chunks.len(), &last["error"]["code"]), (1, &json!(503)), "{chunks:?}"),
            _ => {
                assert_eq!((&last["stop"], &last["timings"]["kv_source"]), (&json!(true), &json!("local")), "{last}");
                assert!(last["timings"]["kv_lost_ms"].as_f64().unwrap() >= 40.0, "{last}");
            }
        }
    }
}

#[test]
fn a_producer_whose_device_has_no_room_or_fails_says_so_and_the_prompt_is_computed_here() {
    let (cluster, runtime) = (Cluster::new(), runtime());
    let alone = World::shipped();
    for (name, fault) in [("short", Fault::out_of_memory(1 << 20)), ("lost", Fault::lost())] {
        // In the second step: some pages have been sent by then.
        let faults: Faults =
            Arc::new(move |batch| batch.iter().any(|input| input.cache.rows() > 0).then(|| fault.clone()));
        let address = cluster.produce_faulty(&runtime, name, faults);
        let world = cluster.serve(address, Fallback::Local, Duration::from_secs(30));
        let mut body = body("/completion", 0);
        body["stream"] = json!(false);
        let (answer, want) = (world.post("/completion", &body).ok(), alone.post("/completion", &body).ok());
        assert_eq!(answer["timings"]["kv_source"], json!("local"), "{name}: {answer}");
        assert_eq!(answer["content"], want["content"], "{name}");
        let quarantine = cluster.folder_of(&Cluster::decoder(&[address])).load_quarantine().unwrap();
        assert!(quarantine.list().unwrap().is_empty(), "{name}: a device that fails is no lie");
        // One that is short of memory goes on with what fits, and is asked again after the pause that follows a failure.
        if name == "short" {
            let mut attempts = 0;
            wait_until("the producer is asked again", || {
                attempts += 1;
                let mut short = body.clone();
                short["prompt"] =
                    json!(format!("{attempts}. There was an old house by the sea, and nobody lived there."));
                world.post("/completion", &short).ok()["timings"]["kv_source"] == json!("producer")
            });
        }
    }
}

#[test]
fn whoever_leaves_a_stream_leaves_the_producer() {
    let cluster = Cluster::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let world = cluster.serve(silent.local_addr().unwrap(), Fallback::Local, Duration::from_millis(20));
    let mut streaming = world.begin("POST", "/completion", &body("/completion", 0));
    let (mut asking, _) = silent.accept().unwrap();
    assert_eq!(streaming.chunk(), ":\n\n");
    drop(streaming);
    asking.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // What it said, and then its end.
    asking.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(world.wait_until_idle().totals.ended, 0);
}

#[test]
fn a_stream_that_is_refused_at_once_has_the_status_of_that() {
    let cluster = Cluster::new();
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let world = cluster.serve(closed, Fallback::Fail, Duration::from_secs(30));
    for path in ["/completion", "/v1/completions", "/v1/chat/completions"] {
        let refused = world.post(path, &body(path, 0)).refused(503, "unavailable_error");
        assert!(refused.contains("no producer helps"), "{refused}");
    }
}
