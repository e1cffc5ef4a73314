//! Audits over the wire: the window before a range comes in a handoff of its own, and the quarantined are not asked.

use std::sync::Arc;

use muser_cluster::handoff::BringError;
use muser_engine::engine::{Installed, PrefixReuse, Verdict};
use muser_kernels::attention::KvLayout;
use muser_kv::PageSet;
use muser_trust::identity::Roles;
use muser_trust::quarantine::Quarantined;

use crate::world::{Cluster, Machine, clock, machine, random_tokens, run};

/// The window of the local layers here is 256 positions: four or five pages.
const TOKENS: usize = 1500;

async fn bring(
    decoder: &Machine,
    remote: &muser_cluster::handoff::Remote,
    prompt: Vec<u32>,
) -> Result<Installed, BringError> {
    let mut installation = decoder.host.begin_installation(prompt, PrefixReuse::Share).await.unwrap();
    remote.bring(&mut installation).await?;
    Ok(installation.finish().unwrap())
}

#[test]
fn every_range_of_an_honest_handoff_passes_with_the_window_that_comes_again() {
    run(async {
        for kv in [KvLayout::Q8, KvLayout::F16] {
            let cluster = Cluster::new();
            let (decoder, producing) = (machine(kv), cluster.produce("producer", machine(kv), None).await);
            let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
            let installed = bring(&decoder, &remote, random_tokens(71, TOKENS)).await.unwrap();
            let mut again = 0;
            for page in installed.received_pages() {
                let mut base = installed.beginning(page);
                if base.first_lacking().is_some() {
                    let mut installation = decoder.host.begin_base(base.clone()).await.unwrap();
                    let handoff = remote.bring(&mut installation).await.unwrap();
                    let spec = installation.spec();
                    let window = |layer| spec.pages_at(layer, page * 64, PageSet::Window);
                    let local = (0..spec.layers().len()).find(|layer| spec.layers()[*layer].window.is_some()).unwrap();
                    assert_eq!(handoff.stats.pages, (window(local).len() * spec.layers().len()) as u64);
                    base = base.completed_by(&installation.finish().unwrap());
                    again += 1;
                }
                let audit = installed.audit(base, page..page + 1).unwrap();
                let tokens = audit.tokens();
                match decoder.host.audit(audit).await.unwrap() {
                    Verdict::Same { tokens: computed, .. } => assert_eq!(computed, tokens),
                    found => panic!("{kv:?}, page {page}: {found:?}"),
                }
            }
            assert!(again > 10, "{again}");
        }
    });
}

#[test]
fn who_is_quarantined_is_not_asked_by_an_old_lane_or_by_a_new_one() {
    run(async {
        let cluster = Cluster::new();
        let (decoder, producing) =
            (machine(KvLayout::Q8), cluster.produce("producer", machine(KvLayout::Q8), None).await);
        let (folder, _) = cluster.node("list", Roles::Decoder, &cluster.keys);
        let quarantine = Arc::new(folder.load_quarantine().unwrap());
        let remote = |name: &str| {
            let remote = cluster.remote(name, &decoder, producing.address, &cluster.keys);
            remote.with_quarantine(Arc::clone(&quarantine))
        };
        let known = remote("known");
        let mut installation =
            decoder.host.begin_installation(random_tokens(72, 200), PrefixReuse::Isolate).await.unwrap();
        let node = known.bring(&mut installation).await.unwrap().node;
        let found = "layer 0, position 0".to_owned();
        let (since_unix_s, model) = (1, [0; 32]);
        quarantine.add(Quarantined { node, since_unix_s, model, layer: 0, position: 0, found }).unwrap();
        for (remote, seed) in [(&known, 73), (&remote("new"), 74)] {
            let refused = bring(&decoder, remote, random_tokens(seed, 200)).await.unwrap_err();
            assert!(matches!(refused, BringError::Quarantined(found) if found == node), "{refused}");
        }
        assert!(quarantine.readmit(node, clock()()).unwrap());
        bring(&decoder, &known, random_tokens(75, 200)).await.unwrap();
    });
}
