//! Members of the cluster, and strangers, that violate the protocol.

use std::net::SocketAddr;
use std::time::Duration;

use muser_cluster::handoff::{BringError, HandoffError, Remote};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_lane::{Acceptor, Connector, Lane, Wanted};
use muser_trust::identity::{Role, Roles};
use muser_wire::{Failure, FrameKind, Hello, Message, Node, RefuseCode, VERSIONS, write_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::middle::{Content, From, honest, stand_between_as};
use crate::world::{Cluster, Machine, answer_remotely, machine, nothing_is_left, random_tokens, run};

const PRODUCERS: Wanted = Wanted { role: Role::Producer, id: None };

async fn bring(decoder: &Machine, remote: &Remote, seed: u64) -> Result<(), BringError> {
    let prompt = random_tokens(seed, 200);
    answer_remotely(decoder, remote, &prompt, PrefixReuse::Isolate).await.map(drop)
}

fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, kind, |out| out.extend_from_slice(body));
    out
}

/// A lane of a node of this name, on which nothing was sent.
async fn lane(cluster: &Cluster, name: &str, address: SocketAddr) -> Lane {
    let (folder, identity) = cluster.node(name, Roles::Decoder, &cluster.keys);
    let connector = Connector::new(&identity, cluster.lane_settings(&folder)).unwrap();
    connector.connect(address, PRODUCERS).await.unwrap()
}

/// Bytes that the other end sends before it closes the lane.
async fn last_words(mut lane: Lane) -> Vec<u8> {
    let mut said = Vec::new();
    // It may end by a reset.
    let _ = lane.read_to_end(&mut said).await;
    said
}

#[test]
fn a_producer_that_pings_instead_of_greeting_is_given_up() {
    run(async {
        let cluster = Cluster::new();
        let (folder, identity) = cluster.node("rogue", Roles::Producer, &cluster.keys);
        let decoders = Wanted { role: Role::Decoder, id: None };
        let acceptor = Acceptor::new(&identity, cluster.lane_settings(&folder), decoders).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let mut lane = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
                tokio::spawn(async move {
                    while lane.write_all(&frame(FrameKind::Ping, &[0; 8])).await.is_ok() && lane.flush().await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(30)).await;
                    }
                });
            }
        });
        let decoder = machine(KvLayout::Q8);
        let short = Duration::from_millis(400);
        let remote = cluster.remote_with_limit("decoder", &decoder, address, (&cluster.keys, short));
        let failed = bring(&decoder, &remote, 1).await.unwrap_err();
        assert!(matches!(failed, BringError::Handoff(HandoffError::Failed(Failure::NotGreeted { .. }))), "{failed:?}");
        // Whatever the limit for silence, the time for the whole begins with the decision to ask.
        let remote = cluster.remote_that_expires("other", &decoder, address, short);
        let failed = bring(&decoder, &remote, 2).await.unwrap_err();
        assert!(matches!(failed, BringError::Late { limit } if limit == short), "{failed:?}");
        nothing_is_left(&decoder).await;
    });
}

#[test]
fn a_member_in_the_middle_is_not_taken_for_another_node() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        // He passes on what both say: the producer finds that the decoder is not who it says.
        let (folder, identity) = cluster.node("middle", Roles::Both, &cluster.keys);
        let own = || (folder.clone(), folder.clone());
        let middle = stand_between_as(&cluster, producing.address, own(), honest).await;
        let remote = cluster.remote("decoder", &decoder, middle, &cluster.keys);
        let failed = bring(&decoder, &remote, 1).await.unwrap_err();
        let refused = matches!(&failed, BringError::Handoff(HandoffError::Failed(Failure::RefusedByPeer(refuse)))
            if refuse.code == RefuseCode::Protocol && refuse.detail.contains("certificate"));
        assert!(refused, "{failed:?}");
        // He asks in his own name, and passes on what the producer answers.
        let id = identity.facts().id.0;
        let rename = move |from: From, kind, body: &[u8]| -> Vec<Content> {
            let mut body = body.to_vec();
            if from == From::Decoder && kind == FrameKind::Hello {
                // Behind the versions and the boot id.
                body[20..52].copy_from_slice(&id);
            }
            vec![(kind, body)]
        };
        let middle = stand_between_as(&cluster, producing.address, own(), rename).await;
        let remote = cluster.remote("other", &decoder, middle, &cluster.keys);
        let failed = bring(&decoder, &remote, 2).await.unwrap_err();
        assert!(matches!(failed, BringError::Handoff(HandoffError::Failed(Failure::OtherNode { .. }))), "{failed:?}");
        nothing_is_left(&decoder).await;
    });
}

