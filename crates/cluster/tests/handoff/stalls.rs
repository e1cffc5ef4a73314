//! A decoder that takes nothing for a while, and a producer whose memory others want meanwhile.

use std::time::Duration;

use muser_cluster::handoff::{BringError, HandoffError};
use muser_engine::EngineSettings;
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_wire::RefuseCode;

use crate::models::{fat_file, tokens};
use crate::proxy::{Proxy, Towards};
use crate::world::{
    Cluster, Machine, Producing, answer, answer_remotely, machine_with, nothing_is_left, request, run, wait_until,
};

/// Rows of the prompt: 56 MiB of pages in f16, more than waits in all buffers between two machines.
const ROWS: usize = 448;

/// An engine that has room for one such prompt and one of the others, and keeps one of those.
fn narrow(settings: &mut EngineSettings) {
    (settings.budget_bytes, settings.prefix_bytes_max) = (100 << 20, 34 << 20);
}

fn roomy(settings: &mut EngineSettings) {
    (settings.budget_bytes, settings.prefix_bytes_max, settings.installed_bytes_max) = (70 << 20, 0, 60 << 20);
}

/// Has the producer compute other prompts until none of the pages it had before is kept.
async fn fill_memory(producing: &Producing) {
    for seed in 50..52 {
        let other = producing.machine.host.submit(request(&tokens(seed, 180), 1, PrefixReuse::Share)).await.unwrap();
        answer(other).await;
    }
}

async fn local(decoder: &Machine, prompt: &[u32]) -> Vec<(u32, Vec<u64>)> {
    answer(decoder.host.submit(request(prompt, 6, PrefixReuse::Isolate)).await.unwrap()).await.1
}

/// All that the engine holds is kept prefixes: no handoff keeps a page.
async fn holds_only_prefixes(producing: &Producing) {
    let host = producing.machine.host.clone();
    wait_until("the producer has given the handoff up", || producing.producer.busy() == 0).await;
    answer(host.submit(request(&[3], 1, PrefixReuse::Isolate)).await.unwrap()).await;
    let status = host.status();
    assert_eq!(status.memory.live_bytes, status.prefix_bytes);
}

#[test]
fn a_decoder_that_takes_its_time_gets_the_right_rows_although_others_took_the_memory() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine_with(fat_file(), KvLayout::F16, narrow), None).await;
        let proxy = Proxy::start(producing.address).await;
        let decoder = machine_with(fat_file(), KvLayout::F16, roomy);
        let remote = cluster.remote("decoder", &decoder, proxy.address, &cluster.keys);
        let prompt = tokens(1, ROWS + 1);
        proxy.hold_after(3 << 20);
        let meanwhile = async {
            wait_until("the wire holds", || proxy.passed(Towards::Decoder) >= 3 << 20).await;
            fill_memory(&producing).await;
            let passed = proxy.passed(Towards::Decoder);
            proxy.resume();
            passed
        };
        let (brought, passed) =
            tokio::join!(answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate), meanwhile);
        assert!(passed < 8 << 20, "{passed} bytes had gone already");
        let (handoff, _, found) = brought.unwrap();
        assert_eq!(handoff.stats.payload_bytes, 56 << 20);
        assert!(found == local(&decoder, &prompt).await, "rows of others");
        holds_only_prefixes(&producing).await;
    });
}

#[test]
fn a_decoder_that_takes_nothing_for_longer_than_the_limit_is_given_up_and_told_so() {
    run(async {
        let cluster = Cluster::new();
        let machine = machine_with(fat_file(), KvLayout::F16, narrow);
        let limit = Duration::from_millis(700);
        let producing = cluster.produce_with_limit("producer", machine, None, limit).await;
        let proxy = Proxy::start(producing.address).await;
        let decoder = machine_with(fat_file(), KvLayout::F16, roomy);
        let remote = cluster.remote("decoder", &decoder, proxy.address, &cluster.keys);
        let prompt = tokens(1, ROWS + 1);
        proxy.hold_after(3 << 20);
        let meanwhile = async {
            wait_until("the wire holds", || proxy.passed(Towards::Decoder) >= 3 << 20).await;
            fill_memory(&producing).await;
            holds_only_prefixes(&producing).await;
            proxy.resume();
        };
        let (failed, ()) = tokio::join!(answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate), meanwhile);
        let failed = failed.map(|(handoff, ..)| handoff).expect_err("the producer had given it up");
        let told = match &failed {
            BringError::Handoff(HandoffError::Refused(refuse)) => refuse.code == RefuseCode::Stalled,
            // The word may have been lost with the connection.
            BringError::Closed | BringError::Io(_) => true,
            _ => false,
        };
        assert!(told, "{failed:?}");
        nothing_is_left(&decoder).await;
        let again = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.unwrap();
        assert!(again.2 == local(&decoder, &prompt).await, "rows of others");
    });
}
