//! Refused enrolments: the errors at both ends, and no trace of the node left behind.

use muser_cluster::enrol::{EnrolError, Enrolled, IssuerSettings, PendingState, Progress, pending, take_back};
use muser_enrol::{Difference, RedeemError, RefuseCode, Ticket};
use muser_kernels::attention::KvLayout;
use muser_model::Component;
use muser_trust::identity::{ClusterFolder, Revoked, Roles};

use crate::handoff_world::{clock, run};
use crate::world::{Begun, Heard, Offset, SECOND, applicant, apply, damaged_engine, engine, settings};

/// A ticket for the same place with another secret.
fn forged(ticket: &Ticket) -> Ticket {
    Ticket::issue(ticket.cluster_id, &ticket.address, clock()(), 600).unwrap().0
}

fn code(result: Result<(ClusterFolder, Enrolled), EnrolError>) -> (RefuseCode, String) {
    match result {
        Err(EnrolError::RefusedByPeer { code, detail }) => (code, detail),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wrong_secret_is_refused_and_leaves_the_ticket_to_its_holder_who_alone_gets_in() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let heard = Heard::default();
        let tell = |progress: Progress<'_>| heard.tell(progress);
        let applying = async {
            let wrong = code(apply(&begun, &machine, "a", &forged(&ticket)).await);
            assert_eq!(wrong, (RefuseCode::WrongTicket, RedeemError::Wrong.to_string()));
            // Two at once with the right one.
            tokio::join!(apply(&begun, &machine, "b", &ticket), apply(&begun, &machine, "c", &ticket))
        };
        let (issued, (b, c)) = tokio::join!(issuer.enrol(kept, &tell), applying);
        let (in_, out) = if b.is_ok() { (b, c) } else { (c, b) };
        assert_eq!(issued.unwrap().node, in_.unwrap().1.node);
        assert_eq!(code(out), (RefuseCode::UsedTicket, RedeemError::Used.to_string()));
        assert_eq!(heard.0.lock().unwrap()[0], format!("refused: {}", RedeemError::Wrong));
        assert_eq!(begun.revoked(), 0);
    });
}

#[test]
fn an_enrolment_ends_when_nobody_comes() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let short = IssuerSettings { ticket_lifetime_s: 1, ..settings(Roles::Producer) };
        let issuer = begun.issuer(&machine, short).await;
        let (_, kept) = issuer.ticket("127.0.0.1:1").unwrap();
        assert!(matches!(issuer.enrol(kept, &|_| ()).await, Err(EnrolError::NobodyCame)));
    });
}

#[test]
fn an_expired_ticket_is_refused_to_its_holder() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let ahead = Offset::default();
        let issuer = begun.issuer(&machine, IssuerSettings { clock: ahead.clock(), ..settings(Roles::Producer) }).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let applying = async {
            // While the issuer waits by its own clock.
            tokio::time::sleep(SECOND / 10).await;
            ahead.add(700);
            code(apply(&begun, &machine, "a", &ticket).await)
        };
        let (issued, refused) = tokio::join!(issuer.enrol(kept, &|_| ()), applying);
        assert!(matches!(issued, Err(EnrolError::Redeem(RedeemError::Expired { .. }))), "{issued:?}");
        assert_eq!(refused.0, RefuseCode::ExpiredTicket);
    });
}

#[test]
fn another_model_another_layout_and_the_name_of_the_issuer_are_refused_by_name_before_anything_is_signed() {
    run(async {
        let (ours, theirs) = (engine(KvLayout::Q8), engine(KvLayout::F16));
        let begun = Begun::new();
        for (machine, name, message) in [(&theirs, "gpu-box", "KV layout"), (&ours, "desk", "wants to be called desk")]
        {
            let issuer = begun.issuer(&ours, settings(Roles::Producer)).await;
            let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
            let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), apply(&begun, machine, name, &ticket));
            let (issued, (code, detail)) = (issued.unwrap_err(), code(applied));
            assert!(issued.to_string() == detail && detail.contains(message), "{issued} / {detail}");
            match (issued, code) {
                (EnrolError::OtherModel(Component::KvLayout), RefuseCode::OtherModel) => {}
                (EnrolError::SameName { .. }, RefuseCode::BadName) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(begun.revoked(), 0);
    });
}

#[test]
fn a_producer_with_other_bits_is_found_out_by_layer_and_position_and_is_granted_nothing() {
    run(async {
        let (ours, theirs) = (engine(KvLayout::Q8), damaged_engine(KvLayout::Q8));
        let begun = Begun::new();
        // Whoever decodes finds out, and tells the other.
        for (roles, name) in [(Roles::Producer, "gpu-box"), (Roles::Decoder, "laptop")] {
            let issuer = begun.issuer(&ours, settings(roles)).await;
            let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
            let folder = ClusterFolder::new(begun.at(name));
            let keep = |_: &Enrolled| panic!("a folder to keep");
            let applying = async { applicant(&folder, &theirs, name).await.apply(&ticket, &|_| (), keep).await };
            let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), applying);
            for found in [issued.unwrap_err(), applied.unwrap_err()] {
                // The layer's keys come of its own weights, those of later layers of all before.
                let first = matches!(found, EnrolError::OtherBits(Difference::Page { layer: 1, position: 0..64 }));
                assert!(first, "{name}: {found}");
            }
            assert!(folder.load_identity().is_err() && folder.load_keys().is_err(), "{name}");
            assert_eq!((begun.revoked(), begun.left().len()), (0, 0), "{name}");
        }
    });
}

