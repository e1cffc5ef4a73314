//! Bounds on what a peer can make the other end wait for, hold or do.

use muser_wire::{
    Failure, FrameKind, HandoffId, KeyState, Receiver, ReceiverEvent, RefuseCode, Request, Sender, SenderEvent,
    SenderSettings, write_frame,
};

use super::common::{Scene, keys, node, receiver_settings, sender_settings};
use super::{accepted, greeted, scene, to_receiver, to_sender};

/// Pings, one frame each.
fn ping_frames() -> impl Iterator<Item = Vec<u8>> {
    (0u64..).map(|value| frame_of(FrameKind::Ping, &value.to_le_bytes()))
}

/// A pong that no ping was sent for.
fn pong_frame() -> Vec<u8> {
    frame_of(FrameKind::Pong, &[0; 8])
}

fn frame_of(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, kind, |out| out.extend_from_slice(body));
    out
}

/// Sends `ping` after `ping` to an end that waits for a greeting, one each 100 ms.
fn greeting_with_pings(mut take: impl FnMut(&[u8], u64) -> bool) -> u64 {
    let mut pings = ping_frames();
    let mut now_ms = 0;
    loop {
        now_ms += 100;
        if take(&pings.next().unwrap(), now_ms) || now_ms > 60_000 {
            return now_ms;
        }
    }
}

#[test]
fn pings_do_not_extend_the_time_for_a_greeting_at_either_end() {
    let scene = scene(10);
    let mut receiver = Receiver::connect(receiver_settings(&scene), 0);
    let ended_ms = greeting_with_pings(|ping, now_ms| {
        receiver.output_sent(receiver.output().len(), now_ms);
        receiver.take_bytes(ping, now_ms);
        receiver.is_closed()
    });
    let not_greeted = Failure::NotGreeted { waited_ms: 1100 };
    assert_eq!((ended_ms, receiver.poll_event()), (1100, Some(ReceiverEvent::Failed(not_greeted.clone()))));
    let mut sender = Sender::new(sender_settings(), 0);
    let ended_ms = greeting_with_pings(|ping, now_ms| {
        sender.output_sent(sender.output().len(), now_ms);
        sender.take_bytes(ping, now_ms);
        sender.is_closed()
    });
    assert_eq!((ended_ms, sender.poll_event()), (1100, Some(SenderEvent::Failed(not_greeted))));
}

#[test]
fn a_greeting_that_comes_in_pieces_has_no_more_time_than_any_other() {
    let scene = scene(11);
    let (mut receiver, mut sender) =
        (Receiver::connect(receiver_settings(&scene), 0), Sender::new(sender_settings(), 0));
    for (at, byte) in receiver.output().to_vec().into_iter().enumerate() {
        sender.take_bytes(&[byte], 100 * at as u64);
        if sender.is_closed() {
            break;
        }
    }
    assert_eq!(sender.poll_event(), Some(SenderEvent::Failed(Failure::NotGreeted { waited_ms: 1100 })));
    receiver.tick(1001);
    assert_eq!(receiver.poll_event(), Some(ReceiverEvent::Failed(Failure::NotGreeted { waited_ms: 1001 })));
}

#[test]
fn frames_that_nobody_asked_for_are_limited_in_every_state() {
    // Of pings one more each 25 ms, and 64 at once; of pongs none.
    let scene = scene(12);
    for (name, make) in [("greeted", greeted as fn(&Scene) -> (Receiver, Sender)), ("accepted", accepted)] {
        for is_fast in [true, false] {
            let (_, mut sender) = make(&scene);
            let (mut pings, mut taken) = (ping_frames(), 0);
            while taken < 200 && !sender.is_closed() {
                let now_ms = if is_fast { 0 } else { 25 * taken };
                sender.take_bytes(&pings.next().unwrap(), now_ms);
                sender.output_sent(sender.output().len(), now_ms);
                taken += 1;
            }
            let failed = sender.poll_event();
            match is_fast {
                true => assert_eq!(failed, Some(SenderEvent::Failed(Failure::Unasked(65))), "{name}"),
                false => assert_eq!((failed, taken), (None, 200), "{name}"),
            }
        }
        let (mut receiver, mut sender) = make(&scene);
        let pong = pong_frame();
        sender.take_bytes(&pong, 0);
        receiver.take_bytes(&pong, 0);
        assert!(matches!(sender.poll_event(), Some(SenderEvent::Failed(Failure::Unexpected { .. }))), "{name}");
        let failed = std::iter::from_fn(|| receiver.poll_event().map(|event| format!("{event:?}"))).last();
        assert!(failed.is_some_and(|failed| failed.contains("Unexpected")), "{name}");
    }
}

