//! Nodes that are admitted, and nodes that are not, with the reason at both ends.

use muser_lane::{Lane, LaneError, PeerRefusal, Refusal, Wanted};
use muser_trust::identity::{NodeFacts, NodeId, Revoked, Role, Roles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, NOW, Node, meet, meet_as};

/// Result of a handshake at one end.
type Outcome = Result<Lane, LaneError>;

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_of_one_cluster_exchange_bytes_and_know_each_other() {
    let (decoder, producer) = Cluster::new().pair();
    let (near, far) = meet(&decoder, &producer).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    assert_eq!((near.peer(), far.peer()), (producer.identity.facts(), decoder.identity.facts()));
    let sent: Vec<u8> = (0..1 << 20).map(|index: u32| index.to_le_bytes()[1]).collect();
    let there = async {
        near.write_all(&sent).await.unwrap();
        near.shutdown().await.unwrap();
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        back
    };
    let back = async {
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        far.write_all(&received[..100]).await.unwrap();
        far.shutdown().await.unwrap();
        received
    };
    let (back, received) = tokio::join!(there, back);
    assert!(received == sent && back == sent[..100]);
}

/// Two strangers with CAs of the same name: neither takes the other's certificate.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_refused_from_either_side() {
    let (ours, others) = (Cluster::new().pair(), Cluster::new());
    let stranger = others.node("producer", Roles::Both, NOW);
    let (near, far) = meet(&ours.0, &stranger).await;
    assert!(matches!(near, Err(LaneError::Refused(Refusal::NotOurCluster))), "{near:?}");
    assert!(matches!(far, Err(LaneError::RefusedByPeer(PeerRefusal::NotOurCluster))), "{far:?}");
}

/// A client that trusts the producer's CA, with a certificate of its own making.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_ca_is_refused_although_the_producer_is_trusted() {
    let ours = Cluster::new();
    let producer = ours.node("producer", Roles::Producer, NOW);
    let stranger = Cluster::new().node("decoder", Roles::Decoder, NOW);
    let client = crate::strangers::Client::of(&ours, Some(&stranger), &rustls::version::TLS13);
    let (told, far) = client.meet(&producer).await;
    assert!(matches!(far, Err(LaneError::Refused(Refusal::NotOurCluster))), "{far:?}");
    assert!(told.contains("UnknownCA") || told.contains("DecryptError"), "{told}");
}

/// Asserts that one end refused for the reason `why`, and that the other received `told`.
fn refused(ends: (Outcome, Outcome), why: impl Fn(&Refusal) -> bool, told: PeerRefusal) {
    let (refuser, refused) = &ends;
    let right = matches!(refuser, Err(LaneError::Refused(refusal)) if why(refusal));
    assert!(right && matches!(refused, Err(LaneError::RefusedByPeer(reason)) if *reason == told), "{ends:?}");
}

fn swapped((near, far): (Outcome, Outcome)) -> (Outcome, Outcome) {
    (far, near)
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_refused_before_and_after_their_time_at_both_ends() {
    let cluster = Cluster::new();
    let good = (cluster.node("d", Roles::Decoder, NOW), cluster.node("p", Roles::Producer, NOW));
    for (issued, expired) in [(NOW - 3601, true), (NOW + 301, false)] {
        let bad = (cluster.node("d", Roles::Decoder, issued), cluster.node("p", Roles::Producer, issued));
        let why = |refusal: &Refusal| match refusal {
            Refusal::Expired => expired,
            Refusal::NotYetValid => !expired,
            _ => false,
        };
        refused(swapped(meet(&bad.0, &good.1).await), why, PeerRefusal::NotValidNow);
        refused(meet(&good.0, &bad.1).await, why, PeerRefusal::NotValidNow);
    }
    // A clock that is behind by less than the allowed skew is no obstacle.
    let early = cluster.node("d", Roles::Decoder, NOW + 299);
    let (near, far) = meet(&early, &good.1).await;
    assert!(near.is_ok() && far.is_ok(), "{near:?} {far:?}");
}

async fn revoked_at_both_ends(entry: impl Fn(&NodeFacts) -> Revoked) {
    let (decoder, producer) = Cluster::new().pair();
    let admitted = meet(&decoder, &producer).await;
    assert!(admitted.0.is_ok() && admitted.1.is_ok());
    let by = |node: &Node| {
        let (facts, revoked) = (node.identity.facts().clone(), entry(node.identity.facts()));
        move |refusal: &Refusal| matches!(refusal, Refusal::Revoked { id, revoked: found } if *id == facts.id && *found == revoked)
    };
    producer.revocations.revoke(entry(decoder.identity.facts()), NOW).unwrap();
    refused(swapped(meet(&decoder, &producer).await), by(&decoder), PeerRefusal::Revoked);

    let (decoder, producer) = Cluster::new().pair();
    decoder.revocations.revoke(entry(producer.identity.facts()), NOW).unwrap();
    refused(meet(&decoder, &producer).await, by(&producer), PeerRefusal::Revoked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_refused_at_its_next_connection() {
    revoked_at_both_ends(|facts| Revoked::Node(facts.id)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_at_its_next_connection() {
    revoked_at_both_ends(|facts| Revoked::Serial(facts.serial)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_role_is_refused_at_both_ends() {
    let cluster = Cluster::new();
    let nodes = (cluster.node("a", Roles::Producer, NOW), cluster.node("b", Roles::Producer, NOW));
    let why = |refusal: &Refusal| matches!(refusal, Refusal::WrongRole { needed: Role::Decoder, has: Roles::Producer });
    refused(swapped(meet(&nodes.0, &nodes.1).await), why, PeerRefusal::WrongRole);
    let nodes = (cluster.node("a", Roles::Decoder, NOW), cluster.node("b", Roles::Decoder, NOW));
    let why = |refusal: &Refusal| matches!(refusal, Refusal::WrongRole { needed: Role::Producer, has: Roles::Decoder });
    refused(meet(&nodes.0, &nodes.1).await, why, PeerRefusal::WrongRole);
    let both = (cluster.node("a", Roles::Both, NOW), cluster.node("b", Roles::Both, NOW));
    let (near, far) = meet(&both.0, &both.1).await;
    assert!(near.is_ok() && far.is_ok(), "{near:?} {far:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_than_the_one_meant_is_refused() {
    let (decoder, producer) = Cluster::new().pair();
    let (meant, found) = (NodeId([7; 32]), producer.identity.facts().id);
    let ends = meet_as(&decoder, &producer, Wanted { role: Role::Producer, id: Some(meant) }).await;
    let why = |refusal: &Refusal| matches!(refusal, Refusal::WrongNode { expected, found: is } if (*expected, *is) == (meant, found));
    refused(ends, why, PeerRefusal::WrongNode);
    let (near, far) = meet_as(&decoder, &producer, Wanted { role: Role::Producer, id: Some(found) }).await;
    assert!(near.is_ok() && far.is_ok(), "{near:?} {far:?}");
}
