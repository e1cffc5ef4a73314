//! Blame: only the node that made a wrong page is quarantined, and none for a prompt that it cannot take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muser_server::Fallback;
use muser_trust::identity::{ClusterFolder, NodeFacts, Revoked};
use muser_trust::quarantine::Quarantined;
use muser_weights::gguf::Gguf;
use serde_json::{Value, json};

use crate::producers::{Cluster, runtime};
use crate::world::{Loaded, SHIPPED, World, load, shipped};

/// A random number with which a handoff is audited, and one with which it is not.
const AUDITED: u64 = 0;
const NOT_AUDITED: u64 = u64::MAX;

/// The shipped model with other keys from layer 3 on.
fn altered() -> Arc<Loaded> {
    let mut file = SHIPPED.to_vec();
    let parsed = Gguf::parse(SHIPPED).unwrap();
    let bytes = parsed.tensors().find(|tensor| tensor.name() == "blk.3.attn_k.weight").unwrap().bytes().unwrap();
    let start = bytes.as_ptr().addr() - SHIPPED.as_ptr().addr();
    // Weights of four bits, behind the scales of their blocks.
    let blocks = file[start..start + bytes.len()].chunks_mut(144);
    blocks.for_each(|block| block[16..].iter_mut().for_each(|byte| *byte ^= 0x11));
    load(file)
}

fn ask(world: &World, prompt: &[u32]) -> (String, Value) {
    let body = json!({"prompt": prompt, "n_predict": 4, "temperature": 0.0});
    let answer = world.post("/completion", &body).ok();
    (answer["content"].as_str().unwrap().to_owned(), answer["timings"].clone())
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u32(300..4000)).collect()
}

#[test]
fn an_audit_behind_held_wrong_pages_condemns_who_sent_those_and_not_who_went_on_from_them() {
    let (cluster, runtime, alone) = (Cluster::new(), runtime(), World::shipped());
    let (liar, liars) = cluster.produce_as(&runtime, "liar", (&altered(), 512));
    let (honest, _) = cluster.produce_as(&runtime, "honest", (&shipped(), 512));
    let number = Arc::new(AtomicU64::new(NOT_AUDITED));
    let drawn = Arc::clone(&number);
    let addresses: [SocketAddr; 2] = [liar, honest];
    let random = Arc::new(move || drawn.load(Ordering::SeqCst));
    let world = cluster.serve_by(&addresses, (Fallback::Local, Duration::from_secs(30)), (0.5, random));

    let first = tokens(1, 200);
    let (_, times) = ask(&world, &first);
    assert_eq!((&times["kv_producer"], &times["kv_audit"]), (&json!("liar"), &Value::Null));
    // A producer without measurements is tried.
    number.store(AUDITED, Ordering::SeqCst);
    let second = [first.clone(), tokens(2, 220)].concat();
    let (text, times) = ask(&world, &second);
    assert_eq!((&times["kv_audit"]["outcome"], &times["kv_source"]), (&json!("differs"), &json!("local")), "{times}");
    assert!(times["kv_fallback"].as_str().unwrap().contains(&format!("held of node {liars}")), "{times}");
    assert_eq!(text, ask(&alone, &second).0);

    let folder = cluster.folder_of(&Cluster::decoder(&addresses));
    let listed: Vec<_> =
        folder.load_quarantine().unwrap().list().unwrap().into_iter().map(|entry| entry.node).collect();
    assert_eq!(listed, [liars]);
    // The honest one is asked at once.
    let third = tokens(3, 300);
    let (text, times) = ask(&world, &third);
    assert_eq!((&times["kv_producer"], &times["kv_audit"]["outcome"]), (&json!("honest"), &json!("same")), "{times}");
    assert_eq!(text, ask(&alone, &third).0);
    // What the liar sent is gone.
    let (text, times) = ask(&world, &first);
    assert_eq!((text, &times["cache_n"]), (ask(&alone, &first).0, &json!(0)), "{times}");
    assert_ne!(times["kv_producer"], "liar", "{times}");
}

#[test]
fn a_prompt_that_a_producer_cannot_take_is_no_failure_of_it() {
    let (cluster, runtime) = (Cluster::new(), runtime());
    let (address, _) = cluster.produce_as(&runtime, "short", (&shipped(), 256));
    let world = cluster.serve_by(&[address], (Fallback::Local, Duration::from_secs(30)), (0.0, Arc::new(|| 0)));
    for round in 0..3 {
        let (_, times) = ask(&world, &tokens(10 + round, 400));
        assert_eq!(times["kv_source"], "local", "{times}");
        let reason = times["kv_fallback"].as_str().unwrap();
        // The second time it is not even asked.
        assert!(reason.contains(if round == 0 { "TooLong" } else { "length" }), "{times}");
        let (_, times) = ask(&world, &tokens(20 + round, 200));
        assert_eq!((&times["kv_source"], &times["kv_fallback"]), (&json!("producer"), &Value::Null), "{times}");
    }
    let metrics = world.get("/metrics").body;
    let name = format!("muser:handoff_failures_total{{producer=\"{address}\"}} ");
    let failures = metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
    assert_eq!(failures.parse::<f64>().unwrap(), 0.0, "{metrics}");
}

/// Takes the trust in a node away, as another process does in the decoder's folder.
fn distrust(way: &str, folder: &ClusterFolder, facts: &NodeFacts) {
    let revoke = |revoked| folder.load_revocations().unwrap().revoke(revoked, 1).unwrap();
    match way {
        "node" => revoke(Revoked::Node(facts.id)),
        "serial" => revoke(Revoked::Serial(facts.serial)),
        _ => {
            let (node, model, found) = (facts.id, [0; 32], "it".to_owned());
            let entry = Quarantined { node, since_unix_s: 1, model, layer: 0, position: 0, found };
            folder.load_quarantine().unwrap().add(entry).unwrap();
        }
    }
}

#[test]
fn what_is_kept_of_a_node_that_was_revoked_or_quarantined_elsewhere_is_gone_and_what_others_sent_is_not() {
    let (cluster, runtime, alone) = (Cluster::new(), runtime(), World::shipped());
    for way in ["node", "serial", "quarantine"] {
        let names = ["lost", "other"].map(|name| format!("{name}-{way}"));
        let addresses = names.each_ref().map(|name| cluster.produce_as(&runtime, name, (&shipped(), 512)).0);
        let settings = (Fallback::Local, Duration::from_secs(30));
        let world = cluster.serve_by(&addresses, settings, (0.0, Arc::new(|| 0)));
        let prompts = [tokens(1, 300), tokens(2, 300)];
        // A producer without measurements is tried.
        for (prompt, name) in prompts.iter().zip(&names) {
            assert_eq!(&ask(&world, prompt).1["kv_producer"], name);
            assert_eq!(ask(&world, prompt).1["cache_n"], 256);
        }
        let facts = cluster.folder_of(&names[0]).load_identity().unwrap().facts().clone();
        distrust(way, &cluster.folder_of(&Cluster::decoder(&addresses)), &facts);
        for (prompt, held) in prompts.iter().zip([0, 256]) {
            let (text, times) = ask(&world, prompt);
            assert_eq!(times["cache_n"], held, "{way}: {times}");
            assert_eq!(text, ask(&alone, prompt).0, "{way}");
        }
    }
}
