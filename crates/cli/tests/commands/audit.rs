//! `muser serve --audit` beside a producer that lies: its identity, certificate, keys and digests are right, its weights are
//! not. Only computing again can tell.

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_cluster::handoff::{Compress, Member, Port, Producer, ProducerSettings, Shape};
use muser_engine::{ChunkRows, Engine, EngineSettings};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::PrefixScope;
use muser_lane::{Acceptor, LaneSettings, Wanted};
use muser_model::{Executor, Identity, Model};
use muser_trust::identity::{ClusterFolder, Role, Roles};
use muser_weights::digest::FileDigest;
use muser_weights::gguf::{Gguf, ModelFiles};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::common::{Folder, SHIPPED, muser};
use crate::produce::{Producing, cluster, complete, nodes};
use crate::serving::Serving;

const CONTEXT: usize = 512;
/// The layer in which the liar's weights differ.
const LAYER: usize = 3;

/// A producer in this process, whose weights are not those of its identity.
struct Liar {
    address: String,
    node: String,
    _runtime: Runtime,
}

impl Liar {
    fn start(folder: &str) -> Self {
        let honest = fs::read(SHIPPED).unwrap();
        let mut altered = honest.clone();
        let parsed = Gguf::parse(&honest).unwrap();
        let name = format!("blk.{LAYER}.attn_k.weight");
        let bytes = parsed.tensors().find(|tensor| tensor.name() == name).unwrap().bytes().unwrap();
        let start = bytes.as_ptr().addr() - honest.as_ptr().addr();
        // Weights of four bits, behind the scales of their blocks.
        altered[start..start + bytes.len()]
            .chunks_mut(144)
            .for_each(|block| block[16..].iter_mut().for_each(|b| *b ^= 0x11));

        let files = Arc::new(ModelFiles::from_bytes(honest).unwrap());
        let digest = FileDigest::compute(&files).unwrap();
        let model = Model::load(Arc::new(ModelFiles::from_bytes(altered).unwrap()), NonZeroUsize::MIN).unwrap();
        let (model, kv) = (Arc::new(model), KvLayout::Q8);
        let identity = Identity::new(&digest, model.config(), kv);
        let shape = Shape::new(model.cache_spec(kv, CONTEXT).unwrap(), identity).unwrap();
        let rows = NonZeroUsize::new(256).unwrap();
        let executor = Executor::new(model, Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
        let settings = EngineSettings {
            context: CONTEXT,
            kv,
            identity: identity.kv(),
            budget_bytes: 64 << 20,
            prefix_bytes_max: 32 << 20,
            installed_bytes_max: 0,
            running_max: NonZeroUsize::new(2).unwrap(),
            waiting_max: 8,
            chunk: ChunkRows::DEFAULT,
        };
        let (host, _) = EngineHost::start(Engine::new(executor, settings).unwrap()).unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (address, node) = runtime.block_on(produce(folder, host, shape));
        Self { address: address.to_string(), node, _runtime: runtime }
    }
}

async fn produce(folder: &str, host: EngineHost, shape: Shape) -> (SocketAddr, String) {
    let folder = ClusterFolder::new(Path::new(folder));
    let identity = folder.load_identity().unwrap();
    let lane = LaneSettings {
        revocations: Arc::new(folder.load_revocations().unwrap()),
        handshake_timeout: Duration::from_secs(60),
        clock: Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()),
    };
    let acceptor = Acceptor::new(&identity, lane, Wanted { role: Role::Decoder, id: None }).unwrap();
    let member = Member::new(identity.facts(), &folder.load_keys().unwrap(), &shape).unwrap();
    let settings = ProducerSettings {
        concurrent_max: 2,
        context: u32::try_from(CONTEXT).unwrap(),
        lanes_max: 8,
        handshakes_max: NonZeroUsize::new(256).unwrap(),
        stall_limit: Duration::from_secs(60),
        pace: None,
        compress: Compress::Auto,
        prefixes: PrefixScope::Node,
    };
    let producer = Arc::new(Producer::new(host, shape, member, settings));
    let port = Port::open("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = port.address().unwrap();
    tokio::spawn(producer.serve(port, Arc::new(acceptor), std::future::pending(), |_| ()));
    (address, identity.facts().id.to_string())
}

/// A prompt of some 450 tokens, longer than the window, that begins like no other.
fn prompt(number: usize) -> String {
    format!("{number}. ") + &"There was an old house by the sea. ".repeat(37)
}

/// A server that has its long prompts computed by these producers.
fn serving(decoder: &str, producers: &[&str], more: &[&str]) -> Serving {
    let producers = producers.iter().flat_map(|address| ["--producer", address]);
    let flags = ["--cluster", decoder, "--prefill", "producer", "--audit-tokens", "64"];
    Serving::start(&flags.into_iter().chain(producers).chain(more.iter().copied()).collect::<Vec<_>>())
}

fn quarantined(decoder: &str) -> Value {
    let shown = muser(&["cluster", "show", decoder, "--json"]).done().stdout;
    serde_json::from_str::<Value>(&shown).unwrap()["quarantined"].take()
}

#[test]
fn a_producer_with_other_weights_is_found_and_not_asked_again_until_it_is_readmitted() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let liar = Liar::start(&producer);
    let producers = [liar.address.as_str()];
    let alone = Serving::start(&[]);
    // Without audits its answer is another one: this is what they are for.
    let trusting = serving(&decoder, &producers, &[]);
    let (right, _) = complete(&alone, &prompt(0));
    let (wrong, times) = complete(&trusting, &prompt(0));
    assert!(right != wrong && times["kv_source"] == "producer" && times["kv_audit"].is_null(), "{times}");
    trusting.stopped();

