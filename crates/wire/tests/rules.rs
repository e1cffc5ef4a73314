//! The rules around a handoff: the ledger, refusals, cancellations on both sides, bounds, and pooled connections.

#[path = "rules/bounds.rs"]
mod bounds;
mod common;

use common::{Scene, keys, node, receiver_settings, sender_settings};
use muser_wire::{
    Cancel, CancelReason, Codecs, Component, Failure, HandoffPlan, Identity, KeyError, KeyState, Node, Receiver,
    ReceiverEvent, ReceiverSettings, RefuseCode, RequestError, SendError, Sender, SenderEvent, SenderSettings,
};

/// Both ends after the handshake.
fn greeted(scene: &Scene) -> (Receiver, Sender) {
    let mut receiver = Receiver::connect(receiver_settings(scene), 0);
    let mut sender = Sender::new(sender_settings(), 0);
    to_sender(&mut receiver, &mut sender);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Hello(_))));
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Ready(_))));
    (receiver, sender)
}

/// Both ends with an accepted handoff, whose ledger entry is recorded.
fn accepted(scene: &Scene) -> (Receiver, Sender) {
    let (mut receiver, mut sender) = greeted(scene);
    receiver.request(scene.request.clone(), 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    assert_eq!(sender.poll_event(), Some(SenderEvent::Request(scene.request.clone())));
    sender.accept(scene.acceptance(), 0).unwrap();
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Accepted(_))));
    receiver.ledger_recorded(scene.plan.clone(), 0).unwrap();
    (receiver, sender)
}

fn to_sender(receiver: &mut Receiver, sender: &mut Sender) {
    let taken = sender.take_bytes(receiver.output(), 0);
    receiver.output_sent(taken, 0);
}

/// Moves one frame.
fn to_receiver(sender: &mut Sender, receiver: &mut Receiver) {
    let taken = receiver.take_bytes(sender.output(), 0);
    sender.output_sent(taken, 0);
}

fn scene(seed: u64) -> Scene {
    Scene::random(&mut fastrand::Rng::with_seed(seed))
}

fn send_first(scene: &Scene, sender: &mut Sender) {
    let range = scene.plan.frames(0, 0..u32::MAX, sender.frame_bytes_max()).swap_remove(0);
    sender.send_pages(0, range, |layer, page| &scene.pages[&(layer, page)]).unwrap();
}

#[test]
fn no_byte_is_taken_before_the_ledger_has_the_handoff() {
    let scene = scene(1);
    let (mut receiver, mut sender) = greeted(&scene);
    receiver.request(scene.request.clone(), 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    sender.poll_event().unwrap();
    sender.accept(scene.acceptance(), 0).unwrap();
    send_first(&scene, &mut sender);
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Accepted(_))));
    assert!(!sender.output().is_empty());
    assert_eq!(receiver.take_bytes(sender.output(), 0), 0);
    assert_eq!(receiver.poll_event(), None);
    receiver.ledger_recorded(scene.plan.clone(), 0).unwrap();
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Page { .. })));
}

#[test]
fn a_connection_serves_one_handoff_after_another() {
    let mut random = fastrand::Rng::with_seed(2);
    let first = scene(2);
    let (mut receiver, mut sender) = greeted(&first);
    for round in 0..20u8 {
        let mut scene = scene(2);
        scene.request.handoff.0[0] = round;
        receiver.request(scene.request.clone(), 0).unwrap();
        to_sender(&mut receiver, &mut sender);
        sender.poll_event().unwrap();
        sender.accept(scene.acceptance(), 0).unwrap();
        to_receiver(&mut sender, &mut receiver);
        let mut seen = common::Seen::default();
        scene.serve(&mut receiver, &mut seen, 0);
        scene.send_all(&mut sender, &mut random, |sender| {
            while !sender.output().is_empty() {
                to_receiver(sender, &mut receiver);
                scene.serve(&mut receiver, &mut seen, 0);
            }
        });
        assert!(seen.complete.is_some() && seen.pages == scene.pages, "round {round}");
        receiver.installed().unwrap();
        to_sender(&mut receiver, &mut sender);
        assert_eq!(sender.poll_event(), Some(SenderEvent::Installed(scene.request.handoff)));
        assert!(receiver.is_idle() && sender.output().is_empty() && receiver.output().is_empty());
    }
}

#[test]
fn a_difference_of_identity_is_refused_by_its_name() {
    for (index, component) in Component::ALL.into_iter().enumerate() {
        let scene = scene(3);
        let mut digests = node(1).identity.0;
        digests[index][31] ^= 1;
        let other = Node { identity: Identity(digests), ..node(1) };
        let settings = ReceiverSettings { node: other, ..receiver_settings(&scene) };
        let (mut receiver, mut sender) = (Receiver::connect(settings, 0), Sender::new(sender_settings(), 0));
        to_sender(&mut receiver, &mut sender);
        assert_eq!(sender.poll_event(), Some(SenderEvent::Failed(Failure::Identity(component))));
        to_receiver(&mut sender, &mut receiver);
        let Some(ReceiverEvent::Failed(Failure::RefusedByPeer(refuse))) = receiver.poll_event() else {
            panic!("{component}: not refused");
        };
        assert_eq!((refuse.code, refuse.component()), (RefuseCode::Identity, Some(component)));
    }
}

