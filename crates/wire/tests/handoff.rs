//! Whole handoffs: what arrives is what was sent, and anything less is never complete.

mod common;

use common::{Scene, Seen, keys, node, receiver_settings, sender_settings};
use muser_wire::{
    Accept, Commit, Failure, FrameHeader, FrameKind, KeyError, KeyState, LaneBinding, Limits, Manifest, Message, Pages,
    Receiver, ReceiverSettings, Sender, SenderEvent, write_frame,
};

/// A scene and the bytes that its sender sent.
fn recorded(seed: u64) -> (Scene, Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let scene = Scene::random(&mut random);
    let mut receiver = Receiver::connect(receiver_settings(&scene), 0);
    let mut sender = Sender::new(sender_settings(), 0);
    let stream = record(&scene, &mut receiver, &mut sender, &mut random);
    (scene, stream)
}

/// Events of a receiver that reads `stream` and then the end of the connection.
fn replay(scene: &Scene, settings: ReceiverSettings, stream: &[u8], seed: u64) -> Seen {
    let mut receiver = Receiver::connect(settings, 0);
    let mut seen = Seen::default();
    deliver(scene, stream, &mut receiver, &mut seen, &mut fastrand::Rng::with_seed(seed));
    if seen.complete.is_none() {
        receiver.ended();
        scene.serve(&mut receiver, &mut seen, 0);
    }
    seen
}

/// Moves the sender's output to `receiver` in random pieces, and serves its events.
fn deliver(scene: &Scene, bytes: &[u8], receiver: &mut Receiver, seen: &mut Seen, random: &mut fastrand::Rng) {
    let mut at = 0;
    while at < bytes.len() {
        let end = bytes.len().min(at + random.usize(1..500));
        at += receiver.take_bytes(&bytes[at..end], 0);
        scene.serve(receiver, seen, 0);
    }
}

/// The frames that a sender sends in one handoff: greeting, acceptance, pages with a progress among them, commit.
fn record(scene: &Scene, receiver: &mut Receiver, sender: &mut Sender, random: &mut fastrand::Rng) -> Vec<u8> {
    let (mut stream, mut seen) = (Vec::new(), Seen::default());
    while sender.frame_bytes_max() == 0 || !sender.wants_more() {
        let to_sender = receiver.output().to_vec();
        receiver.output_sent(to_sender.len(), 0);
        let mut at = 0;
        while at < to_sender.len() {
            at += sender.take_bytes(&to_sender[at..], 0);
            while let Some(event) = sender.poll_event() {
                if let SenderEvent::Request(request) = event {
                    assert_eq!(request.tokens, scene.request.tokens);
                    sender.accept(scene.acceptance(), 0).unwrap();
                }
            }
        }
        take_output(sender, &mut stream);
        if seen.ready.is_none() {
            deliver(scene, &stream.clone(), receiver, &mut seen, random);
        }
    }
    scene.send_all(sender, random, |sender| take_output(sender, &mut stream));
    stream
}

fn take_output(sender: &mut Sender, stream: &mut Vec<u8>) {
    stream.extend_from_slice(sender.output());
    sender.output_sent(sender.output().len(), 0);
}

/// The frames that `stream` is made of.
fn frames(stream: &[u8]) -> Vec<Vec<u8>> {
    let limits = Limits { request_bytes_max: 0, pages_bytes_max: u64::MAX };
    let (mut frames, mut rest) = (Vec::new(), stream);
    while let Some(header) = rest.first_chunk() {
        let body = usize::try_from(FrameHeader::decode(header, &limits).unwrap().body_bytes).unwrap();
        let (frame, behind) = rest.split_at(24 + body + 32);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames
}

fn kind(frame: &[u8]) -> FrameKind {
    FrameKind::ALL[usize::from(frame[6]) - 1]
}

/// `frame` with another body, and the digest of that body.
fn with_body(frame: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, kind(frame), |out| out.extend_from_slice(body));
    out
}

#[track_caller]
fn assert_refused(seen: &Seen, what: &str) -> Failure {
    assert_eq!(seen.complete, None, "{what}");
    seen.failed.clone().unwrap_or_else(|| panic!("{what}: neither complete nor failed: {:?}", seen.other))
}

#[test]
fn every_page_arrives_once_and_to_the_bit_however_the_bytes_are_cut() {
    for seed in 0..300 {
        let (scene, stream) = recorded(seed);
        let seen = replay(&scene, receiver_settings(&scene), &stream, seed);
        let stats = seen.complete.unwrap_or_else(|| panic!("seed {seed}: {:?}", seen.failed));
        assert!(seen.pages == scene.pages, "seed {seed}");
        assert_eq!((stats.pages, stats.payload_bytes), (scene.plan.page_count(), scene.plan.payload_bytes()));
        assert!(stats.stored_bytes <= stats.payload_bytes, "seed {seed}");
        assert_eq!(stats.times, common::TIMES, "seed {seed}");
        assert_eq!(seen, replay(&scene, receiver_settings(&scene), &stream, seed + 1), "seed {seed}");
    }
}

