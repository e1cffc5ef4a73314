//! Ends that leave or come back: nothing leaks, and the next handoff works.

use muser_cluster::handoff::{BringError, HandoffError, Remote};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_lane::LaneError;
use muser_wire::RefuseCode;

use crate::models::{Attention, small, tokens};
use crate::proxy::{Proxy, Towards};
use crate::world::{Cluster, Machine, Producing, answer, answer_remotely, nothing_is_left, request, run, wait_until};

const ISOLATED: PrefixReuse = PrefixReuse::Isolate;

/// A handoff that must come to be, with the bits of a local answer.
async fn is_right(decoder: &Machine, remote: &Remote, prompt: &[u32]) {
    let (_, reused, found) = answer_remotely(decoder, remote, prompt, ISOLATED).await.unwrap();
    let local = decoder.host.submit(request(prompt, 6, ISOLATED)).await.unwrap();
    assert!(found == answer(local).await.1 && reused == prompt.len() - 1);
}

/// No handoff is under way, and all that the producer's engine holds is kept prefixes.
async fn producer_is_idle(producing: &Producing) {
    wait_until("the producer has given everything up", || producing.producer.busy() == 0).await;
    let host = producing.machine.host.clone();
    answer(host.submit(request(&[3], 1, ISOLATED)).await.unwrap()).await;
    let status = host.status();
    assert_eq!((status.memory.live_bytes, status.running(), status.waiting), (status.prefix_bytes, 0, 0));
}

/// Descriptors of this process; the tests run in processes of their own where they are compared.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Kind of a cut attempt's failure, in one word.
fn word(failed: &BringError) -> &'static str {
    match failed {
        BringError::Closed => "closed",
        BringError::Io(_) => "io",
        BringError::Lane(_) => "lane",
        // The producer has not noticed yet that those before are gone.
        BringError::Handoff(HandoffError::Refused(refuse)) if refuse.code == RefuseCode::Busy => "busy",
        other => panic!("a cut wire is told as {other:?}"),
    }
}

#[test]
fn two_hundred_cuts_at_random_bytes_leave_nothing_behind_at_either_end() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", small(Attention::Windowed, KvLayout::F16), None).await;
        let proxy = Proxy::start(producing.address).await;
        let decoder = small(Attention::Windowed, KvLayout::F16);
        let remote = cluster.remote("decoder", &decoder, proxy.address, &cluster.keys);
        let before = [Towards::Producer, Towards::Decoder].map(|way| proxy.passed(way));
        is_right(&decoder, &remote, &tokens(1, 260)).await;
        // What a lane and a handoff take on each way.
        let bytes = [Towards::Producer, Towards::Decoder].map(|way| proxy.passed(way) - before[way as usize]);
        producer_is_idle(&producing).await;
        let open = descriptors();
        let mut random = fastrand::Rng::with_seed(18);
        let mut outcomes = std::collections::BTreeMap::<&str, u32>::new();
        for round in 0..200 {
            let towards = if random.bool() { Towards::Producer } else { Towards::Decoder };
            proxy.cut_after(towards, random.u64(0..bytes[towards as usize]));
            let prompt = tokens(random.u64(..), 260);
            let outcome = match answer_remotely(&decoder, &remote, &prompt, ISOLATED).await {
                // The wire was cut between two handoffs, or behind this one.
                Ok((_, reused, _)) => {
                    assert_eq!(reused, 259);
                    "whole"
                }
                Err(failed) => word(&failed),
            };
            *outcomes.entry(outcome).or_default() += 1;
            if round % 20 == 19 {
                nothing_is_left(&decoder).await;
            }
        }
        let failed: u32 = outcomes.iter().filter(|(outcome, _)| **outcome != "whole").map(|(_, count)| count).sum();
        assert!(failed >= 60, "{outcomes:?}");
        proxy.cut_after(Towards::Producer, u64::MAX / 2);
        proxy.cut_after(Towards::Decoder, u64::MAX / 2);
        is_right(&decoder, &remote, &tokens(2, 260)).await;
        producer_is_idle(&producing).await;
        nothing_is_left(&decoder).await;
        // A descriptor for each end of a lane, and two in the proxy.
        wait_until("the descriptors are closed", || descriptors() <= open + 4).await;
    });
}