/// A greeting of the node that a lane is of.
fn hello(machine: &Machine, lane_of: [u8; 32]) -> Vec<u8> {
    let digests = muser_model::Component::ALL.map(|part| machine.shape.identity().component(part).0);
    let node = Node { boot_id: [1; 16], node_id: lane_of, identity: muser_wire::Identity(digests) };
    let (version_min, version_max) = VERSIONS;
    let mut out = Vec::new();
    Message::Hello(Hello { version_min, version_max, node, frame_bytes_max: 1 << 20 }).write_frame(&mut out);
    out
}

#[test]
fn a_decoder_that_floods_its_lane_loses_it_and_others_are_served() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        for (name, kind) in [("pings", FrameKind::Ping), ("pongs", FrameKind::Pong)] {
            let mut lane = lane(&cluster, name, producing.address).await;
            let id = cluster.folder(name).load_identity().unwrap().facts().id.0;
            let flood: Vec<u8> = (0..20_000).flat_map(|_| frame(kind, &[0; 8])).collect();
            lane.write_all(&hello(&decoder, id)).await.unwrap();
            // The producer may end the lane under it.
            let _ = lane.write_all(&flood).await;
            let _ = lane.flush().await;
            let said = last_words(lane).await;
            // Not one answer for each.
            assert!(said.len() < 64 << 10, "{name}: {} bytes", said.len());
        }
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        bring(&decoder, &remote, 3).await.unwrap();
    });
}

#[test]
fn a_node_that_holds_lanes_open_leaves_some_for_others() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let (folder, identity) = cluster.node("hog", Roles::Decoder, &cluster.keys);
        let connector = Connector::new(&identity, cluster.lane_settings(&folder)).unwrap();
        // The producer has places for eight lanes.
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(connector.connect(producing.address, PRODUCERS).await.unwrap());
        }
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        bring(&decoder, &remote, 4).await.unwrap();
        // Its first lanes made way for its last ones, which are open still.
        let first = held.remove(0);
        assert!(last_words(first).await.is_empty());
        let (mut last, id) = (held.pop().unwrap(), identity.facts().id.0);
        last.write_all(&hello(&decoder, id)).await.unwrap();
        assert_ne!(last.read_u8().await.unwrap(), 0);
    });
}

#[test]
fn connections_that_say_nothing_do_not_keep_a_slow_node_out() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (far, address) = (producing.address, listener.local_addr().unwrap());
        // Between the node's greeting and the rest of its handshake, many others connect.
        let proxy = tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far_side = TcpStream::connect(far).await.unwrap();
            let mut bytes = vec![0; 1 << 16];
            let read = near.read(&mut bytes).await.unwrap();
            far_side.write_all(&bytes[..read]).await.unwrap();
            // The producer has the greeting when it answers.
            let answered = far_side.read(&mut bytes).await.unwrap();
            let mut silent = Vec::new();
            for _ in 0..300 {
                silent.push(TcpStream::connect(far).await.unwrap());
            }
            // The last ones are taken when the first ones have been ended for them.
            assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0);
            near.write_all(&bytes[..answered]).await.unwrap();
            let _ = copy_bidirectional(&mut near, &mut far_side).await;
        });
        let remote = cluster.remote("decoder", &decoder, address, &cluster.keys);
        bring(&decoder, &remote, 5).await.unwrap();
        drop(remote);
        proxy.await.unwrap();
    });
}