#[test]
fn a_stream_cut_at_any_byte_is_never_complete() {
    let (scene, stream) = recorded(11);
    for cut in 0..stream.len() {
        let seen = replay(&scene, receiver_settings(&scene), &stream[..cut], 1);
        assert!(matches!(assert_refused(&seen, "cut"), Failure::Ended(_)), "cut at {cut}");
    }
}

#[test]
fn frames_that_are_missing_repeated_or_exchanged_are_never_complete() {
    let mut out_of_order = 0;
    for seed in 20..60 {
        let (scene, stream) = recorded(seed);
        let frames = frames(&stream);
        let mut refuse = |frames: Vec<Vec<u8>>, what: &str| {
            let seen = replay(&scene, receiver_settings(&scene), &frames.concat(), seed);
            let failure = assert_refused(&seen, &format!("{seed} {what}"));
            out_of_order += u32::from(matches!(failure, Failure::Sequence { .. }));
        };
        for index in 0..frames.len() {
            if kind(&frames[index]) == FrameKind::Progress {
                continue;
            }
            let mut fewer = frames.clone();
            fewer.remove(index);
            refuse(fewer, "missing");
            if index + 1 < frames.len() {
                let mut repeated = frames.clone();
                repeated.insert(index, frames[index].clone());
                refuse(repeated, "repeated");
            }
            if index + 1 < frames.len() && kind(&frames[index + 1]) != FrameKind::Progress {
                let mut exchanged = frames.clone();
                exchanged.swap(index, index + 1);
                refuse(exchanged, "exchanged");
            }
        }
    }
    assert!(out_of_order > 100, "only {out_of_order} pages frames were found out of order");
}

#[test]
fn a_well_signed_commit_before_all_pages_is_never_complete() {
    let (scene, stream) = recorded(7);
    let frames = frames(&stream);
    let accept = |frame: &Vec<u8>| kind(frame) == FrameKind::Accept;
    let body = &frames[frames.iter().position(accept).unwrap()][24..];
    let accept = Accept {
        handoff: scene.request.handoff,
        nonce: body[16..48].try_into().unwrap(),
        first_page: scene.first_page,
        rows: u32::try_from(scene.request.tokens.len()).unwrap(),
        page_count: scene.plan.page_count(),
        payload_bytes: scene.plan.payload_bytes(),
        reused_rows: 0,
    };
    // A sender that has the key, but leaves its last frame of pages out.
    let last = frames.iter().rposition(|frame| kind(frame) == FrameKind::Pages).unwrap();
    let left_out = [&frames[..last], &frames[last + 1..frames.len() - 1]].concat();
    let mut manifest = Manifest::new(&scene.request, &accept, &node(1), &node(2));
    for frame in left_out.iter().filter(|frame| kind(frame) == FrameKind::Pages) {
        let body = &frame[24..frame.len() - 32];
        manifest.add(&blake3::hash(body), stored_bytes(body));
    }
    let mut signed = left_out.concat();
    Message::Commit(Commit {
        handoff: scene.request.handoff,
        frames: manifest.frames(),
        stored_bytes: manifest.stored_bytes(),
        times: common::TIMES,
        lane: common::LANE,
        root: manifest.root(),
        mac: manifest.mac(&[9; 32], &common::LANE, &common::TIMES),
    })
    .write_frame(&mut signed);
    let failure = assert_refused(&replay(&scene, receiver_settings(&scene), &signed, 7), "incomplete");
    assert!(matches!(failure, Failure::Incomplete { .. }), "{failure:?}");
}

#[test]
fn a_manifest_that_is_relayed_over_another_lane_is_refused_by_name_and_under_the_name_of_that_lane_by_its_mac() {
    let (scene, stream) = recorded(5);
    let other = LaneBinding([0x1B; 32]);
    let settings = || ReceiverSettings { lane: other, ..receiver_settings(&scene) };
    assert_eq!(assert_refused(&replay(&scene, settings(), &stream, 5), "relayed"), Failure::OtherLane);
    // A relay knows both lanes, but not the key.
    let mut frames = frames(&stream);
    let commit = frames.iter_mut().find(|frame| kind(frame) == FrameKind::Commit).unwrap();
    let mut body = commit[24..commit.len() - 32].to_vec();
    body[72..104].copy_from_slice(&other.0);
    *commit = with_body(commit, &body);
    let failure = assert_refused(&replay(&scene, settings(), &frames.concat(), 5), "relayed under another name");
    assert_eq!(failure, Failure::Mac(common::KEY_ID));
}

