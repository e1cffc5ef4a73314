//! Handoffs keep the rate that they were given, and their accounts say so.

use std::num::NonZeroU64;

use muser_cluster::handoff::{HandoffReport, ProducerNews};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_lane::pacing::PacedBy;

use crate::world::{Cluster, Producing, answer_remotely, machine, random_tokens, run};

const BYTES_PER_S: u64 = 4_000_000;

async fn report(producing: &mut Producing) -> HandoffReport {
    match producing.news.recv().await {
        Some(ProducerNews::Sent(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handoff_takes_as_long_as_its_pace_asks_by_the_kernel_and_by_the_bucket() {
    run(async {
        for by in [PacedBy::Kernel, PacedBy::Bucket] {
            let mut cluster = Cluster::new();
            cluster.pace = Some((NonZeroU64::new(BYTES_PER_S).unwrap(), by));
            let mut producing = cluster.produce("producer", machine(KvLayout::F16), None).await;
            let decoder = machine(KvLayout::F16);
            let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
            let prompt = random_tokens(1, 1900);
            let (handoff, ..) = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.unwrap();
            let report = report(&mut producing).await;
            let ideal_s = report.sent.stored_bytes as f64 / BYTES_PER_S as f64;
            assert!(ideal_s > 0.5, "{report}: too little for this to show anything");
            let told_s = handoff.stats.times.send_wall_us as f64 / 1e6;
            assert!(told_s > 0.8 * ideal_s, "{by:?}: {told_s} s of {ideal_s} s: {report}");
            assert!(handoff.elapsed.as_secs_f64() > 0.8 * ideal_s, "{by:?}: {report}");
            assert_eq!((report.sent.stored_bytes, report.times), (handoff.stats.stored_bytes, handoff.stats.times));
            let part = report.part_of_pace().unwrap();
            assert!((0.5..1.25).contains(&part), "{by:?}: {report}");
            assert_eq!((report.decoder.as_str(), report.sent.rows), ("decoder", 1899));
        }
    });
}
