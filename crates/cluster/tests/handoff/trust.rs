//! Keys and deny-lists that change while both ends run.

use std::fs;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use muser_cluster::handoff::{BringError, Handoff, HandoffError, ProducerNews, Remote};
use muser_engine::engine::{Job, PrefixReuse};
use muser_host::Refused;
use muser_kernels::attention::KvLayout;
use muser_lane::pacing::PacedBy;
use muser_lane::{LaneError, PeerRefusal, Refusal};
use muser_trust::identity::{ClusterFolder, Revoked};
use muser_trust::judgement::TrustError;
use muser_trust::keys::{KeyFileError, KeyRing};
use muser_trust::quarantine::Quarantined;
use muser_wire::RefuseCode;

use crate::world::{
    Cluster, Machine, Producing, answer, answer_remotely, clock, generate, machine, random_tokens, request, run,
    wait_until,
};

/// A producer and a decoder, with their folders.
struct Pair {
    cluster: Cluster,
    producing: Producing,
    decoder: Machine,
    remote: Remote,
}

impl Pair {
    async fn new() -> Self {
        Self::with_pace(None).await
    }

    async fn with_pace(bytes_per_s: Option<u64>) -> Self {
        let mut cluster = Cluster::new();
        cluster.pace = bytes_per_s.and_then(NonZeroU64::new).map(|rate| (rate, PacedBy::Bucket));
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        Self { cluster, producing, decoder, remote }
    }

    fn folder(&self, name: &str) -> ClusterFolder {
        self.cluster.folder(name)
    }

    async fn bring(&self) -> Result<Handoff, BringError> {
        let prompt = random_tokens(1, 200);
        answer_remotely(&self.decoder, &self.remote, &prompt, PrefixReuse::Isolate).await.map(|(handoff, ..)| handoff)
    }

    /// The refusal code that the decoder receives from the producer.
    async fn refused(&self) -> RefuseCode {
        match self.bring().await {
            Err(BringError::Handoff(HandoffError::Refused(refuse))) => refuse.code,
            other => panic!("{:?}", other.map(|handoff| handoff.stats)),
        }
    }