/// Bytes of the pages in a `Pages` body.
fn stored_bytes(body: &[u8]) -> u64 {
    let (mut at, mut sum) = (Pages::FIXED_BYTES, 0);
    while at < body.len() {
        let stored = u32::from_le_bytes(body[at + 4..at + 8].try_into().unwrap());
        sum += u64::from(stored);
        at += Pages::ENTRY_BYTES + stored as usize;
    }
    sum
}

#[test]
fn a_byte_changed_under_a_valid_digest_is_caught_at_the_commit_at_last() {
    let seeds = (0..).filter(|seed| (500..6000).contains(&recorded(*seed).1.len())).take(3);
    for seed in seeds {
        let (scene, stream) = recorded(seed);
        let frames = frames(&stream);
        let mut at_commit = 0;
        for (index, frame) in frames.iter().enumerate() {
            // Concurrency, codecs and the frame limit of the greeting are advice, and so is progress.
            let bound = match kind(frame) {
                FrameKind::Progress => 0,
                FrameKind::HelloAck => frame.len() - 56 - 12,
                _ => frame.len() - 56,
            };
            for at in 0..bound {
                let mut body = frame[24..frame.len() - 32].to_vec();
                body[at] ^= 1 << (at % 8);
                let mut altered = frames.clone();
                altered[index] = with_body(frame, &body);
                let what = format!("seed {seed}, byte {at} of a {:?} body", kind(frame));
                let failure =
                    assert_refused(&replay(&scene, receiver_settings(&scene), &altered.concat(), seed), &what);
                at_commit += u32::from(matches!(failure, Failure::Manifest { .. }));
                match at {
                    32..72 if kind(frame) == FrameKind::Commit => {
                        assert!(matches!(failure, Failure::Mac(_)), "{what}: {failure:?}");
                    }
                    72..104 if kind(frame) == FrameKind::Commit => assert_eq!(failure, Failure::OtherLane, "{what}"),
                    _ => {}
                }
            }
        }
        assert!(at_commit > 100, "seed {seed}: only {at_commit} changes reached the commit");
    }
}

#[test]
fn another_key_nonce_boot_id_or_prompt_is_never_complete() {
    let (scene, stream) = recorded(5);
    let settings = || receiver_settings(&scene);
    let failure = |settings, scene: &Scene| assert_refused(&replay(scene, settings, &stream, 5), "binding");
    let other_key = ReceiverSettings { keys: keys(8, KeyState::Active), ..settings() };
    assert_eq!(failure(other_key, &scene), Failure::Mac(common::KEY_ID));
    let manifest = |failure| assert!(matches!(failure, Failure::Manifest { .. }), "{failure:?}");
    manifest(failure(ReceiverSettings { node: node(3), ..settings() }, &scene));
    let changes: [fn(&mut Scene); 4] = [
        |scene| scene.request.nonce[0] ^= 1,
        |scene| scene.request.tokens[0] ^= 1,
        |scene| scene.request.expires_in_ms += 1,
        |scene| scene.request.key_id = 5,
    ];
    for change in changes {
        let (mut other, _) = recorded(5);
        change(&mut other);
        let mut keys = keys(9, KeyState::Active);
        keys.set(5, [9; 32], KeyState::Active);
        manifest(failure(ReceiverSettings { keys, ..settings() }, &other));
    }
}

#[test]
fn a_key_revoked_under_way_a_late_commit_and_a_silent_sender_fail() {
    let (scene, stream) = recorded(6);
    let frames = frames(&stream);
    let (before, commit) = stream.split_at(stream.len() - frames.last().unwrap().len());
    let fail = |prepare: fn(&mut Receiver), now_ms| {
        let (mut receiver, mut seen) = (Receiver::connect(receiver_settings(&scene), 0), Seen::default());
        deliver(&scene, before, &mut receiver, &mut seen, &mut fastrand::Rng::with_seed(6));
        prepare(&mut receiver);
        receiver.take_bytes(commit, now_ms);
        scene.serve(&mut receiver, &mut seen, now_ms);
        assert!(receiver.is_closed());
        assert_refused(&seen, "late")
    };
    let revoke = |receiver: &mut Receiver| receiver.set_keys(keys(9, KeyState::Revoked));
    assert_eq!(fail(revoke, 0), Failure::Key(KeyError::Revoked(common::KEY_ID)));
    assert_eq!(fail(|_| (), 5001), Failure::Expired { late_ms: 1 });
    assert_eq!(fail(|_| (), 1001), Failure::Stalled { silent_ms: 1001 });
}