#[test]
fn a_cancellation_by_the_receiver_drops_late_frames_and_leaves_the_connection_usable() {
    let scene = scene(4);
    let (mut receiver, mut sender) = accepted(&scene);
    send_first(&scene, &mut sender);
    sender.progress(1).unwrap();
    receiver.cancel(CancelReason::ClientGone, 0).unwrap();
    while !sender.output().is_empty() {
        to_receiver(&mut sender, &mut receiver);
        assert_eq!(receiver.poll_event(), None);
    }
    to_sender(&mut receiver, &mut sender);
    let cancelled = Cancel { handoff: scene.request.handoff, reason: CancelReason::ClientGone };
    assert_eq!(sender.poll_event(), Some(SenderEvent::Cancelled(cancelled)));
    to_receiver(&mut sender, &mut receiver);
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Cancelled(cancelled)));
    assert!(receiver.is_idle());
    receiver.request(scene.request.clone(), 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Request(_))));
}

#[test]
fn cancellations_that_cross_answer_each_other() {
    let scene = scene(4);
    let (mut receiver, mut sender) = accepted(&scene);
    receiver.cancel(CancelReason::ClientGone, 0).unwrap();
    sender.cancel(CancelReason::ShuttingDown, 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Cancelled(_))));
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Cancelled(_))));
    assert!(receiver.is_idle() && receiver.output().is_empty() && sender.output().is_empty());
}

#[test]
fn a_cancellation_that_crosses_a_refusal_is_dropped() {
    let scene = scene(4);
    let (mut receiver, mut sender) = greeted(&scene);
    receiver.request(scene.request.clone(), 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    sender.poll_event().unwrap();
    sender.refuse(RefuseCode::Busy, 250, "two under way").unwrap();
    receiver.cancel(CancelReason::Superseded, 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    assert_eq!(sender.poll_event(), None);
    to_receiver(&mut sender, &mut receiver);
    let Some(ReceiverEvent::Refused(refuse)) = receiver.poll_event() else { panic!("not refused") };
    assert_eq!((refuse.code, refuse.retry_after_ms, &*refuse.detail), (RefuseCode::Busy, 250, "two under way"));
    assert!(receiver.is_idle() && !sender.is_closed());
}

#[test]
fn a_cancellation_that_is_not_acknowledged_ends_the_connection() {
    let scene = scene(4);
    let (mut receiver, _) = accepted(&scene);
    receiver.cancel(CancelReason::ClientGone, 0).unwrap();
    receiver.tick(1000);
    assert_eq!(receiver.poll_event(), None);
    receiver.tick(1001);
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Failed(Failure::Expired { late_ms: 1 })));
}

/// A handoff completed shortly before its time was over, and the next one was requested at once. The sender looked at the
/// time before it read that, and closed the connection under both.
#[test]
fn a_handoff_that_completes_at_the_last_moment_leaves_the_connection_usable() {
    let mut scene = scene(4);
    scene.request.expires_in_ms = 500;
    let (mut receiver, mut sender) = accepted(&scene);
    let mut seen = common::Seen::default();
    scene.send_all(&mut sender, &mut fastrand::Rng::with_seed(4), |sender| {
        while !sender.output().is_empty() {
            let taken = receiver.take_bytes(sender.output(), 499);
            sender.output_sent(taken, 499);
            scene.serve(&mut receiver, &mut seen, 499);
        }
    });
    assert!(seen.complete.is_some(), "{seen:?}");
    receiver.installed().unwrap();
    receiver.request(scene.request.clone(), 499).unwrap();
    for event in [SenderEvent::Installed(scene.request.handoff), SenderEvent::Request(scene.request.clone())] {
        let taken = sender.take_bytes(receiver.output(), 501);
        receiver.output_sent(taken, 501);
        assert_eq!(sender.poll_event(), Some(event));
    }
    let (_, mut unanswered) = accepted(&scene);
    scene.send_all(&mut unanswered, &mut fastrand::Rng::with_seed(4), |sender| {
        sender.output_sent(sender.output().len(), 499);
    });
    unanswered.tick(1000);
    assert_eq!(unanswered.poll_event(), None);
    unanswered.tick(1500);
    assert_eq!(unanswered.poll_event(), Some(SenderEvent::Failed(Failure::Expired { late_ms: 500 })));
}

#[test]
fn keys_that_are_unknown_or_revoked_serve_nothing_and_old_ones_begin_nothing() {
    let scene = scene(5);
    for (keys, code) in
        [(Default::default(), RefuseCode::UnknownKey), (keys(9, KeyState::Revoked), RefuseCode::RevokedKey)]
    {
        let (mut receiver, mut sender) = greeted(&scene);
        sender.set_keys(keys);
        receiver.request(scene.request.clone(), 0).unwrap();
        to_sender(&mut receiver, &mut sender);
        assert_eq!(sender.poll_event(), None);
        to_receiver(&mut sender, &mut receiver);
        assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Refused(refuse)) if refuse.code == code));
        assert!(receiver.is_idle());
    }
    let (mut receiver, _) = greeted(&scene);
    receiver.set_keys(keys(9, KeyState::VerifyOnly));
    let refused = receiver.request(scene.request.clone(), 0);
    assert_eq!(refused, Err(RequestError::Key(KeyError::VerifyOnly(common::KEY_ID))));
}