#[test]
fn a_producer_restarted_at_its_address_is_used_at_the_very_next_request() {
    run(async {
        let cluster = Cluster::new();
        let mut producing = cluster.produce("producer", small(Attention::Full, KvLayout::Q8), None).await;
        // The restarted one has another port behind the same address of the wire.
        let proxy = Proxy::start(producing.address).await;
        let decoder = small(Attention::Full, KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, proxy.address, &cluster.keys);
        for restart in 0..4u8 {
            is_right(&decoder, &remote, &tokens(restart.into(), 200)).await;
            let again =
                cluster.produce(&format!("producer-{restart}"), small(Attention::Full, KvLayout::Q8), None).await;
            proxy.lead_to(again.address);
            // The lane that was kept dies with the old one: at its next byte, whichever end sends it.
            proxy.cut_after([Towards::Producer, Towards::Decoder][usize::from(restart % 2)], 0);
            producing = again;
        }
        is_right(&decoder, &remote, &tokens(9, 200)).await;
        producer_is_idle(&producing).await;
    });
}

#[test]
fn a_producer_that_ends_under_a_handoff_and_comes_back_is_used_at_the_next_request() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", small(Attention::Full, KvLayout::Q8), None).await;
        let proxy = Proxy::start(producing.address).await;
        let decoder = small(Attention::Full, KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, proxy.address, &cluster.keys);
        is_right(&decoder, &remote, &tokens(1, 200)).await;
        let before = proxy.passed(Towards::Decoder);
        proxy.hold_after(150_000);
        let (prompt, ending) = (tokens(2, 900), async {
            wait_until("pages are on their way", || proxy.passed(Towards::Decoder) >= before + 150_000).await;
            producing.machine.host.stop();
            let again = cluster.produce("producer-again", small(Attention::Full, KvLayout::Q8), None).await;
            proxy.lead_to(again.address);
            proxy.cut_after(Towards::Decoder, 0);
            proxy.resume();
            again
        });
        let (failed, again) = tokio::join!(answer_remotely(&decoder, &remote, &prompt, ISOLATED), ending);
        assert!(failed.is_err(), "the producer ended too late for this to show anything");
        nothing_is_left(&decoder).await;
        is_right(&decoder, &remote, &prompt).await;
        producer_is_idle(&again).await;
    });
}

#[test]
fn a_decoder_restarted_alone_is_served_at_once_and_the_producer_keeps_nothing_of_the_one_before() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", small(Attention::Full, KvLayout::Q8), None).await;
        let decoder = small(Attention::Full, KvLayout::Q8);
        let mut remote = Some(cluster.remote("decoder", &decoder, producing.address, &cluster.keys));
        for restart in 0..3 {
            is_right(&decoder, remote.as_ref().unwrap(), &tokens(restart, 200)).await;
            // It ends in the middle of a prompt.
            let mut installation = decoder.host.begin_installation(tokens(90 + restart, 1900), ISOLATED).await.unwrap();
            let bringing = remote.as_ref().unwrap().bring(&mut installation);
            let computes = wait_until("the producer computes", || producing.machine.host.status().running() > 0);
            tokio::select! {
                brought = bringing => panic!("brought too soon: {brought:?}"),
                () = computes => {}
            }
            drop((installation, remote.take()));
            remote = Some(cluster.remote_again("decoder", &decoder, producing.address).await);
        }
        is_right(&decoder, remote.as_ref().unwrap(), &tokens(9, 200)).await;
        producer_is_idle(&producing).await;
        nothing_is_left(&decoder).await;
    });
}

#[test]
fn refused_connections_are_told_and_forgotten_once_they_are_taken_again() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", small(Attention::Full, KvLayout::Q8), None).await;
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let decoder = small(Attention::Full, KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, free, &cluster.keys);
        for seed in 0..5 {
            let failed = answer_remotely(&decoder, &remote, &tokens(seed, 200), ISOLATED).await.unwrap_err();
            assert!(matches!(failed, BringError::Lane(LaneError::Connect { .. })), "{failed:?}");
            nothing_is_left(&decoder).await;
        }
        drop(producing);
        let _producing = cluster.produce("producer-again", small(Attention::Full, KvLayout::Q8), Some(free)).await;
        is_right(&decoder, &remote, &tokens(9, 200)).await;
    });
}
