//! Successful enrolments, in every distribution of roles.

use std::sync::Arc;

use muser_cluster::enrol::{Enrolled, Progress};
use muser_enrol::Rates;
use muser_kernels::attention::KvLayout;
use muser_lane::{Acceptor, Connector, LaneError, LaneSettings, PeerRefusal, Refusal, Wanted};
use muser_trust::identity::{ClusterFolder, Revoked, Role, Roles};

use crate::handoff_world::{clock, run};
use crate::world::{Begun, Heard, SECOND, apply, engine, settings};

#[test]
fn the_new_node_has_its_own_key_and_the_bits_and_rates_were_compared_in_each_direction() {
    run(async {
        let (ours, theirs) = (engine(KvLayout::Q8), engine(KvLayout::Q8));
        let begun = Begun::new();
        for (name, roles) in [("gpu-box", Roles::Producer), ("laptop", Roles::Decoder), ("tower", Roles::Both)] {
            let issuer = begun.issuer(&ours, settings(roles)).await;
            let address = issuer.address().unwrap();
            let (ticket, kept) = issuer.ticket(&address.to_string()).unwrap();
            let heard = Heard::default();
            let tell = |progress: Progress<'_>| heard.tell(progress);
            let (issued, applied) = tokio::join!(issuer.enrol(kept, &tell), apply(&begun, &theirs, name, &ticket));
            let (issued, (folder, applied)) = (issued.unwrap(), applied.unwrap());

            assert_eq!(issued.producer.is_some(), roles.contain(Role::Producer), "{name}");
            assert_eq!(applied.producer, Some(address).filter(|_| roles.contain(Role::Decoder)), "{name}");
            assert_eq!(Enrolled { producer: applied.producer, ..issued.clone() }, applied, "{name}");
            assert_eq!((issued.node.name.as_str(), issued.node.roles), (name, roles));
            assert_eq!(issued.by_node.is_some(), roles.contain(Role::Producer), "{name}");
            assert_eq!(issued.by_issuer.is_some(), roles.contain(Role::Decoder), "{name}");
            for qualification in issued.by_node.iter().chain(&issued.by_issuer) {
                assert_eq!((qualification.rows, qualification.difference), (199, None));
                assert!(qualification.pages > 0 && qualification.payload_bytes > 100_000, "{qualification:?}");
            }
            assert!(Rates::of(&issued.link.to_producer).is_some() && Rates::of(&issued.link.to_decoder).is_some());
            let mut said = vec![format!("let in {name}"), "tested, with a link: true".into()];
            if roles == Roles::Both {
                said.push("tested, with a link: false".into());
            }
            said.push(format!("granting {name}"));
            assert_eq!(*heard.0.lock().unwrap(), said);

            let identity = folder.load_identity().unwrap();
            assert_eq!(identity.facts(), &issued.node);
            assert_eq!(identity.cluster_id(), begun.folder.load_identity().unwrap().cluster_id());
            assert_eq!(*folder.load_keys().unwrap().to_text(), *begun.folder.load_keys().unwrap().to_text());
            let mut files: Vec<_> =
                std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            files.sort();
            assert_eq!(files, [".lock", "ca.pem", "keys.toml", "node.key", "node.pem", "revoked.toml"]);
            assert_eq!((begun.revoked(), begun.left().len()), (0, 0));
        }
    });
}

#[test]
fn a_node_that_was_enrolled_and_is_revoked_gets_no_lane_and_hears_why() {
    run(async {
        let (ours, theirs) = (engine(KvLayout::Q8), engine(KvLayout::Q8));
        let begun = Begun::new();
        let issuer = begun.issuer(&ours, settings(Roles::Decoder)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), apply(&begun, &theirs, "laptop", &ticket));
        let (node, (folder, _)) = (issued.unwrap().node, applied.unwrap());

        let lanes = |folder: &ClusterFolder| LaneSettings {
            revocations: Arc::new(folder.load_revocations().unwrap()),
            handshake_timeout: 20 * SECOND,
            clock: clock(),
        };
        let wanted = |role| Wanted { role, id: None };
        let own = begun.folder.load_identity().unwrap();
        let acceptor = Acceptor::new(&own, lanes(&begun.folder), wanted(Role::Decoder)).unwrap();
        let connector = Connector::new(&folder.load_identity().unwrap(), lanes(&folder)).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let meet = async || {
            let accepting = async { acceptor.accept(listener.accept().await.unwrap().0).await };
            tokio::join!(connector.connect(address, wanted(Role::Producer)), accepting)
        };
        let (connected, accepted) = meet().await;
        assert!(connected.is_ok() && accepted.is_ok());
        begun.folder.load_revocations().unwrap().revoke(Revoked::Node(node.id), clock()()).unwrap();
        let (connected, accepted) = meet().await;
        let found = accepted.unwrap_err();
        assert!(matches!(&found, LaneError::Refused(Refusal::Revoked { id, .. }) if *id == node.id), "{found}");
        assert!(matches!(connected, Err(LaneError::RefusedByPeer(PeerRefusal::Revoked))));
    });
}
