//! Failures are named, and leave no page behind.

use std::time::Duration;

use muser_cluster::handoff::{BringError, HandoffError};
use muser_engine::engine::{Flow, PrefixReuse};
use muser_kernels::attention::KvLayout;
use muser_trust::keys::KeyRing;
use muser_wire::{Component, Failure, RefuseCode};

use crate::world::{
    Cluster, answer_remotely, clock, machine, nothing_is_left, random_tokens, request, run, wait_until,
};

#[test]
fn another_layout_is_refused_by_name_before_any_page() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::F16), None).await;
        let decoder = machine(KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        let failed = answer_remotely(&decoder, &remote, &random_tokens(1, 200), PrefixReuse::Share).await.unwrap_err();
        let named = match &failed {
            BringError::Handoff(HandoffError::Refused(refuse)) => {
                assert_eq!(refuse.code, RefuseCode::Identity);
                refuse.field == Component::KvLayout as u8
            }
            BringError::Handoff(HandoffError::Failed(failure)) => failure.to_string().contains("KV layout"),
            _ => false,
        };
        assert!(named && failed.is_unsuitable() && !failed.is_too_long(), "{failed:?}");
        nothing_is_left(&decoder).await;
    });
}

#[test]
fn another_key_never_completes_a_handoff() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        // A key of the same id that the producer does not have.
        let other = KeyRing::generate(clock()()).unwrap();
        let remote = cluster.remote("decoder", &decoder, producing.address, &other);
        let failed = answer_remotely(&decoder, &remote, &random_tokens(1, 200), PrefixReuse::Share).await.unwrap_err();
        assert!(matches!(failed, BringError::Handoff(HandoffError::Failed(Failure::Mac(_)))), "{failed:?}");
        nothing_is_left(&decoder).await;
    });
}

#[test]
fn a_producer_that_dies_is_noticed_and_one_that_comes_back_is_used_again() {
    run(async {
        let cluster = Cluster::new();
        let mut producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        let prompt = random_tokens(5, 2000);
        answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.unwrap();
        // Its engine ends in the middle of a prompt.
        let attempt = answer_remotely(&decoder, &remote, &prompt[1..], PrefixReuse::Isolate);
        let host = producing.machine.host.clone();
        let (failed, ()) = tokio::join!(attempt, async move {
            wait_until("the producer computes", || host.status().running() > 0).await;
            host.stop();
        });
        assert!(failed.is_err());
        nothing_is_left(&decoder).await;
        // Its task ends a little after the decoder has been told.
        wait_until("the producer has given it up", || producing.producer.busy() == 0).await;
        drop(producing.stop.take());
        let address = producing.address;
        drop(producing);
        // Another run of the node at the same place: the kept lane is dead or tells of it, and a new one is made.
        wait_until("the address is free", || std::net::TcpListener::bind(address).is_ok()).await;
        let _producing = cluster.produce("producer-again", machine(KvLayout::Q8), Some(address)).await;
        let mut attempts = 0;
        while answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.is_err() {
            attempts += 1;
            assert!(attempts < 3, "the producer is not used again");
        }
    });
}

#[test]
fn a_producer_that_is_about_to_end_lets_handoffs_end_and_begins_none() {
    run(async {
        let cluster = Cluster::new();
        let mut producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        let isolated = PrefixReuse::Isolate;
        // Two lanes are open then.
        let (first, second) = (random_tokens(1, 1500), random_tokens(2, 1500));
        let both = tokio::join!(
            answer_remotely(&decoder, &remote, &first, isolated),
            answer_remotely(&decoder, &remote, &second, isolated)
        );
        both.0.unwrap();
        both.1.unwrap();
        wait_until("both are over", || producing.producer.busy() == 0).await;
        let prompt = random_tokens(3, 1800);
        let under_way = answer_remotely(&decoder, &remote, &prompt, isolated);
        let ending = async {
            wait_until("the producer computes", || producing.producer.busy() == 1).await;
            drop(producing.stop.take());
            wait_until("it takes no lanes", || std::net::TcpStream::connect(producing.address).is_err()).await;
            let busy = producing.producer.busy();
            let refused = answer_remotely(&decoder, &remote, &first, isolated).await.unwrap_err();
            producing.producer.drained().await;
            (busy, refused)
        };
        let (ended, (busy, refused)) = tokio::join!(under_way, ending);
        assert_eq!(busy, 1, "the handoff ended too soon for this to show anything");
        assert!(
            matches!(&refused, BringError::Handoff(HandoffError::Refused(refuse)) if refuse.code == RefuseCode::ShuttingDown),
            "{refused}"
        );
        ended.unwrap();
        assert_eq!(producing.producer.busy(), 0);
    });
}

#[test]
fn a_producer_that_is_busy_for_longer_than_the_stall_limit_is_not_taken_for_dead() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let limit = Duration::from_millis(1500);
        let remote = cluster.remote_with_limit("decoder", &decoder, producing.address, (&cluster.keys, limit));
        // All four places of its engine are taken for longer than that, by the same node: another would have to make way.
        let node = cluster.folder("decoder").load_identity().unwrap().facts().id;
        let client = u64::from_le_bytes(*node.0.first_chunk().unwrap());
        let mut others = Vec::new();
        for seed in 0..4 {
            let endless = request(&random_tokens(seed, 10), 2000, PrefixReuse::Isolate);
            let endless = endless.in_turns_of(Flow { client, group: seed });
            others.push(producing.machine.host.submit(endless).await.unwrap());
        }
        let prompt = random_tokens(9, 200);
        let mut installation = decoder.host.begin_installation(prompt, PrefixReuse::Isolate).await.unwrap();
        let bringing = remote.bring(&mut installation);
        let leaving = async {
            tokio::time::sleep(2 * limit).await;
            let still_busy = producing.machine.host.status().running();
            drop(others);
            still_busy
        };
        let (brought, still_busy) = tokio::join!(bringing, leaving);
        assert_eq!(still_busy, 4, "the engine was free too soon for this to show anything");
        let queue_us = brought.unwrap().stats.times.queue_us;
        assert!(u128::from(queue_us) > limit.as_micros(), "the producer tells of {queue_us} us in its queue");
    });
}