#[test]
fn what_waits_to_be_sent_is_bounded_by_the_backlog_and_one_frame() {
    let scene = scene(8);
    let settings = SenderSettings { backlog_bytes_max: 0, ..sender_settings() };
    let mut receiver = Receiver::connect(receiver_settings(&scene), 0);
    let mut sender = Sender::new(settings, 0);
    to_sender(&mut receiver, &mut sender);
    sender.poll_event().unwrap();
    to_receiver(&mut sender, &mut receiver);
    receiver.poll_event().unwrap();
    receiver.request(scene.request.clone(), 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    sender.poll_event().unwrap();
    sender.accept(scene.acceptance(), 0).unwrap();
    to_receiver(&mut sender, &mut receiver);
    send_first(&scene, &mut sender);
    assert!(!sender.wants_more());
    let waiting = sender.output().len();
    let refused = sender.send_pages(0, 0..u32::MAX, |layer, page| &scene.pages[&(layer, page)]);
    assert_eq!(refused, Err(SendError::Backlog(waiting)));
    assert_eq!(sender.output().len(), waiting);
}

/// A connection that rested after a long handoff kept the memory of its largest frames for as long as it was open.
#[test]
fn a_connection_at_rest_gives_back_the_memory_of_its_handoff() {
    let mut scene = scene(8);
    scene.plan = HandoffPlan::new(vec![vec![0, 1]], vec![0..2; 2], 1 << 20).unwrap();
    scene.pages = [0, 1].into_iter().flat_map(|layer| [0, 1].map(|page| ((layer, page), vec![7; 1 << 20]))).collect();
    (scene.first_page, scene.request.held_pages, scene.body_bytes_max) = (0, 0, 3 << 20);
    scene.request.codecs = Codecs::NONE_ONLY;
    let (mut receiver, mut sender) = accepted(&scene);
    let (mut seen, mut most) = (common::Seen::default(), (0, 0));
    scene.send_all(&mut sender, &mut fastrand::Rng::with_seed(8), |sender| {
        while !sender.output().is_empty() {
            let taken = receiver.take_bytes(sender.output(), 0);
            most = (most.0.max(sender.buffer_bytes()), most.1.max(receiver.buffer_bytes()));
            sender.output_sent(taken, 0);
            scene.serve(&mut receiver, &mut seen, 0);
        }
    });
    assert!(seen.complete.is_some() && most.0 > 1 << 20 && most.1 > 1 << 20, "{most:?}");
    receiver.installed().unwrap();
    to_sender(&mut receiver, &mut sender);
    assert_eq!(sender.poll_event(), Some(SenderEvent::Installed(scene.request.handoff)));
    let (given, taken) = (sender.buffer_bytes(), receiver.buffer_bytes());
    assert!(given <= 128 << 10 && taken <= 128 << 10, "{given} and {taken} bytes are held");
}

#[test]
fn pings_are_answered_but_not_without_end() {
    let scene = scene(9);
    let (mut receiver, mut sender) = greeted(&scene);
    receiver.ping(77);
    to_sender(&mut receiver, &mut sender);
    to_receiver(&mut sender, &mut receiver);
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Pong(77)));
    for value in 0..17 {
        assert_eq!(sender.poll_event(), None);
        receiver.ping(value);
        to_sender(&mut receiver, &mut sender);
    }
    assert_eq!(sender.poll_event(), Some(SenderEvent::Failed(Failure::PingFlood(16))));
}

#[test]
fn a_wrong_page_a_repeated_page_and_an_early_commit_are_refused_and_send_nothing() {
    let scene = scene(4);
    let (_, mut sender) = accepted(&scene);
    let before = sender.output().len();
    let first = scene.plan.frames(0, 0..u32::MAX, sender.frame_bytes_max()).swap_remove(0);
    assert!(matches!(sender.send_pages(0, first, |_, _| &[]), Err(SendError::PageLength { got: 0, .. })));
    assert!(matches!(sender.send_pages(99, 0..9, |_, _| &[]), Err(SendError::NothingPlanned { group: 99, .. })));
    assert_eq!(sender.commit(common::TIMES, 0), Err(SendError::Incomplete(scene.plan.page_count())));
    assert_eq!(sender.output().len(), before);
    send_first(&scene, &mut sender);
    let first = scene.plan.frames(0, 0..u32::MAX, sender.frame_bytes_max()).swap_remove(0);
    let again = sender.send_pages(0, first, |layer, page| &scene.pages[&(layer, page)]);
    assert!(matches!(again, Err(SendError::Duplicate { .. })), "{again:?}");
}