    let auditing = serving(&decoder, &producers, &["--audit", "1"]);
    let (answer, times) = complete(&auditing, &prompt(0));
    assert_eq!(answer, right);
    let audit = &times["kv_audit"];
    assert_eq!(
        (&audit["outcome"], &audit["layer"], &times["kv_source"]),
        (&json!("differs"), &json!(LAYER), &json!("local"))
    );
    let place = format!("layer {LAYER}, position {}, ", audit["position"]);
    assert!(times["kv_fallback"].as_str().unwrap().contains(&place), "{times}");
    for (name, value) in
        [("audits", 1.0), ("audit_mismatches", 1.0), ("handoff_fallbacks", 1.0), ("audits_skipped", 0.0)]
    {
        assert_eq!(auditing.metric(&format!("muser:{name}_total")), value, "{name}");
    }
    assert!(auditing.metric("muser:audit_tokens_total") >= 1.0);
    assert_eq!(auditing.metric(&format!("muser:handoff_failures_total{{producer=\"{}\"}}", liar.address)), 1.0);
    let (answer, times) = complete(&auditing, &prompt(1));
    assert_eq!(answer, complete(&alone, &prompt(1)).0);
    assert!(times["kv_fallback"].as_str().unwrap().contains("quarantined") && times["kv_audit"].is_null(), "{times}");
    let said = auditing.stopped();
    for part in [&liar.node, &liar.address, &place] {
        assert!(said.contains(part), "{said}");
    }

    let listed = quarantined(&decoder);
    assert_eq!(
        (&listed[0]["node"], &listed[0]["layer"], listed.as_array().unwrap().len()),
        (&json!(liar.node), &json!(LAYER), 1)
    );
    let in_words = muser(&["cluster", "show", &decoder]).done().stdout;
    assert!(in_words.contains(&place) && in_words.contains(&liar.node), "{in_words}");
    let again = serving(&decoder, &producers, &[]);
    for number in 2..4 {
        let (answer, times) = complete(&again, &prompt(number));
        assert_eq!(answer, complete(&alone, &prompt(number)).0);
        assert!(times["kv_fallback"].as_str().unwrap().contains("quarantined"), "{times}");
    }
    // The server finds out by itself.
    muser(&["cluster", "readmit", &decoder, &liar.node]).done();
    assert_eq!(complete(&again, &prompt(4)).1["kv_source"], "producer");
    again.stopped();
    assert_eq!(quarantined(&decoder), json!([]));
    assert!(muser(&["cluster", "readmit", &decoder, &liar.node]).refused(2).contains("is not quarantined"));
    fs::write(format!("{decoder}/quarantine.toml"), "quarantined = 7").unwrap();
    let refused = muser(&["serve", "--cluster", &decoder, "--producer", &liar.address, "--port", "0"]);
    assert!(refused.refused(1).contains("quarantine.toml"));
    alone.stopped();
}