    /// The trust error that the producer reports.
    async fn told(&mut self) -> TrustError {
        loop {
            match self.producing.news.recv().await {
                Some(ProducerNews::Untrusted(error)) => return error,
                Some(ProducerNews::Sent(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn rotated_and_revoked_keys_count_from_the_next_handoff_on() {
    run(async {
        let pair = Pair::new().await;
        let (producer, decoder) = (pair.folder("producer"), pair.folder("decoder"));
        pair.bring().await.unwrap();
        let mut keys = decoder.load_keys().unwrap();
        assert_eq!(keys.rotate(clock()()).unwrap(), 2);
        decoder.save_keys(&keys).unwrap();
        assert_eq!(pair.refused().await, RefuseCode::UnknownKey);
        producer.save_keys(&keys).unwrap();
        pair.bring().await.unwrap();
        // The decoder uses the new key: without the old one all goes on.
        keys.revoke(1).unwrap();
        producer.save_keys(&keys).unwrap();
        pair.bring().await.unwrap();
        keys.revoke(2).unwrap();
        producer.save_keys(&keys).unwrap();
        assert_eq!(pair.refused().await, RefuseCode::RevokedKey);
        decoder.save_keys(&keys).unwrap();
        assert!(matches!(pair.bring().await, Err(BringError::NoKey)));
    });
}

#[test]
fn a_key_that_was_carried_first_is_activated_on_either_end_without_a_refusal() {
    run(async {
        for first in ["producer", "decoder"] {
            let pair = Pair::new().await;
            for name in ["producer", "decoder"] {
                let mut keys = pair.cluster.keys.to_text().replace("count = 1", "count = 2");
                keys.push_str(&format!(
                    "[[key]]\nid = 2\nstate = \"next\"\ncreated_unix_s = 1\nkey = \"{}\"\n",
                    "ab".repeat(32)
                ));
                pair.folder(name).save_keys(&KeyRing::from_text(&keys).unwrap()).unwrap();
                pair.bring().await.unwrap();
            }
            let second = if first == "producer" { "decoder" } else { "producer" };
            for name in [first, second] {
                let activating = |keys: &mut KeyRing| {
                    keys.activate(2).unwrap();
                    Ok::<_, KeyFileError>(())
                };
                pair.folder(name).change_keys(activating).unwrap();
                pair.bring().await.unwrap();
            }
        }
    });
}

#[test]
fn a_key_that_is_revoked_during_a_handoff_ends_it_at_either_end() {
    run(async {
        for name in ["producer", "decoder"] {
            // The pages take most of a second.
            let pair = Pair::with_pace(Some(1_500_000)).await;
            let mut keys = pair.folder(name).load_keys().unwrap();
            keys.revoke(1).unwrap();
            let revoking = async {
                wait_until("the handoff is under way", || pair.producing.producer.busy() == 1).await;
                pair.folder(name).save_keys(&keys).unwrap();
            };
            let (failed, ()) = tokio::join!(pair.bring(), revoking);
            let failed = failed.map(|handoff| handoff.stats).unwrap_err();
            let refused = matches!(&failed, BringError::Handoff(HandoffError::Refused(refuse)) if refuse.code == RefuseCode::RevokedKey);
            assert!(refused || name == "decoder", "{failed:?}");
            assert!(failed.to_string().contains("key 1 is revoked"), "{failed}");
        }
    });
}

#[test]
fn keys_that_cannot_be_read_stop_handoffs_until_they_can() {
    run(async {
        let mut pair = Pair::new().await;
        pair.bring().await.unwrap();
        for name in ["producer", "decoder"] {
            let path = pair.folder(name).keys();
            let intact = fs::read(&path).unwrap();
            let damages: [&dyn Fn(); 3] = [
                &|| fs::write(&path, "[[key]]\nid = 1\n").unwrap(),
                &|| fs::write(&path, [0xFF; 100]).unwrap(),
                &|| fs::remove_file(&path).unwrap(),
            ];
            for damage in damages {
                damage();
                // Also for a second time: what failed to be read is not taken for known.
                for _ in 0..2 {
                    if name == "producer" {
                        assert_eq!(pair.refused().await, RefuseCode::Internal);
                        let told = pair.told().await;
                        assert!(matches!(told, TrustError::Keys { .. }), "{told}");
                        assert!(told.to_string().contains("keys.toml"), "{told}");
                    } else {
                        let failed = pair.bring().await.unwrap_err();
                        assert!(matches!(failed, BringError::Trust(TrustError::Keys { .. })), "{failed}");
                    }
                }
                pair.folder(name).save_keys(&pair.cluster.keys).unwrap();
                assert_eq!(fs::read(&path).unwrap(), intact);
                pair.bring().await.unwrap();
            }
        }
    });
}

#[test]
fn a_node_that_is_revoked_while_its_lane_is_open_takes_no_more_part() {
    run(async {
        let mut pair = Pair::new().await;
        pair.bring().await.unwrap();
        let of = |name: &str| pair.folder(name).load_identity().unwrap().facts().id;
        let id = of("decoder");
        let list = pair.folder("producer").load_revocations().unwrap();
        list.revoke(Revoked::Node(id), clock()()).unwrap();
        // Its lane is closed, and another one is refused with the reason.
        let failed = pair.bring().await.unwrap_err();
        let refused = matches!(failed, BringError::Lane(LaneError::RefusedByPeer(PeerRefusal::Revoked)));
        assert!(refused, "{failed:?}");
        let told = pair.told().await;
        assert!(matches!(told, TrustError::Revoked { id: told, .. } if told == id), "{told}");

        let pair = Pair::new().await;
        pair.bring().await.unwrap();
        let id = pair.folder("producer").load_identity().unwrap().facts().id;
        let list = pair.folder("decoder").load_revocations().unwrap();
        list.revoke(Revoked::Node(id), clock()()).unwrap();
        let failed = pair.bring().await.unwrap_err();
        assert!(matches!(failed, BringError::Trust(TrustError::Revoked { .. })), "{failed:?}");
        let failed = pair.bring().await.unwrap_err();
        let refused = matches!(failed, BringError::Lane(LaneError::Refused(Refusal::Revoked { .. })));
        assert!(refused, "{failed:?}");
        // A list that is gone admits nobody either.
        fs::remove_file(pair.folder("decoder").path().join("revoked.toml")).unwrap();
        assert!(pair.bring().await.is_err());
    });
}

/// Change that ends the trust in a producer, in the decoder's folder or by the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Quarantine,
    Revocation,
    Key,
    Expiry,
}

impl Change {
    const ALL: [Self; 4] = [Self::Quarantine, Self::Revocation, Self::Key, Self::Expiry];

    /// Makes the change as another process would.
    fn make(self, pair: &Pair) {
        let id = pair.folder("producer").load_identity().unwrap().facts().id;
        let folder = pair.folder("decoder");
        match self {
            Self::Quarantine => {
                let entry = Quarantined {
                    node: id,
                    since_unix_s: 1,
                    model: [0; 32],
                    layer: 0,
                    position: 0,
                    found: "it".into(),
                };
                folder.load_quarantine().unwrap().add(entry).unwrap();
            }
            Self::Revocation => folder.load_revocations().unwrap().revoke(Revoked::Node(id), clock()()).unwrap(),
            Self::Key => {
                let mut keys = folder.load_keys().unwrap();
                keys.revoke(1).unwrap();
                folder.save_keys(&keys).unwrap();
            }
            Self::Expiry => pair.cluster.ahead_s.store(2 * 3600, Ordering::SeqCst),
        }
    }

    fn is_told_by(self, words: &str) -> bool {
        words.contains(match self {
            Self::Quarantine => "is quarantined",
            Self::Revocation => "is revoked",
            Self::Key => "key 1 is revoked",
            Self::Expiry => "is valid from",
        })
    }
}

impl Pair {
    /// One whose decoder looks at its quarantine.
    async fn guarded(bytes_per_s: Option<u64>) -> Self {
        let pair = Self::with_pace(bytes_per_s).await;
        let quarantine = Arc::new(pair.folder("decoder").load_quarantine().unwrap());
        Self { remote: pair.remote.with_quarantine(quarantine), ..pair }
    }
}

#[test]
fn trust_that_is_lost_while_pages_come_makes_them_void() {
    run(async {
        for change in Change::ALL {
            // The pages take most of a second.
            let pair = Pair::guarded(Some(1_500_000)).await;
            let changing = async {
                wait_until("the handoff is under way", || pair.producing.producer.busy() == 1).await;
                change.make(&pair);
            };
            let (failed, ()) = tokio::join!(pair.bring(), changing);
            let failed = failed.map(|handoff| handoff.stats).unwrap_err().to_string();
            // The producer may notice an expiry first.
            assert!(change.is_told_by(&failed) || change == Change::Expiry, "{change:?}: {failed}");
        }
    });
}

#[test]
fn trust_that_is_lost_after_pages_came_keeps_the_engine_from_using_them() {
    run(async {
        for change in Change::ALL {
            let pair = Pair::guarded(None).await;
            let prompt = random_tokens(1, 200);
            let host = &pair.decoder.host;
            let mut installation = host.begin_installation(prompt.clone(), PrefixReuse::Share).await.unwrap();
            pair.remote.bring(&mut installation).await.unwrap();
            let installed = installation.finish().unwrap();
            change.make(&pair);
            let job = Job::generate_from(installed, prompt[199], generate(2));
            let refused = host.submit(job).await.unwrap_err();
            assert!(matches!(&refused, Refused::Untrusted(_)) && change.is_told_by(&refused.to_string()), "{refused}");
            // Nothing of them is there for others.
            let again = host.submit(request(&prompt, 2, PrefixReuse::Share)).await.unwrap();
            assert_eq!(answer(again).await.0, 0, "{change:?}");
        }
    });
}

#[test]
fn a_certificate_that_ends_takes_its_open_lanes_with_it() {
    run(async {
        let pair = Pair::new().await;
        pair.bring().await.unwrap();
        Change::Expiry.make(&pair);
        // The lane that was kept is not used, and there is no other.
        let failed = pair.bring().await.unwrap_err();
        assert!(matches!(failed, BringError::Lane(_)), "{failed:?}");
    });
}

#[test]
fn kept_pages_of_a_revoked_or_quarantined_node_are_taken_back_and_those_of_an_expired_certificate_or_key_stay() {
    run(async {
        for change in Change::ALL {
            let pair = Pair::guarded(None).await;
            let (prompt, host) = (random_tokens(1, 200), &pair.decoder.host);
            answer_remotely(&pair.decoder, &pair.remote, &prompt, PrefixReuse::Share).await.unwrap();
            let reused = async || answer(host.submit(request(&prompt, 2, PrefixReuse::Share)).await.unwrap()).await.0;
            pair.remote.take_back_lost(host).await;
            assert_eq!(reused().await, 192, "{change:?}, before");
            change.make(&pair);
            pair.remote.take_back_lost(host).await;
            let stays = matches!(change, Change::Key | Change::Expiry);
            assert_eq!(reused().await, if stays { 192 } else { 0 }, "{change:?}");
            // What was computed here since stays.
            pair.remote.take_back_lost(host).await;
            assert_eq!(reused().await, 192, "{change:?}, afterwards");
        }
    });
}