#[test]
fn a_progress_that_stands_still_is_one_that_nobody_asked_for() {
    let scene = scene(13);
    let (mut receiver, mut sender) = accepted(&scene);
    to_receiver(&mut sender, &mut receiver);
    let mut told = 0;
    while !receiver.is_closed() && told < 1000 {
        sender.progress(0).unwrap();
        to_receiver(&mut sender, &mut receiver);
        let _ = receiver.poll_event();
        told += 1;
    }
    assert_eq!(told, 65);
}

#[test]
fn answers_that_are_not_read_hold_back_the_next_requests() {
    let scene = scene(14);
    let (mut receiver, mut sender) = greeted(&scene);
    sender.set_keys(keys(9, KeyState::Revoked));
    let mut requests = 0;
    loop {
        // The receiver reads its refusals, so that it may ask again; what the sender would send stays with the test.
        let request = Request { handoff: HandoffId([requests; 16]), ..scene.request.clone() };
        receiver.request(request, 0).unwrap();
        let bytes = receiver.output().to_vec();
        receiver.output_sent(bytes.len(), 0);
        let before = sender.output().len();
        if sender.take_bytes(&bytes, 0) == 0 {
            break;
        }
        requests += 1;
        let refusal = sender.output()[before..].to_vec();
        receiver.take_bytes(&refusal, 0);
        assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Refused(_))));
    }
    assert!(requests > 50 && sender.output().len() < 20 << 10, "{requests}, {}", sender.output().len());
    sender.tick(1001);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Failed(Failure::Stalled { silent_ms: 1001 }))));
}

#[test]
fn a_peer_that_calls_itself_another_node_than_its_certificate_is_refused_at_either_end() {
    let scene = scene(15);
    let (ours, theirs) = (node(1).node_id, node(2).node_id);
    for (of_receiver, of_sender) in [(ours, theirs), ([0; 32], theirs), (ours, [0; 32])] {
        let mut receiver = Receiver::connect(receiver_settings(&scene), 0).admitting(of_sender);
        let mut sender = Sender::new(sender_settings(), 0).admitting(of_receiver);
        to_sender(&mut receiver, &mut sender);
        let heard = sender.poll_event();
        if of_receiver != ours {
            let failure = Failure::OtherNode { named: ours, admitted: of_receiver };
            assert_eq!(failure.code(), Some(RefuseCode::Protocol));
            assert_eq!(heard, Some(SenderEvent::Failed(failure)));
            continue;
        }
        assert!(matches!(heard, Some(SenderEvent::Hello(_))));
        to_receiver(&mut sender, &mut receiver);
        match (of_sender == theirs, receiver.poll_event()) {
            (true, Some(ReceiverEvent::Ready(_))) => {}
            (false, Some(ReceiverEvent::Failed(failure))) => {
                assert_eq!(failure, Failure::OtherNode { named: theirs, admitted: of_sender });
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_request_that_is_longer_than_a_sender_takes_is_refused_as_too_long() {
    let scene = scene(16);
    let settings = SenderSettings { context_max: 1, ..sender_settings() };
    let (mut receiver, mut sender) = (Receiver::connect(receiver_settings(&scene), 0), Sender::new(settings, 0));
    to_sender(&mut receiver, &mut sender);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Hello(_))));
    to_receiver(&mut sender, &mut receiver);
    assert!(matches!(receiver.poll_event(), Some(ReceiverEvent::Ready(_))));
    receiver.request(Request { tokens: vec![1; 1 << 12], ..scene.request.clone() }, 0).unwrap();
    to_sender(&mut receiver, &mut sender);
    assert!(matches!(sender.poll_event(), Some(SenderEvent::Failed(Failure::Frame(_)))));
    to_receiver(&mut sender, &mut receiver);
    let Some(ReceiverEvent::Failed(Failure::RefusedByPeer(refuse))) = receiver.poll_event() else { panic!() };
    assert_eq!(refuse.code, RefuseCode::TooLong);
}

#[test]
fn a_receiver_that_is_turned_away_hears_why_and_when_to_come_back() {
    let scene = scene(17);
    let (mut receiver, mut sender) =
        (Receiver::connect(receiver_settings(&scene), 0), Sender::new(sender_settings(), 0));
    sender.turn_away(RefuseCode::Busy, 700, "this node has lanes enough");
    assert!(sender.is_closed());
    to_receiver(&mut sender, &mut receiver);
    let Some(ReceiverEvent::Failed(Failure::RefusedByPeer(refuse))) = receiver.poll_event() else { panic!() };
    assert_eq!((refuse.code, refuse.retry_after_ms), (RefuseCode::Busy, 700));
}