#[test]
fn a_node_that_cannot_keep_its_folder_is_not_a_member() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let folder = ClusterFolder::new(begun.at("gpu-box"));
        let keep = |_: &Enrolled| Err("the disk is full".into());
        let applying = async { applicant(&folder, &machine, "gpu-box").await.apply(&ticket, &|_| (), keep).await };
        let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), applying);
        assert!(matches!(applied, Err(EnrolError::Keep(reason)) if reason == "the disk is full"));
        let issued = issued.unwrap_err();
        assert!(issued.to_string().contains("the disk is full"), "{issued}");
        let facts = folder.load_identity().unwrap().facts().clone();
        assert!(begun.folder.load_revocations().unwrap().revokes(&facts).unwrap().is_some());
    });
}

#[test]
fn whoever_is_tested_and_leaves_has_nothing_of_the_cluster() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let tested = tokio::sync::Notify::new();
        let tell = |progress: Progress<'_>| {
            if matches!(progress, Progress::LetIn(_)) {
                tested.notify_one();
            }
        };
        let giving_up = async {
            tokio::select! {
                ended = issuer.enrol(kept, &tell) => panic!("{ended:?}"),
                () = tested.notified() => {}
            }
        };
        let ((), applied) = tokio::join!(giving_up, apply(&begun, &machine, "gpu-box", &ticket));
        assert!(matches!(applied, Err(EnrolError::Closed | EnrolError::Io(_))), "{applied:?}");
        let folder = ClusterFolder::new(begun.at("of-gpu-box"));
        assert!(folder.load_identity().is_err() && folder.load_keys().is_err());
        assert_eq!((begun.revoked(), begun.left().len()), (0, 0));
    });
}

#[test]
fn what_is_granted_is_on_record_before_it_is_sent_and_is_taken_back_if_its_enrolment_is_killed() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let folder = ClusterFolder::new(begun.at("gpu-box"));
        let copy = begun.at("copy");
        // The new node has its certificate and has not confirmed it. A copy of what is on the disk is what kill -9 leaves.
        let keep = |enrolled: &Enrolled| {
            let [found] = &pending(&begun.folder).unwrap()[..] else { panic!("one that is pending") };
            assert_eq!((found.serial, found.state), (enrolled.node.serial, PendingState::UnderWay));
            assert!(take_back(&begun.folder, 1).unwrap().is_empty());
            let [left] = &begun.left()[..] else { panic!("one folder") };
            std::fs::create_dir(&copy).unwrap();
            std::fs::copy(begun.folder.path().join(left).join("granted.toml"), copy.join("granted.toml")).unwrap();
            Err("it is gone".into())
        };
        let applying = async { applicant(&folder, &machine, "gpu-box").await.apply(&ticket, &|_| (), keep).await };
        let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), applying);
        assert!(issued.is_err() && applied.is_err());
        let facts = folder.load_identity().unwrap().facts().clone();
        let list = begun.folder.load_revocations().unwrap();
        assert_eq!(list.revokes(&facts).unwrap(), Some(Revoked::Serial(facts.serial)));
        assert_eq!((begun.revoked(), begun.left().len()), (1, 0));

        begun.folder.put_revocations(&other_list(&begun), 5).unwrap();
        std::fs::rename(&copy, begun.folder.path().join("enrolment-0123456789abcdef")).unwrap();
        let [found] = &pending(&begun.folder).unwrap()[..] else { panic!("one that is pending") };
        assert_eq!((found.serial, found.node, found.state), (facts.serial, facts.id, PendingState::Abandoned));
        assert_eq!(begun.revoked(), 0);
        let taken = take_back(&begun.folder, 7).unwrap();
        assert!(taken.len() == 1 && taken[0].name == "gpu-box", "{taken:?}");
        assert_eq!(begun.folder.load_revocations().unwrap().list().unwrap(), [(Revoked::Serial(facts.serial), 7)]);
        assert!(begun.left().is_empty() && pending(&begun.folder).unwrap().is_empty());
    });
}

/// A deny-list of another machine, with nothing on it.
fn other_list(begun: &Begun) -> std::path::PathBuf {
    let path = begun.at("other.toml");
    std::fs::write(&path, "version = 2\ncount = 0\nshortened_unix_s = 0\n").unwrap();
    path
}