#[test]
fn what_came_unaudited_from_a_producer_is_not_used_once_it_is_found_out() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let liar = Liar::start(&producer);
    let alone = Serving::start(&[]);
    // Chance decides which handoff is audited; there are some before it, or else it is tried again.
    loop {
        let auditing = serving(&decoder, &[&liar.address], &["--audit", "0.3"]);
        let found = (0..1000).find(|number| !complete(&auditing, &prompt(*number)).1["kv_audit"].is_null()).unwrap();
        for number in 0..found {
            let (answer, times) = complete(&auditing, &prompt(number));
            assert_eq!((&times["cache_n"], &times["kv_source"]), (&json!(0), &json!("local")), "{times}");
            assert_eq!(answer, complete(&alone, &prompt(number)).0);
        }
        auditing.stopped();
        if found > 0 {
            break;
        }
        muser(&["cluster", "readmit", &decoder, &liar.node]).done();
    }
    alone.stopped();
}

#[test]
fn a_request_that_may_not_be_computed_here_is_refused_with_what_was_found() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let liar = Liar::start(&producer);
    let auditing = serving(&decoder, &[&liar.address], &["--audit", "1", "--fallback", "fail"]);
    let ask = || auditing.ask("POST", "/completion", "", &json!({"prompt": prompt(0), "n_predict": 2}).to_string());
    let (first, second) = (ask(), ask());
    let found = format!("layer {LAYER}, position ");
    assert!(first.starts_with("HTTP/1.1 503 ") && first.contains(&found) && first.contains(&liar.address), "{first}");
    assert!(second.starts_with("HTTP/1.1 503 ") && second.contains("quarantined"), "{second}");
    auditing.stopped();
}

#[test]
fn another_producer_helps_where_the_first_was_found_out_and_honest_ones_pass() {
    let folder = Folder::new();
    let names = [("liar", Roles::Producer), ("honest", Roles::Producer), ("decoder", Roles::Decoder)];
    let [liar, honest, decoder] = nodes(&folder, names);
    let liar = Liar::start(&liar);
    let producing = Producing::start(&["--cluster", &honest, "--listen", "127.0.0.1:0"]);
    let producers = [liar.address.as_str(), producing.address.as_str()];
    let alone = Serving::start(&[]);
    let auditing = serving(&decoder, &producers, &["--audit", "1", "--fallback", "other-producer"]);
    for number in 0..6 {
        let (answer, times) = complete(&auditing, &prompt(number));
        assert_eq!(answer, complete(&alone, &prompt(number)).0);
        assert_eq!(
            (&times["kv_producer"], &times["kv_audit"]["outcome"]),
            (&json!("honest"), &json!("same")),
            "{times}"
        );
        assert_eq!(times["kv_fallback"].is_string(), number == 0, "{times}");
        let audited = times["kv_audit"]["tokens"].as_u64().unwrap();
        assert!((1..=128).contains(&audited) && times["kv_audit"]["pages"].as_u64().unwrap() > 0, "{times}");
    }
    assert_eq!((auditing.metric("muser:audits_total"), auditing.metric("muser:audit_mismatches_total")), (7.0, 1.0));
    assert_eq!(quarantined(&decoder).as_array().unwrap().len(), 1);
    auditing.stopped();
    alone.stopped();
}
